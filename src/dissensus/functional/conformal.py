"""Split-conformal calibration: how unusual a score is among the scores of held-out ID samples.

The p-value of a score s among n calibration scores is (1 + how many are >= s) / (n + 1). For a sample that is
exchangeable with the calibration samples it is at most `rate` with probability at most `rate`, whatever the score,
the ensemble and the data: the guarantee holds for any n, in expectation over calibration sets.

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
from scipy import special
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError


@dataclass(frozen=True)
class Calibrated:
    """Scores of calibration samples, ascending: one tensor for all samples, or one per predicted class."""

    values: tuple[Tensor, ...]

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor | None = None, classes: int = 1) -> Calibrated:
        """Calibrate on scores (n,); with predicted labels (n,), separately for each of the `classes`."""
        if labels is None:
            return cls((scores.sort().values,))
        return cls(tuple(scores[labels == c].sort().values for c in range(classes)))

    @property
    def count(self) -> int:
        """Number of calibration samples."""
        return sum(map(len, self.values))

    @property
    def by_class(self) -> bool:
        """Whether each predicted class is calibrated separately."""
        return len(self.values) > 1

    def p_values(self, scores: Tensor, labels: Tensor | None = None) -> Tensor:
        """P-values of scores, given predicted labels if calibrated by class: (B,) -> (B,) float64."""
        p_values = torch.full(scores.shape, torch.nan, dtype=torch.float64)
        assert labels is not None or not self.by_class
        for c, values in enumerate(self.values):
            rows = labels == c if self.by_class else slice(None)
            below = torch.searchsorted(values, scores[rows].to(values).contiguous())
            p_values[rows] = (1 + len(values) - below).double() / (len(values) + 1)
        return p_values

    def thresholds(self, rate: float) -> Tensor:
        """The scores above which a p-value is at most `rate`: (1,), or (classes,).

        Call `check` first: each needs enough calibration samples.
        """
        return torch.stack([values[len(values) - _allowed(rate, len(values))] for values in self.values])

    def check(self, rate: float, names: Sequence[str] = ()) -> None:
        """Raise if there are too few samples for a false-alarm rate; `names` are the classes'."""
        check_rate(rate)
        for number, values in enumerate(self.values):
            if len(values) < needed(rate):
                whose = f" predicted as {names[number]!r}" if self.by_class and names else ""
                remedy = "or calibrate all classes together" if self.by_class else "or allow more false alarms"
                raise DataError(
                    f"a false-alarm rate of {rate:g} needs {needed(rate)} calibration samples{whose}; "
                    f"got {len(values)}: give more, {remedy}"
                )

    def spread(self, rate: float, share: float = 0.9) -> tuple[float, float]:
        """Interval of the true false-alarm rate for `share` of calibration sets of this size, without ties."""
        n = min(map(len, self.values))
        k = _allowed(rate, n)
        low, high = special.betaincinv(k, n + 1 - k, [(1 - share) / 2, (1 + share) / 2])
        return float(low), float(high)


def needed(rate: float) -> int:
    """Number of calibration samples that a false-alarm rate needs: with fewer, no score could raise an alarm."""
    return math.ceil(round(1 / rate, 9)) - 1


def evidence(references: Sequence[Tensor], scores: Sequence[Tensor]) -> Tensor:
    """Combine scores by Fisher's method: minus the sum of the logarithms of their p-values among `references`.

    (n,) ascending and (B,), one pair per score, -> (B,); higher = more OOD. Scores depend on each other, so the sum is
    not a p-value: calibrate it again, on other samples.
    """
    parts = [-Calibrated((r,)).p_values(s).log() for r, s in zip(references, scores, strict=True)]
    return torch.stack(parts).sum(0).float()


def check_rate(rate: float) -> None:
    """Raise if a false-alarm rate is not in (0, 1)."""
    if not 0 < rate < 1:
        raise DissensusError(f"the false-alarm rate must lie between 0 and 1; got {rate:g}: try 0.05")


def _allowed(rate: float, n: int) -> int:
    """Number of n calibration samples that may lie on or above the threshold."""
    return math.floor(round(rate * (n + 1), 9))
