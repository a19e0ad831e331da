"""Score files: the scores of an evaluated run, as other libraries read them.

    write(folder, sets, predictions, score, "openood")

Here a score is higher for samples that are more OOD. OpenOOD's `conf` is higher for ID samples, so it is the negative
score. In both formats OOD samples have the label -1.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dissensus._core import tensors
from dissensus._core.errors import DataError, DissensusError
from dissensus._core.files import check_folder, check_name
from dissensus._core.outputs import assembling
from dissensus._core.registry import Registry
from dissensus.evaluation.predictions import Predictions
from dissensus.evaluation.suite import SuiteSet

Writer = Callable[[Path, Sequence[SuiteSet], Mapping[str, Predictions], str], None]
SCORE_FILES: Registry[Writer] = Registry("format of score files")
"""Formats by name: functions of a folder, the sets, their predictions by name, and the score."""
COLUMNS = ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")
SPLITS = {"near": "nearood", "far": "farood"}  # OpenOOD's names of the means


def register(name: str) -> Callable[[Writer], Writer]:
    """Add the decorated function to SCORE_FILES."""

    def add(writer: Writer) -> Writer:
        SCORE_FILES.add(name, writer)
        return writer

    return add


def check(folder: Path, sets: Sequence[SuiteSet], form: str, score: str | None, known: Iterable[str]) -> None:
    """Raise if score files could not be written, before hours are spent on predictions.

    Args:
        folder: As for `write`, like `sets` and `form`.
        sets: Those to be evaluated.
        form: A name in `SCORE_FILES`.
        score: The score to be written; None: one that is always computed.
        known: The scores that will be computed.

    Raises:
        DissensusError: As `write`.
    """
    SCORE_FILES.check(form)
    check_folder(folder, "--scores-out")
    if not any(s.role == "ood" for s in sets):
        raise DataError("score files compare ood sets with the id set; there is no ood set: add one with --ood")
    for s in sets:
        check_name(s.name, "a set that gives its name to a file")
    known = list(known)
    if score is not None and score not in known:
        raise DissensusError(f"score {score!r} is not computed for this run; choose one of {', '.join(known)}")


def write(
    folder: Path, sets: Sequence[SuiteSet], predictions: Mapping[str, Predictions], score: str, form: str
) -> None:
    """Write the values of one score on every set into a new folder.

    Args:
        folder: The folder; it is created at once, when all files are written.
        sets: Those that were evaluated, one of them the id set.
        predictions: For every set, by its name.
        score: Which of the scores in the predictions.
        form: A name in `SCORE_FILES`.

    Raises:
        DissensusError: If the format is unknown, the folder is not empty, there is no ood set, the score was not
            computed, or a set's name cannot be that of a file.
    """
    check(folder, sets, form, score, predictions[sets[0].name].scores)
    with assembling(folder) as assembled:
        assembled.mkdir()
        SCORE_FILES[form](assembled, sets, predictions, score)


@register("openood")
def openood(folder: Path, sets: Sequence[SuiteSet], predictions: Mapping[str, Predictions], score: str) -> None:
    """scores/SET.npz with pred, conf and label; ood.csv with OpenOOD v1.5's metrics; fsood.csv for full spectrum."""
    (folder / "scores").mkdir()
    columns = {s.name: _columns(s, predictions[s.name], score) for s in sets}
    for name, (scores, labels, answers) in columns.items():
        np.savez(folder / "scores" / f"{name}.npz", pred=answers, conf=-scores, label=labels)
    inside = [columns[s.name] for s in sets if s.role == "id"]
    shifted = [columns[s.name] for s in sets if s.role == "shift" and s.inside]
    _write_csv(folder / "ood.csv", sets, columns, inside)
    if shifted:
        _write_csv(folder / "fsood.csv", sets, columns, [*inside, *shifted])


@register("pytorch-ood")
def pytorch_ood(folder: Path, sets: Sequence[SuiteSet], predictions: Mapping[str, Predictions], score: str) -> None:
    """SET.safetensors for each ood set: scores, labels, predictions of it and the id set, as OODMetrics takes them."""
    inside = next(_columns(s, predictions[s.name], score) for s in sets if s.role == "id")
    for s in sets:
        if s.role == "ood":
            pooled = _pooled([inside, _columns(s, predictions[s.name], score)])
            values = dict(zip(("scores", "labels", "predictions"), map(torch.from_numpy, pooled), strict=True))
            tensors.write(folder / f"{s.name}.safetensors", values)


def openood_metrics(
    scores: NDArray[np.float64], labels: NDArray[np.int64], answers: NDArray[np.int64]
) -> dict[str, float]:
    """Return the metrics of OpenOOD v1.5, as shares: (N,) scores, labels with -1 for OOD, predicted classes.

    FPR@95 is the share of ID samples called OOD at the highest threshold that finds 95% of the OOD samples, and the
    areas under the precision-recall curves are by the trapezoidal rule. `dissensus.metrics` differs in both.
    """
    from sklearn import metrics

    out = labels < 0
    found, caught, _ = metrics.roc_curve(out, scores, drop_intermediate=False)
    areas = []
    for positive, values in ((~out, -scores), (out, scores)):
        precision, recall, _ = metrics.precision_recall_curve(positive, values)
        areas.append(float(metrics.auc(recall, precision)))
    return {
        "FPR@95": float(found[np.argmax(caught >= 0.95)]),
        "AUROC": float(metrics.auc(found, caught)),
        "AUPR_IN": areas[0],
        "AUPR_OUT": areas[1],
        "ACC": float((answers == labels)[~out].mean()),
    }


def _write_csv(
    path: Path, sets: Sequence[SuiteSet], columns: Mapping[str, tuple[NDArray[Any], ...]], inside: Sequence[Any]
) -> None:
    """Write a row for each ood set, and after those of a family with several their mean, in percent."""
    families: dict[str, dict[str, dict[str, float]]] = {}
    for s in sets:
        if s.role == "ood":
            measured = openood_metrics(*_pooled([*inside, columns[s.name]]))
            families.setdefault(s.family or s.name, {})[s.name] = measured
    rows: list[tuple[str, Mapping[str, float]]] = []
    for family, measured_sets in families.items():
        rows += measured_sets.items()
        if family not in measured_sets:
            means = {key: float(np.mean([each[key] for each in measured_sets.values()])) for key in COLUMNS}
            rows.append((SPLITS.get(family, family), means))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["dataset", *COLUMNS])
        writer.writerows([name, *(f"{100 * row[key]:.6f}" for key in COLUMNS)] for name, row in rows)


def _columns(
    s: SuiteSet, predictions: Predictions, score: str
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Scores, labels and predicted classes (N,) of a set; labels are -1 if it is out of distribution."""
    scores = predictions.scores[score].double().numpy()
    known = None if s.role == "ood" else predictions.labels
    labels = np.full(len(scores), -1) if known is None else known.numpy()
    return scores, labels.astype(np.int64), predictions.prediction.numpy().astype(np.int64)


def _pooled(parts: Sequence[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    scores, labels, answers = (np.concatenate(each) for each in zip(*parts, strict=True))
    return scores, labels, answers
