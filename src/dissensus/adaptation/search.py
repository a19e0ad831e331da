"""Search: successive halving over the ensembles, within a budget of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dissensus._core.durations import duration
from dissensus._core.errors import DissensusError
from dissensus.adaptation.candidates import ALWAYS, INCUMBENT, Candidate, eligible, expressions
from dissensus.adaptation.choose import Choice, Entry, accurate, choose
from dissensus.adaptation.rank import CLASSES, INSIDE, Ranked, pool, rank, shares
from dissensus.adaptation.splits import Rows
from dissensus.adaptation.trials import FITTED, Bench, Trial, planned, short_fit
from dissensus.features import FeatureSet

SHORT, FULL = 0.25, 1.0  # shares of a full training: the rungs
PROBE = 8  # batches that a training is timed by
NO_TIME = "The default is kept: the budget ended before any ensemble was fully trained."


class Clock:
    """The time that has passed, and the time that the winner's training will take.

    Args:
        budget: Seconds; None: no limit.
    """

    def __init__(self, budget: float | None) -> None:
        if budget is not None and not 0 < budget < math.inf:
            raise DissensusError(f"the budget must be a time above 0; got {budget:g} s: try 10m")
        self.budget, self.start, self.reserved, self.stopped = budget, time.monotonic(), 0.0, False

    @property
    def passed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start

    def reserve(self, features: FeatureSet, members: int, seed: int, norm: str | None = None) -> None:
        """Set aside the time for the winner's training, by that of a few batches.

        Raises:
            DissensusError: If the budget does not cover it.
        """
        if self.budget is None:
            return
        settings = planned(INCUMBENT, INCUMBENT.ensemble(features, members, seed, norm), features, seed)
        part = features.subset(_some(features, PROBE * settings.batch_size))
        seconds = []
        for _ in range(2):  # the first warms up
            start = time.monotonic()
            short_fit(INCUMBENT, INCUMBENT.ensemble(features, members, seed, norm), part, 1, seed)
            seconds.append(time.monotonic() - start)
        fitted = features.width**2 * (len(features) + 10 * features.width) / 1e10  # scores: products and eigenvectors
        self.reserved = 1.2 * (min(seconds) * len(features) / len(part) * settings.epochs + fitted)
        if self.passed + self.reserved > self.budget:
            raise DissensusError(
                f"the budget must cover the training of the winner, about {duration(self.reserved)} here; got "
                f"{duration(self.budget)}: give {duration(10 * self.reserved)} or more for a choice"
            )

    def allows(self, seconds: float) -> bool:
        """Whether there is time for so many seconds more."""
        if self.budget is not None and self.passed + seconds + self.reserved > self.budget:
            self.stopped = True
        return not self.stopped


class Search:
    """Measures candidates: all for a quarter of the training, the better half to the end.

    Attributes:
        entries: what was measured.
        done, total: ensembles trained, and to be trained.
    """

    def __init__(
        self, bench: Bench, views: Sequence[Rows], clock: Clock, progress: bool, notify: Callable[[str], None]
    ) -> None:
        self.bench, self.views, self.clock, self.progress, self.notify = bench, views, clock, progress, notify
        self.entries: list[Entry] = []
        self.done = self.total = 0
        self._cost: dict[tuple[Candidate, float], float] = {}

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Measure candidates until all is done or the budget is used up."""
        half = max(len(ALWAYS), math.ceil(len(candidates) / 2))
        self.total = len(candidates) + half
        if not self.clock.allows(0):
            return
        for number in range(len(self.bench.folds)):
            self.bench.distances(number)  # here: not part of the first candidate's time
        waiting = [(c, SHORT) for c in candidates] + [(c, FULL) for c in candidates[:half]]
        if not self._rung(candidates, SHORT, waiting):
            return
        allowed = accurate(self.entries)
        best = dict.fromkeys(candidates, 0.0)
        for entry in self.entries:
            if eligible(entry.score):
                best[entry.candidate] = max(best[entry.candidate], entry.ranked.mean)
        others = [c for c in candidates if c not in ALWAYS]
        ordered = [*ALWAYS, *sorted(others, key=lambda c: (c not in allowed, -best[c]))][:half]
        self._rung(ordered, FULL, [(c, FULL) for c in ordered])

    def _rung(self, candidates: Sequence[Candidate], share: float, waiting: Sequence[tuple[Candidate, float]]) -> bool:
        """Measure candidates for a share of the training; return whether there was time for all."""
        left = list(waiting)
        for candidate in candidates:
            known = all(self.bench.known(candidate, n, share) for n in range(len(self.bench.folds)))
            if not known and not self.clock.allows(self._expected(candidate, share)):
                return False
            start = time.monotonic()
            entries = self._measure(candidate, share)
            self._cost[candidate, share] = time.monotonic() - start if not known else entries[0].seconds
            self.entries += entries
            self.done += 1
            left.remove((candidate, share))
            seconds = sum(self._expected(*each) for each in left) + self.clock.reserved
            best = max(entries, key=lambda entry: entry.ranked.mean)
            self.notify(
                f"tune {self.done}/{self.total}: {candidate.name}{'' if share == FULL else ', a quarter'}: "
                f"accuracy {best.accuracy:.1%}, best mean AUROC {best.ranked.mean:.3f} ({best.score}); about "
                f"{duration(seconds)} left"
            )
        return True

    def _expected(self, candidate: Candidate, share: float) -> float:
        """Seconds that a trial will take: as its shorter training, as the others, or as the winner's in every fold."""
        if (candidate, SHORT) in self._cost:
            return self._cost[candidate, SHORT] * share / SHORT
        costs = [cost * share / known for (_, known), cost in self._cost.items()]
        return sum(costs) / len(costs) if costs else self.clock.reserved * share * len(self.bench.folds)

    def _fitted(self) -> tuple[str, ...]:
        """The scores of features that could be fitted in every fold."""
        folds = [self.bench.distances(number) for number in range(len(self.bench.folds))]
        return tuple(name for name in FITTED if all(name in values for values in folds))

    def _measure(self, candidate: Candidate, share: float) -> list[Entry]:
        trials: list[Trial] = []
        ranked: dict[str, list[Ranked]] = {score: [] for score in expressions(self._fitted())}
        weights = shares([[name for name in sets if name != INSIDE] for sets in self.bench.sets])
        for number, places in enumerate(self.views):
            trial = self.bench.trial(candidate, number, share, self.progress)
            values = {**self.bench.distances(number), **trial.values}
            count = len(trial.correct)
            samples = {name: torch.from_numpy(places) for name in values["pds"] if name not in (INSIDE, CLASSES)}
            samples[INSIDE] = torch.arange(count)
            classes = self.bench.left_out(number)
            if classes is not None:
                samples[CLASSES] = count + torch.arange(len(classes))
            for score, each in ranked.items():
                each.append(rank(score, values, samples, classes, weights[number]))
            trials.append(trial)
        correct, seconds = torch.cat([t.correct for t in trials]), sum(t.seconds for t in trials)
        return [Entry(candidate, score, pool(each), correct, seconds, share) for score, each in ranked.items()]

    def choose(self) -> Choice | None:
        """Choose among full trainings; without any keep the default; None if nothing was measured."""
        shares = [e.share for e in self.entries if e.candidate == INCUMBENT]
        if not shares:
            return None
        default = expressions(self._fitted())[0]
        if FULL in shares:
            return choose([e for e in self.entries if e.share == FULL], default)
        usual = next(e for e in self.entries if (e.candidate, e.score) == (INCUMBENT, default))
        return Choice(usual, usual, NO_TIME)


def _some(features: FeatureSet, count: int) -> Tensor:
    """At most so many rows, at random, of two classes at least: the rows of a class may be adjacent."""
    assert features.labels is not None
    rows = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
    classes = features.labels[rows]
    other = int((classes != classes[0]).nonzero()[0])
    rows[[1, other]] = rows[[other, 1]]
    return rows[:count].sort().values
