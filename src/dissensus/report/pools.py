"""A run's predictions, pooled by family of sets: all corruptions of a severity are one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dissensus._core.errors import RunError
from dissensus.evaluation.saved import AGAIN, Evaluation
from dissensus.functional.metrics import threshold
from dissensus.report import numbers
from dissensus.report.numbers import Array

FLAT = 1e-9  # a score that varies less separates nothing


@dataclass
class Family:
    """The sets of one family as one."""

    name: str
    role: str  # id, shift, ood or groups
    sets: int = 0
    count: int = 0
    largest: int = 0  # samples of its largest set: corruptions show the same images again
    scores: dict[str, Array] = field(default_factory=dict)
    confidence: Array = field(default_factory=lambda: np.empty(0))
    correct: Array | None = None
    agreement: Array = field(default_factory=lambda: np.zeros((1, 1)))


def pool(evaluation: Evaluation) -> dict[str, Family]:
    """Every family of the run, the id set first, then in the suite's order."""
    families: dict[str, Family] = {}
    for s in sorted(evaluation.about.sets, key=lambda s: s.role != "id"):
        predictions = evaluation.predictions(s.name)
        if len(predictions) != s.count or not s.count:
            raise _damaged(evaluation, f"{s.name} has {len(predictions)} samples of {s.count}")
        if families and set(predictions.scores) != set(inside(families).scores):
            raise _damaged(evaluation, f"{s.name} has other scores than the id set")
        family = families.setdefault(s.family, Family(s.family, s.role))
        share = s.count / (family.count + s.count)
        family.agreement = (1 - share) * family.agreement + share * numbers.agreement(predictions.votes.numpy())
        family.sets, family.count = family.sets + 1, family.count + s.count
        family.largest = max(family.largest, s.count)
        for key, values in predictions.scores.items():
            family.scores[key] = np.concatenate([family.scores.get(key, np.empty(0)), values.double().numpy()])
        family.confidence = np.concatenate([family.confidence, predictions.confidence.double().numpy()])
        if predictions.labels is not None:
            right = (predictions.prediction == predictions.labels).double().numpy()
            family.correct = right if family.correct is None else np.concatenate([family.correct, right])
    return families


def _damaged(evaluation: Evaluation, reason: str) -> RunError:
    return RunError(f"{evaluation.folder} is damaged ({reason}): {AGAIN}")


def inside(families: dict[str, Family]) -> Family:
    """The id set."""
    return next(family for family in families.values() if family.role == "id")


@dataclass(frozen=True)
class Facts:
    """A run in a few numbers: shares above the threshold by score and family, constant scores, samples by family."""

    above: Mapping[tuple[str, str], float]
    constant: frozenset[str]
    counts: Mapping[str, int]


def facts(families: dict[str, Family]) -> Facts:
    """The threshold of every score on the id set, and the shares above it."""
    limits = {score: threshold(values) for score, values in inside(families).scores.items()}
    shares = {(s, f.name): numbers.above(f.scores[s], v) for s, v in limits.items() for f in families.values()}
    constant = [s for s in limits if all(float(np.ptp(f.scores[s])) < FLAT for f in families.values())]
    return Facts(shares, frozenset(constant), {f.name: f.largest for f in families.values()})
