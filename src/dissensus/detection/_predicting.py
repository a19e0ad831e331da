"""From the members' logits and the features of samples to verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dissensus.detection.members import Outputs
from dissensus.detection.verdicts import Verdicts
from dissensus.functional import aggregates, expressions

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector


def verdicts(detector: Detector, outputs: Outputs) -> Verdicts:
    """Return the verdicts that follow from logits (M, B, C) and features (B, ...)."""
    logits, classes = outputs.logits, detector.classes
    top, label = log_probs(detector, logits).max(-1)
    label, confidence, votes = label.cpu(), top.exp().cpu(), logits.argmax(-1).to(torch.int32).cpu()
    rule = detector.threshold
    if rule is None:
        return Verdicts(label, confidence, values(detector, (detector.score_name,), outputs)[0].float(), votes, classes)
    each = values(detector, rule.scores, outputs)
    score = rule.score(each)
    limit = rule.limits(label)
    p_value = rule.calibrated.p_values(score, label)
    found = Verdicts(label, confidence, score, votes, classes, p_value, limit, score > limit)
    return replace(found, parts=rule.parts(each), scores=rule.scores)


@torch.inference_mode()
def values(detector: Detector, names: Sequence[str], outputs: Outputs) -> list[Tensor]:
    """Return the values (B,) of single scores."""
    return expressions.values(names, outputs.logits, outputs.features, detector.ensemble.fitted)


def log_probs(detector: Detector, logits: Tensor) -> Tensor:
    """Aggregate the members' logits: (M, B, C) -> (B, C)."""
    aggregated: Tensor = aggregates.AGGREGATES[detector.aggregate](logits)
    return aggregated
