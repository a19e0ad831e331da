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
from typing import NamedTuple

import torch
from scipy import special, stats
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError

LEAST_RATE = 1e-9  # needs a thousand million samples


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

    @property
    def lowest(self) -> float:
        """The lowest false-alarm rate that the calibration supports: 1 / (n + 1), of the class with the fewest samples.

        >>> Calibrated((torch.arange(99.0),)).lowest
        0.01
        """
        return 1 / (1 + min(map(len, self.values)))

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


class Evidence(NamedTuple):
    """How much a score argues against ID: minus the logarithm of its p-value, continued beyond the largest reference.

    -log p(s) up to the largest of n references r, and log(n + 1) + (s - max r) / scale beyond it: an exponential tail,
    so that a score 100 times the largest reference counts for more than one just above it.

    >>> Evidence.of(torch.arange(9.0))(torch.tensor([0.0, 8.0, 9.0, 90.0]))
    tensor([ 0.0000,  1.6094,  3.3026, 84.3026], dtype=torch.float64)
    """

    reference: Tensor  # (n,) ascending
    scale: float  # > 0: the excess over the largest reference that adds 1

    @classmethod
    def of(cls, reference: Tensor) -> Evidence:
        """Evidence among references (n,), ascending."""
        return cls(reference, tail_scale(reference))

    def __call__(self, scores: Tensor) -> Tensor:
        """(B,) -> (B,) float64, at least 0; an infinite score has infinite evidence."""
        scores = scores.to(self.reference)
        return beyond(scores, self.reference[-1], self.scale) - Calibrated((self.reference,)).p_values(scores).log()


def beyond(scores: Tensor, largest: Tensor, scale: float | Tensor) -> Tensor:
    """Evidence of the tail: the excess over the largest reference, in units of `scale`. (B,) -> (B,) float64."""
    return torch.where(scores > largest, (scores.double() - largest.double()) / scale, 0)


def tail_scale(reference: Tensor) -> float:
    """Mean excess of references (n,), ascending, over their 90% quantile: the scale of the tail beyond the largest.

    Where none lies above the quantile, as with ties of scores that count, their standard deviation; of constant
    references, their absolute value, or 1. At least a millionth of the largest absolute value; always finite.
    """
    finite = reference[reference.isfinite()].double()
    if not len(finite):
        return 1.0
    size = float(finite.abs().max())
    quantile = finite[max(math.floor(0.9 * len(finite)), 1) - 1]
    excess = finite[finite > quantile] - quantile
    # relative to the size, so that squares neither overflow nor vanish
    spread = float(excess.mean()) if len(excess) else size * float((finite / (size or 1)).std(correction=0))
    return max(spread, 1e-6 * size, 1e-300) if spread > 1e-12 * size else size or 1.0


def evidence(references: Sequence[Tensor], scores: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """Combine scores by Fisher's method: the weighted sum of each score's `Evidence` among its `references`.

    sum_i w_i e_i(s_i): (n,) ascending and (B,), one pair per score, -> (B,); higher = more OOD. The sum is not a
    p-value, because scores depend on each other and tails are extrapolated: calibrate it again, on other samples. That
    calibration is valid for any function of a sample, so neither weights nor tails affect it.

    Args:
        references: Scores of held-out ID samples, ascending.
        scores: The scores to combine.
        weights: One positive number per score; 1 by default.
    """
    weights = [1.0] * len(scores) if weights is None else weights
    if not all(0 < w < math.inf for w in weights):
        raise DissensusError(f"weights of scores must be positive; got {list(weights)}: leave out scores that count 0")
    triples = zip(references, scores, weights, strict=True)
    return torch.stack([w * Evidence.of(r)(s) for r, s, w in triples]).sum(0).float()


def discoveries(p_values: Tensor, share: float) -> Tensor:
    """Which samples of a batch are OOD, so that at most a share of those is not, in expectation: (B,) -> (B,) bool.

    Benjamini and Hochberg's procedure, which conformal p-values of one calibration set allow (Bates et al. 2023).
    """
    check_rate(share)
    if not len(p_values):
        return torch.zeros(0, dtype=torch.bool)
    return torch.from_numpy(stats.false_discovery_control(p_values.double().numpy())) <= share


def check_rate(rate: float) -> None:
    """Raise if a false-alarm rate is not in (0, 1)."""
    if not 0 < rate < 1:
        raise DissensusError(f"the false-alarm rate must lie between 0 and 1; got {rate:g}: try 0.05")
    if rate < LEAST_RATE:
        raise DissensusError(f"the false-alarm rate must be {LEAST_RATE:g} or more; got {rate:g}: try 0.05")


def _allowed(rate: float, n: int) -> int:
    """Number of n calibration samples that may lie on or above the threshold."""
    return math.floor(round(rate * (n + 1), 9))
