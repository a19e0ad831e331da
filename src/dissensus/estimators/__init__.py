"""Estimators that follow scikit-learn's contract."""

from dissensus.estimators.classifier import DissensusClassifier

__all__ = ["DissensusClassifier"]
