"""Split-conformal calibration: how unusual a score is among the scores of held-out ID samples.

The p-value of a score s among n calibration scores is (1 + how many are >= s) / (n + 1). For a sample that is
exchangeable with the calibration samples it is at most `rate` with probability at most `rate`, whatever the score,
the ensemble and the data: the promise holds for any n, in expectation over calibration sets.

>>> calibrated = Calibrated((torch.arange(99.0),))
>>> calibrated.thresholds(0.05)
tensor([94.])
>>> calibrated.p_values(torch.tensor([94.0, 95.0, 500.0]))
tensor([0.0600, 0.0500, 0.0100], dtype=torch.float64)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError

__all__ = ["Calibrated", "check_rate", "evidence", "needed"]


@dataclass(frozen=True)
class Calibrated:
    """Scores of calibration samples, ascending: one tensor for all samples, or one for each predicted class."""

    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor | None = None, classes: int = 1) -> Calibrated:
        """Calibrate on scores (n,); with predicted labels (n,), each of the `classes` by itself."""
        if labels is None:
            return cls((scores.sort().values,))
        return cls(tuple(scores[labels == c].sort().values for c in range(classes)))

    @property
    def count(self) -> int:
        """How many samples there are in all."""
        return sum(map(len, self.values))

    @property
    def by_class(self) -> bool:
        """Whether each predicted class has scores of its own."""
        return len(self.values) > 1

    def p_values(self, scores: Tensor, labels: Tensor | None = None) -> Tensor:
        """The share of calibration samples, and of the sample itself, that score as high: (B,) -> (B,) float64."""
        found = torch.full(scores.shape, torch.nan, dtype=torch.float64)
        for values, rows in self._parts(scores, labels):
            below = torch.searchsorted(values, scores[rows].to(values).contiguous())
            found[rows] = (1 + len(values) - below).double() / (len(values) + 1)
        return found

    def thresholds(self, rate: float) -> Tensor:
        """Per part, the score above which a p-value is at most `rate`: (1,), or (classes,).

        A part with too few samples for the rate is refused by `check`.
        """
        return torch.stack([values[len(values) - _allowed(rate, len(values))] for values in self.values])

    def check(self, rate: float, names: Sequence[str] = ()) -> None:
        """Refuse a rate that so few samples cannot promise; `names` are the classes'."""
        check_rate(rate)
        for number, values in enumerate(self.values):
            if len(values) < needed(rate):
                of = f" predicted as {names[number]!r}" if self.by_class and names else ""
                remedy = "or calibrate all classes together" if self.by_class else "or allow more false alarms"
                raise DataError(
                    f"a false-alarm rate of {rate:g} needs {needed(rate)} calibration samples{of}; got {len(values)}: "
                    f"give more, {remedy}"
                )

    def spread(self, rate: float, share: float = 0.9) -> tuple[float, float]:
        """Where the true false-alarm rate lies for this share of calibration sets of this size, scores without ties."""
        n = min(map(len, self.values))
        k = _allowed(rate, n)
        low, high = stats.beta.interval(share, k, n + 1 - k)
        return float(low), float(high)

    def _parts(self, scores: Tensor, labels: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        if not self.by_class:
            return [(self.values[0], torch.ones(scores.shape, dtype=torch.bool))]
        assert labels is not None
        return [(values, labels == c) for c, values in enumerate(self.values)]


def needed(rate: float) -> int:
    """How many calibration samples a false-alarm rate takes: with fewer, no score could be an alarm."""
    return math.ceil(round(1 / rate, 9)) - 1


def evidence(references: Sequence[Tensor], scores: Sequence[Tensor]) -> Tensor:
    """Several scores as one, Fisher's: minus the sum of the logarithms of their p-values among `references`.

    (n,) ascending and (B,), one pair a score, -> (B,); higher = more OOD. Scores depend on each other, so the sum is
    no p-value: it is calibrated in its turn, on other samples.
    """
    parts = [-Calibrated((r,)).p_values(s).log() for r, s in zip(references, scores, strict=True)]
    return torch.stack(parts).sum(0).float()


def check_rate(rate: float) -> None:
    """Refuse a false-alarm rate that is none."""
    if not 0 < rate < 1:
        raise DissensusError(f"the false-alarm rate must lie between 0 and 1; got {rate:g}: try 0.05")


def _allowed(rate: float, n: int) -> int:
    """How many of n calibration samples may lie above the threshold or on it."""
    return math.floor(round(rate * (n + 1), 9))
