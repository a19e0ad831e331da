"""One run in charts: histograms and ROC by score, reliability, agreement, #unique, training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dissensus.functional.metrics import threshold
from dissensus.report import charts, numbers
from dissensus.report.charts import Chart, Line
from dissensus.report.pools import FLAT, Family, inside
from dissensus.training.run import Run

EPOCHS = 200  # points of a training curve, at most


@dataclass(frozen=True)
class RunView:
    """What the page shows of one run."""

    name: str
    by_score: dict[str, list[Chart]]
    answers: list[Chart]  # calibration, agreement, #unique
    training: list[Chart]


def view(name: str, run: Run, families: dict[str, Family], scores: Sequence[str]) -> RunView:
    """All charts of a run; `scores` are those that can be chosen."""
    by_score = {score: by_one(score, families) for score in scores}
    return RunView(name, by_score, _answers(families), training(list(run.metrics())))


def by_one(score: str, families: dict[str, Family]) -> list[Chart]:
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


def training(log: Sequence[dict[str, Any]]) -> list[Chart]:
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
