"""Method auto of the estimator: `tune` chooses how to train and which score to use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus._core.errors import DissensusError
from dissensus.adaptation import tune
from dissensus.detection.threshold import Threshold
from dissensus.estimators._options import OPTIONS
from dissensus.features import FeatureSet
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import AUTO

__all__ = ["AUTO", "check", "choose"]

CHOSEN = ("tail", "norm", "score_name", *(each.name for each in OPTIONS))


def check(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise for parameters that auto chooses itself, if they are not the defaults."""
    for name in CHOSEN:
        if parameters[name] != defaults[name]:
            raise DissensusError(
                f"method {AUTO} chooses {name} itself; got {name}={parameters[name]!r}: leave it out, or name a method"
            )


def choose(
    features: FeatureSet, held_out: FeatureSet, members: int, norm: str | None, seed: int, false_alarms: float
) -> tuple[Ensemble, Threshold]:
    """Return the chosen ensemble, trained on all features, and its threshold."""
    tuned = tune(
        features, held_out=held_out, members=members, norm=norm, seed=seed, false_alarms=false_alarms, progress=False
    )
    assert tuned.detector.threshold is not None
    return tuned.ensemble, tuned.detector.threshold
