"""Check that an export computes what PyTorch computes.

Two programs round differently, so a score may fall on the other side of a calibration score that it nearly equals, and
its p-value then differs by a rank. Ranks and verdicts are therefore compared with those of scores within the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dissensus._core.errors import DissensusError
from dissensus.detection.detector import Detector
from dissensus.detection.members import Outputs
from dissensus.functional import aggregates, expressions

TOLERANCE = 1e-4


def check(
    detector: Detector, known: Outputs, outputs: Mapping[str, Tensor], *, false_alarms: float | None = None
) -> None:
    """Raise `DissensusError` if outputs differ from the detector's for features and logits computed by PyTorch.

    Args:
        detector: The detector.
        known: Features and logits of the samples.
        outputs: The outputs of the export for the same samples.
        false_alarms: The rate at which the verdicts were made; None: the detector's.
    """
    logits = known.logits
    answer = aggregates.AGGREGATES[detector.aggregate](logits)
    first, second = answer.topk(2).values.unbind(-1)
    sure = first - second > 2 * TOLERANCE  # samples whose label does not depend on rounding
    _same("label", outputs["label"][sure], answer.argmax(-1)[sure])
    _close("logits", outputs["logits"], logits.mean(0))
    _close("member_probs", outputs["member_probs"], logits.softmax(-1))
    rule = detector.threshold
    low, high = _bounds(detector, known)
    _within("score", outputs["score"], low, high)
    if rule is None:
        return
    label = outputs["label"]
    _within("p_value", outputs["p_value"], *(rule.calibrated.p_values(score, label) for score in (high, low)))
    limit = (rule if false_alarms is None else rule.at(false_alarms)).limits(label)
    clear = (low > limit) | (high <= limit)
    _same("verdict", outputs["verdict"][clear], (low > limit)[clear])


@torch.inference_mode()
def _bounds(detector: Detector, known: Outputs) -> tuple[Tensor, Tensor]:
    """The lowest and the highest combined score, each (B,), of scores within the tolerance."""
    rule = detector.threshold
    names = (detector.score_name,) if rule is None else rule.scores
    values = expressions.values(names, known.logits, known.features, detector.ensemble.fitted)
    slack = [TOLERANCE * value.abs().clamp(min=1) for value in values]
    low, high = ([(v + sign * s).float() for v, s in zip(values, slack, strict=True)] for sign in (-1, 1))
    return (low[0], high[0]) if rule is None else (rule.score(low), rule.score(high))


def _close(name: str, got: Tensor, expected: Tensor) -> None:
    slack = TOLERANCE * expected.abs().amax().clamp(min=1)
    _within(name, got, expected - slack, expected + slack)


def _within(name: str, got: Tensor, low: Tensor, high: Tensor) -> None:
    rounding = 1e-6 * high.abs().clamp(min=1)  # of single precision
    if got.shape != low.shape or not bool(((got >= low - rounding) & (got <= high + rounding)).all()):
        excess = torch.maximum(low - got, got - high).max() if got.shape == low.shape else float("nan")
        raise _differs(name, f"by {float(excess):.1g} more than {TOLERANCE:g}")


def _same(name: str, got: Tensor, expected: Tensor) -> None:
    if not torch.equal(got, expected):
        raise _differs(name, f"for {int((got != expected).sum())} of {len(got)} samples")


def _differs(name: str, by: str) -> DissensusError:
    return DissensusError(
        f"an export must agree with PyTorch; its {name} differs {by}: export to the hub, which keeps PyTorch"
    )
