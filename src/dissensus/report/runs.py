"""One run on the page: its predictions pooled by family of sets, what they say in numbers, and its charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dissensus._core.errors import RunError
from dissensus.evaluation.saved import AGAIN, Evaluation
from dissensus.functional.metrics import threshold
from dissensus.report import charts, numbers
from dissensus.report.charts import Chart, Line
from dissensus.report.numbers import Array
from dissensus.training.run import Run

FLAT = 1e-9  # a score that varies less separates nothing
EPOCHS = 200  # points of a training curve, at most


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
        damage = ""
        if len(predictions) != s.count:
            damage = f"{s.name} has {len(predictions)} samples of {s.count}"
        elif families and set(predictions.scores) != set(inside(families).scores):
            damage = f"{s.name} has other scores than the id set"
        if damage:
            raise RunError(f"{evaluation.folder} is damaged ({damage}): {AGAIN}")
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


def inside(families: dict[str, Family]) -> Family:
    """The id set."""
    return next(family for family in families.values() if family.role == "id")


@dataclass(frozen=True)
class Facts:
    """A run in a few numbers: shares above the threshold by score and family, constant scores, samples by family."""

    above: Mapping[tuple[str, str], float]
    constant: frozenset[str]
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()  # of its training


def facts(families: dict[str, Family], notes: Sequence[str] = ()) -> Facts:
    """The threshold of every score on the id set, and the shares above it."""
    limits = {score: threshold(values) for score, values in inside(families).scores.items()}
    shares = {(s, f.name): numbers.above(f.scores[s], v) for s, v in limits.items() for f in families.values()}
    constant = [s for s in limits if all(float(np.ptp(f.scores[s])) < FLAT for f in families.values())]
    return Facts(shares, frozenset(constant), {f.name: f.largest for f in families.values()}, tuple(notes))


def view(name: str, run: Run, families: dict[str, Family], scores: Sequence[str]) -> dict[str, Any]:
    """Return the name and all charts of a run; `scores` are those that can be chosen."""
    return {
        "name": name,
        "by_score": {score: _of_score(score, families) for score in scores},
        "answers": _answers(families),
        "training": _training(list(run.metrics())),
    }


def _of_score(score: str, families: dict[str, Family]) -> list[Chart]:
    """One score: a histogram for each family beside id, and the ROC curves of all."""
    inner = inside(families)
    others = [family for family in families.values() if family is not inner]
    pooled = np.concatenate([family.scores[score] for family in families.values()])
    if not others or float(np.ptp(pooled)) < FLAT:
        return []
    limit = threshold(inner.scores[score])
    drawn = []
    for other in others:
        values = {inner.name: inner.scores[score], other.name: other.scores[score]}
        caught = numbers.above(other.scores[score], limit)
        title = f"{score}: {inner.name} and {other.name}"
        drawn.append(charts.histogram(title, score, numbers.histogram(values), inner.name, other.name, limit, caught))
    curves = {other.name: numbers.roc(inner.scores[score], other.scores[score]) for other in others}
    return [*drawn, charts.rocs(f"ROC by {score}", curves)]


def _answers(families: dict[str, Family]) -> list[Chart]:
    inner = inside(families)
    labelled = {
        family.name: numbers.reliability(family.confidence, family.correct)
        for family in families.values()
        if family.correct is not None
    }
    drawn = [charts.reliability("Reliability: confidence against accuracy", labelled)]
    if len(inner.agreement) > 1:
        outside = [f for f in families.values() if f.role == "ood"] or [f for f in families.values() if f is not inner]
        for family in [inner, *outside[:1]]:
            drawn.append(charts.heat_map(f"Members that agree on {family.name}, %", family.agreement))
    if len(inner.agreement) > 1 and "unique" in inner.scores:
        counts = {name: float(family.scores["unique"].mean()) for name, family in families.items()}
        drawn.append(charts.bars("#unique: classes predicted per sample", "mean #unique", counts, low=1))
    return drawn


def _training(log: Sequence[dict[str, Any]]) -> list[Chart]:
    """Loss, disagreement, hardness and accuracy by epoch, where they were logged and are not all zero."""
    epochs = [line for line in log if line.get("kind") == "epoch"]
    if not epochs:
        return []
    chosen = sorted(set(np.linspace(0, len(epochs) - 1, min(len(epochs), EPOCHS)).astype(int).tolist()))
    kept = [epochs[i] for i in chosen]
    wanted = (
        ("Training loss", "loss", ("loss", "cross_entropy")),
        ("Disagreement term", "disagreement", ("disagreement",)),
        ("Hardness of samples", "hardness", ("hardness",)),
        ("Training accuracy", "accuracy", ("accuracy",)),
    )
    drawn = []
    for title, y_name, keys in wanted:
        lines = [
            Line(key.replace("_", " "), [e["epoch"] for e in kept], [_number(e.get(key)) for e in kept]) for key in keys
        ]
        lines = [line for line in lines if any(line.y)]
        if len(lines) == 2 and lines[0].y == lines[1].y:  # nothing was added to the cross-entropy
            lines = lines[1:]
        if lines:
            drawn.append(charts.lines(title, "epoch", y_name, lines))
    return drawn


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
