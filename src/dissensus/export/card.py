"""The model card of a detector: the README.md of its folder on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dissensus.adaptation import runs
from dissensus.detection.detector import Detector
from dissensus.detection.pretrained import HubDocument
from dissensus.detection.verdicts import NOTHING_UNUSUAL
from dissensus.evaluation import saved
from dissensus.evaluation.results import Results
from dissensus.functional.neighbours import KNN
from dissensus.training.run import Run

SHOWN = 50  # class names; config.json has them all
CARD = Path(__file__).with_name("card.md").read_text(encoding="utf-8")


def text(detector: Detector, run: Run, config: HubDocument, *, title: str) -> str:
    """The card as Markdown with the hub's header; its numbers are those measured for the run."""
    about = detector.backbone_info
    width = (detector.ensemble.about or {}).get("features", "D")
    return CARD.format(
        pipeline="" if about is None else "pipeline_tag: image-classification\n",
        title=title,
        members=len(detector.ensemble),
        trunk=", on features," if about is None else f" on the frozen trunk of {about['name']} at {about['size']} px",
        count=len(detector.classes),
        sample="a sample" if about is None else "an image",
        tail=_tail(detector),
        adapted=_adapted(run),
        version=config.version,
        input=f"features):  # (N, {width}) float32" if about is None else '["photo.jpg"]):',
        classes=_classes(detector.classes),
        calibration=_calibration(detector),
        fitted=_fitted(detector),
        measured=_measured(run),
        training=_table(("setting", "value"), [(key, _plain(value)) for key, value in config.training.items()]),
    )


def _classes(names: tuple[str, ...]) -> str:
    listed = ", ".join(_cell(name) for name in names[:SHOWN])
    more = len(names) - SHOWN
    return listed + (f", and {more:,} more: see `config.json`" if more > 0 else "")


def _tail(detector: Detector) -> str:
    about = detector.ensemble.about
    if about is None:
        return ""
    norm = f" with norm `{about['norm']}`" if "norm" in about else ""
    return f"Members are tails `{about['name']}`{norm}. "


def _adapted(run: Run) -> str:
    """What `adapt` did, and to what before; nothing for other runs."""
    document = runs.read(run)
    if document is None:
        return ""
    per_class = ", ".join(f"{_cell(name)} {count}" for name, count in document.per_class.items())
    earlier = "".join(f" Before that: {_cell(each)}." for each in document.before)
    summary = f"{document.summary[0].upper()}{document.summary[1:]}"
    return f"{_cell(summary)} ({per_class}), to hold where these are from.{earlier} "


def _fitted(detector: Detector) -> str:
    fitted = detector.ensemble.fitted
    if not fitted:
        return "There are no scores of features: the detector reads logits alone."
    names = ", ".join(f"`{name}`" for name in fitted)
    knn = fitted.get("knn")
    kept = f" `knn` keeps {len(knn.rows):,} training features as they are." if isinstance(knn, KNN) else ""
    return f"Scores that were fitted to the training features, in `ensemble/scores.safetensors`: {names}.{kept}"


def _calibration(detector: Detector) -> str:
    rule = detector.threshold
    if rule is None:
        return "Not calibrated: there are scores, but no p-values and no verdicts. Use `Detector.calibrate`."
    limits = rule.calibrated.thresholds(rule.false_alarms)
    where = "a threshold for each predicted class" if len(limits) > 1 else f"out above {float(limits[0]):.4g}"
    return (
        f"Score `{rule.name}`, {where}. The promise: {rule.promise}. A sample that is not called out has the verdict "
        f"`{NOTHING_UNUSUAL}`: its score is like those of ID samples, which does not prove that it is one."
    )


def _measured(run: Run) -> str:
    if not saved.is_saved(run.folder):
        return "Nothing yet: the run was not evaluated before it was exported (`dissensus evaluate`)."
    evaluation = saved.load(run.folder)
    table = Results(evaluation.frame).summary()
    cells = zip(table.columns, table.rows[0].cells, strict=True)
    rows = [(column.group, column.name, column.text(cell)) for column, cell in cells if cell is not None]
    return f"On the suite {_cell(evaluation.about.suite)}:\n\n" + _table(("measure", "set", "value"), rows)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in value.items())
    return "none" if value is None else str(value)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(map(_cell, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: str) -> str:
    """Text on one line, with Markdown's marks escaped."""
    return re.sub(r"([\\|`*_\[\]<>])", r"\\\1", " ".join(value.split()))
