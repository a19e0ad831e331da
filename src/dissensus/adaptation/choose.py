"""The choice: which ensemble with which score, and whether a simpler model is as good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dissensus.adaptation.candidates import DEEP, INCUMBENT, SINGLE, Candidate, eligible
from dissensus.adaptation.rank import Ranked
from dissensus.functional.comparisons import accuracy_gap

ACCURACY = 0.005  # how far below the most accurate ensemble a choice may be
GAIN = 0.002  # the least gain of mean AUROC for which the default is left,
ERRORS = 3.0  # and the least gain in standard errors: the best of dozens exceeds 2 by chance
DROP = 0.01  # how much AUROC a choice may lose on a kind of stand-in


@dataclass(frozen=True)
class Entry:
    """An ensemble with a score, as measured on the stand-ins."""

    candidate: Candidate
    score: str
    ranked: Ranked
    correct: Tensor  # (n,) 0 or 1, of the held-out samples
    seconds: float  # of training and scoring
    share: float  # of a full training

    @property
    def accuracy(self) -> float:
        """Share of the held-out samples that are classified correctly."""
        return float(self.correct.double().mean())

    @property
    def name(self) -> str:
        """Ensemble and score."""
        return f"{self.candidate.name} with {self.score}"


@dataclass(frozen=True)
class Choice:
    """The chosen entry, the default, and why."""

    entry: Entry
    default: Entry
    reason: str


def accurate(entries: Sequence[Entry]) -> set[Candidate]:
    """The ensembles whose accuracy is within 0.5 points of the best, or within noise of it.

    Noise is one standard error of the difference, for the default ensemble two: it is left for a reason only.
    """
    by_candidate = {entry.candidate: entry for entry in entries}
    best = max(by_candidate.values(), key=lambda entry: entry.accuracy)
    gaps = {candidate: accuracy_gap(entry.correct, best.correct) for candidate, entry in by_candidate.items()}
    return {
        candidate
        for candidate, (gap, error) in gaps.items()
        if gap <= max(ACCURACY, (1 + (candidate == INCUMBENT)) * error)
    }


def choose(entries: Sequence[Entry], default: str) -> Choice:
    """Choose among entries of equally long trainings: the default, unless another gains more than noise.

    Args:
        entries: Must have the default ensemble with the default score.
        default: The default score.
    """
    allowed = accurate(entries)
    usual = {entry.candidate: entry for entry in entries if entry.score == default}
    base = usual[INCUMBENT]
    if INCUMBENT not in allowed:
        base = max((usual[candidate] for candidate in allowed), key=lambda entry: entry.ranked.mean)
    possible = [entry for entry in entries if entry.candidate in allowed and eligible(entry.score)]
    # the score first: another ensemble must gain beyond what the default one has with its best score
    alike = [entry for entry in possible if entry.candidate == base.candidate and _gains(entry, base)]
    chosen = max(alike, key=lambda entry: entry.ranked.mean, default=base)
    better = [entry for entry in possible if _gains(entry, chosen)]
    chosen = max(better, key=lambda entry: entry.ranked.mean, default=chosen)
    best = max(possible, key=lambda entry: entry.ranked.mean, default=base)
    sentences = [_why(chosen, base, usual[INCUMBENT], best), *_enough(chosen, entries)]
    return Choice(chosen, usual[INCUMBENT], " ".join(sentences))


def _gains(entry: Entry, base: Entry) -> bool:
    """Whether an entry is better beyond noise, and nowhere much worse."""
    gain = entry.ranked.mean - base.ranked.mean
    drops = [base.ranked.kinds[kind] - value for kind, value in entry.ranked.kinds.items()]
    return gain >= max(GAIN, ERRORS * entry.ranked.error(base.ranked)) and max(drops) <= DROP


def _why(chosen: Entry, base: Entry, default: Entry, best: Entry) -> str:
    if chosen is not base:
        text = (
            f"Chosen: {chosen.name}, with a mean AUROC of {chosen.ranked.mean:.3f} on the stand-ins, "
            f"{_versus(chosen, base)}."
        )
    elif best is base:
        text = f"The default score is kept, {base.name}: nothing has a higher mean AUROC ({base.ranked.mean:.3f})."
    else:
        text = (
            f"The default score is kept, {base.name} ({base.ranked.mean:.3f}): the best other gain, of {best.name}, "
            f"is {best.ranked.mean - base.ranked.mean:+.3f} ± {best.ranked.error(base.ranked):.3f}, {_but(best, base)}."
        )
    if base is not default:
        text += (
            f" The default ensemble, {default.candidate.name}, is left because it is less accurate "
            f"({default.accuracy:.1%} against {chosen.accuracy:.1%})."
        )
    return text


def _but(best: Entry, base: Entry) -> str:
    """Why a higher mean is not enough."""
    drops = {kind: base.ranked.kinds[kind] - value for kind, value in best.ranked.kinds.items()}
    worst = max(drops, key=lambda kind: drops[kind])
    if drops[worst] > DROP:
        return f"but it loses {drops[worst]:.3f} on {worst}"
    return "too small" if best.ranked.mean - base.ranked.mean < GAIN else "within noise"


def _versus(chosen: Entry, base: Entry) -> str:
    gain, error = chosen.ranked.mean - base.ranked.mean, chosen.ranked.error(base.ranked)
    return f"{gain:+.3f} ± {error:.3f} against {base.name}"


def _enough(chosen: Entry, entries: Sequence[Entry]) -> list[str]:
    """Whether a single model, or a deep ensemble, does as well with the same score."""
    others = {entry.candidate: entry for entry in entries if entry.score == chosen.score}
    plain = [(SINGLE, "A single model"), (DEEP, "A deep ensemble")]
    sentences: list[str] = []
    for candidate, name in plain:
        other = others.get(candidate)
        if other is None or candidate == chosen.candidate:
            continue
        gap, error = chosen.ranked.mean - other.ranked.mean, chosen.ranked.error(other.ranked)
        lost, lost_error = accuracy_gap(other.correct, chosen.correct)
        figures = f"{other.ranked.mean:.3f} with the same score, accuracy {other.accuracy:.1%}"
        if gap <= max(GAIN, 2 * error) and lost <= max(ACCURACY, lost_error):
            return [*sentences, f"{name} is enough here: {figures}."]
        sentences.append(f"{name} is not as good: {figures}.")
    return sentences
