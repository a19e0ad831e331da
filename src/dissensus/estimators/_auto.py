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

AUTO = "auto"


def check(parameters: Mapping[str, Any]) -> None:
    """Raise for parameters that auto chooses itself."""
    defaults = {**{each.name: each.default for each in OPTIONS}, "norm": None, "tail": "linear", "score_name": None}
    for name, default in defaults.items():
        if parameters[name] != default:
            raise DissensusError(
                f"method auto chooses {name} itself; got {name}={parameters[name]!r}: leave it out, or name a method"
            )


def choose(
    features: FeatureSet, held_out: FeatureSet, members: int, seed: int, false_alarms: float
) -> tuple[Ensemble, Threshold]:
    """Return the chosen ensemble, trained on all features, and its threshold."""
    tuned = tune(features, held_out=held_out, members=members, seed=seed, false_alarms=false_alarms, progress=False)
    assert tuned.detector.threshold is not None
    return tuned.ensemble, tuned.detector.threshold
