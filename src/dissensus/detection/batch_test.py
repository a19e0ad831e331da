"""A test of one batch of samples without labels: how many are OOD discoveries, and do the members disagree more?

test = batch_test(detector.predict("photos/today"), detector.threshold)
print(test)                     # 200 samples: 31 OOD at a false-discovery rate of 10%; ...
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from dissensus._core.errors import DataError
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import Verdict
from dissensus.functional import comparisons, conformal

RESAMPLES = 999  # the smallest p-value is 1 / 1000
AT_ONCE = 2**20  # values permuted at a time, for memory that does not grow with the calibration set


@dataclass(frozen=True)
class BatchTest:
    """What a batch of samples is like beside the calibration samples.

    Attributes:
        count: Samples that could be read.
        discoveries: Samples that are OOD at the false-discovery rate.
        share: The false-discovery rate: of the discoveries at most this share is ID, in expectation.
        disagreement: Mean share of pairs of members whose votes differ; None if it cannot be tested.
        calibrated: The same of the calibration samples.
        p_value: Of the hypothesis that members disagree as on the calibration samples, by permutation, two-sided.
    """

    count: int
    discoveries: int
    share: float
    disagreement: float | None = None
    calibrated: float | None = None
    p_value: float | None = None

    def __str__(self) -> str:
        text = f"{self.count:,} samples: {self.discoveries:,} OOD at a false-discovery rate of {100 * self.share:.3g}%"
        if self.p_value is None:
            return text
        return (
            f"{text}; members disagree in {self.disagreement:.1%} of their pairs, {self.calibrated:.1%} in calibration "
            f"(p = {self.p_value:.3g})"
        )


def batch_test(verdicts: Iterable[Verdict], threshold: Threshold, share: float = 0.1) -> BatchTest:
    """Test a batch against the calibration samples.

    The p-values hold for one batch. Of many batches that are like the calibration samples, one in twenty has p <= 0.05:
    a `Monitor` has one false-alarm rate for a whole stream.

    Args:
        verdicts: Of a calibrated detector; those with an error are left out.
        threshold: Its calibration.
        share: The false-discovery rate.

    Raises:
        DissensusError: If a verdict has no p-value, or the rate is not in (0, 1).
    """
    readable = [verdict for verdict in verdicts if verdict.error is None]
    p_values = [verdict.p_value for verdict in readable if verdict.p_value is not None]
    if len(p_values) < len(readable):
        raise DataError("a batch test needs p-values; these verdicts have none: calibrate the detector first")
    found = int(conformal.discoveries(torch.tensor(p_values, dtype=torch.float64), share).sum())
    counts = {len(verdict.votes) for verdict in readable}
    if threshold.held_out is None or len(counts) != 1 or min(counts) < 2 or len(readable) < 2:
        return BatchTest(len(readable), found, share)
    held_out = threshold.held_out.disagreement.double().numpy()
    numbers = {name: i for i, name in enumerate(sorted({vote for verdict in readable for vote in verdict.votes}))}
    votes = torch.tensor([[numbers[vote] for vote in verdict.votes] for verdict in readable]).T
    batch = comparisons.disagreement(votes).double().numpy()
    result = stats.permutation_test(
        (batch, held_out), _difference, vectorized=True, n_resamples=RESAMPLES, rng=np.random.default_rng(0),
        batch=max(1, AT_ONCE // (len(batch) + len(held_out))),
    )  # fmt: skip
    return BatchTest(len(readable), found, share, float(batch.mean()), float(held_out.mean()), float(result.pvalue))


def _difference(one: NDArray[np.float64], other: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    difference: NDArray[np.float64] = one.mean(axis) - other.mean(axis)
    return difference
