"""Dissensus: diverse ensembles on frozen backbones.

>>> from dissensus import Ensemble, FeatureSet, fit, suites, tails
>>> from dissensus import evaluate
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dissensus import backbones, suites
    from dissensus._core.errors import DissensusError
    from dissensus.detection.detector import Detector
    from dissensus.detection.image_ensemble import ImageEnsemble
    from dissensus.estimators.classifier import DissensusClassifier
    from dissensus.evaluation._evaluate import evaluate
    from dissensus.evaluation.results import Results
    from dissensus.evaluation.suite import Suite, SuiteSet
    from dissensus.features import FeatureSet, FeatureWriter, extract
    from dissensus.functional import aggregates, losses, metrics, scores
    from dissensus.functional.scores import SCORES
    from dissensus.images import ImageSet
    from dissensus.models import Ensemble, tails
    from dissensus.training._fit import fit
    from dissensus.training.methods import METHODS

__all__ = [
    "METHODS",
    "SCORES",
    "Detector",
    "DissensusClassifier",
    "DissensusError",
    "Ensemble",
    "FeatureSet",
    "FeatureWriter",
    "ImageEnsemble",
    "ImageSet",
    "Results",
    "Suite",
    "SuiteSet",
    "__version__",
    "aggregates",
    "backbones",
    "evaluate",
    "extract",
    "fit",
    "losses",
    "metrics",
    "scores",
    "suites",
    "tails",
]

# Loaded when first asked for: `dissensus --help` should not wait for PyTorch.
_MODULES = {
    "aggregates": "functional.aggregates",
    "backbones": "backbones",
    "losses": "functional.losses",
    "metrics": "functional.metrics",
    "scores": "functional.scores",
    "suites": "suites",
    "tails": "models.tails",
}
_HOMES = {
    "METHODS": "training.methods",
    "SCORES": "functional.scores",
    "Detector": "detection.detector",
    "DissensusClassifier": "estimators.classifier",
    "DissensusError": "_core.errors",
    "Ensemble": "models",
    "FeatureSet": "features",
    "FeatureWriter": "features",
    "ImageEnsemble": "detection.image_ensemble",
    "ImageSet": "images",
    "Results": "evaluation.results",
    "Suite": "evaluation.suite",
    "SuiteSet": "evaluation.suite",
    "evaluate": "evaluation._evaluate",
    "extract": "features",
    "fit": "training._fit",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dissensus.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dissensus' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dissensus.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
