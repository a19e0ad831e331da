"""The model card of a detector: the README.md of its folder on the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dissensus.detection.detector import Detector
from dissensus.detection.pretrained import HubDocument
from dissensus.evaluation import saved
from dissensus.evaluation.results import Results
from dissensus.training.run import Run

SHOWN = 50  # class names; config.json has them all

HEADER = """---
library_name: dissensus
# license: choose one that the weights and the training data allow
{pipeline}tags:
- out-of-distribution-detection
- ensemble
- scalable-ensemble-diversification
---
"""
IMAGES = """```python
from dissensus import Detector

detector = Detector.from_pretrained("OWNER/{title}")  # or the path of this folder
for verdict in detector.predict(["photo.jpg"]):
    print(verdict.name, verdict.class_name, verdict.verdict, verdict.p_value)
```
"""
FEATURES = """```python
from dissensus import Detector

detector = Detector.from_pretrained("OWNER/{title}")  # or the path of this folder
for verdict in detector.predict(features):  # (N, {width}) float32
    print(verdict.name, verdict.class_name, verdict.verdict, verdict.p_value)
```
"""


def text(detector: Detector, run: Run, config: HubDocument, *, title: str) -> str:
    """The card as Markdown with the hub's header; its numbers are those measured for the run."""
    images = detector.backbone_info is not None
    width = (detector.ensemble.about or {}).get("features", "D")
    parts = [
        HEADER.format(pipeline="pipeline_tag: image-classification\n" if images else ""),
        f"# {title}\n",
        f"An ensemble of {len(detector.ensemble)} members{_trunk(detector)} that predicts one of "
        f"{len(detector.classes)} classes and whether {'an image' if images else 'a sample'} is out of "
        f"distribution. Made by dissensus {config.version}.\n",
        "## Use\n",
        (IMAGES if images else FEATURES).format(title=title, width=width),
        "## Classes\n",
        _classes(detector.classes) + "\n",
        "## Calibration\n",
        _calibration(detector) + "\n",
        "## Measured\n",
        _measured(run) + "\n",
        "## Training\n",
        _table(("setting", "value"), [(key, _plain(value)) for key, value in config.training.items()]),
    ]
    return "\n".join(parts)


def _trunk(detector: Detector) -> str:
    about = detector.backbone_info
    if about is None:
        return ", on features,"
    return f" on the frozen trunk of {about['name']} at {about['size']} px"


def _classes(names: tuple[str, ...]) -> str:
    listed = ", ".join(_cell(name) for name in names[:SHOWN])
    more = len(names) - SHOWN
    return listed + (f", and {more:,} more: see `config.json`" if more > 0 else "")


def _calibration(detector: Detector) -> str:
    rule = detector.threshold
    if rule is None:
        return "Not calibrated: there are scores, but no p-values and no verdicts. Use `Detector.calibrate`."
    limits = rule.calibrated.thresholds(rule.false_alarms)
    where = "a threshold for each predicted class" if len(limits) > 1 else f"out above {float(limits[0]):.4g}"
    return f"Score `{rule.name}`, {where}. The promise: {rule.promise}."


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
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(value: str) -> str:
    """Text on one line, with Markdown's marks escaped."""
    plain = " ".join(value.split())
    for mark in "\\|`*_[]<>":
        plain = plain.replace(mark, "\\" + mark)
    return plain
