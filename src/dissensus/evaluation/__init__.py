"""Evaluation: suites, one pass over a set, metrics of every aggregate and score, and tables of results."""

from dissensus.evaluation._evaluate import evaluate
from dissensus.evaluation.predictions import Predictions, predict
from dissensus.evaluation.results import Results
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.evaluation.tables import Table

__all__ = ["Predictions", "Results", "Suite", "SuiteSet", "Table", "evaluate", "predict"]
