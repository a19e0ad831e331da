"""Dissensus: diverse ensembles on frozen backbones.

>>> from dissensus import Ensemble, FeatureSet, fit, suites, tails
>>> from dissensus.evaluate import evaluate
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dissensus import aggregate, backbones, metrics, objectives, scores, suites, tables, tails
    from dissensus.detector import Detector
    from dissensus.ensemble import Ensemble
    from dissensus.errors import DissensusError
    from dissensus.estimator import DissensusClassifier
    from dissensus.evaluate import Suite, SuiteSet
    from dissensus.features import FeatureSet, FeatureWriter
    from dissensus.image_ensemble import ImageEnsemble
    from dissensus.images import ImageSet
    from dissensus.methods import METHODS
    from dissensus.scores import SCORES
    from dissensus.train import fit

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
    "Suite",
    "SuiteSet",
    "__version__",
    "aggregate",
    "backbones",
    "fit",
    "metrics",
    "objectives",
    "scores",
    "suites",
    "tables",
    "tails",
]

# Loaded when first asked for: `dissensus --help` should not wait for PyTorch.
_MODULES = ("aggregate", "backbones", "metrics", "objectives", "scores", "suites", "tables", "tails")
_HOMES = {
    "METHODS": "methods",
    "SCORES": "scores",
    "Detector": "detector",
    "DissensusClassifier": "estimator",
    "DissensusError": "errors",
    "Ensemble": "ensemble",
    "FeatureSet": "features",
    "FeatureWriter": "features",
    "ImageEnsemble": "image_ensemble",
    "ImageSet": "images",
    "Suite": "evaluate",
    "SuiteSet": "evaluate",
    "fit": "train",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dissensus.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dissensus' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dissensus.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
