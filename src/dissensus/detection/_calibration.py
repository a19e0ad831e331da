"""The calibration of a detector: from ID samples to a threshold."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dissensus._core.errors import DataError, DissensusWarning
from dissensus.detection import _predicting
from dissensus.detection.samples import Samples, resolve
from dissensus.detection.threshold import HeldOut, Threshold
from dissensus.features import FeatureSet
from dissensus.functional import comparisons, expressions

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector


def threshold(
    detector: Detector,
    samples: Samples,
    false_alarms: float,
    score: str | Sequence[str] | None,
    by_class: bool,
    progress: bool,
) -> Threshold:
    """Return the threshold for `Detector.calibrate`, which documents the arguments, errors and the warning."""
    alone = expressions.default_score(detector.ensemble.fitted, alone=True)
    names, weights = expressions.choose(score, detector.ensemble.fitted)
    resolved = resolve(samples)
    expressions.check_count(names[:1] if score is None else names, len(resolved.source), false_alarms)
    if isinstance(resolved.source, FeatureSet) and resolved.source.passes > 1:
        raise DataError(
            f"calibration needs each image once, as in use; these features are {resolved.source.passes} augmented "
            "passes: extract them without --augment"
        )
    if detector.was_trained_on(resolved.source):
        warnings.warn(
            "calibration needs ID samples that were not trained on; these are the training data, on which members "
            "agree most: there will be more false alarms than allowed",
            DissensusWarning,
            stacklevel=3,
        )
    computed = names if score is not None else tuple(dict.fromkeys([*names, alone]))
    parts, labels, differing = list[Tensor](), list[Tensor](), list[Tensor]()
    for outputs in detector.members.outputs(resolved, progress):
        parts.append(torch.stack([value.float() for value in _predicting.values(detector, computed, outputs)]))
        labels.append(_predicting.log_probs(detector, outputs.logits).argmax(-1).cpu())
        differing.append(comparisons.disagreement(outputs.logits.argmax(-1)).cpu())
    held_out = HeldOut(torch.cat(labels), torch.cat(differing))
    by_name = dict(zip(computed, torch.cat(parts, 1), strict=True))
    by_label = held_out.labels if by_class else None
    try:
        chosen = {name: by_name[name] for name in names}
        found = Threshold.calibrate(chosen, false_alarms, by_label, detector.classes, weights=weights)
    except DataError:  # too few samples
        if score is not None or len(names) == 1:
            raise
        chosen = {alone: by_name[alone]}  # half as many are enough for one score
        found = Threshold.calibrate(chosen, false_alarms, by_label, detector.classes)
    return replace(found, held_out=held_out)
