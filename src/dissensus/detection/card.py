"""The model card of a detector: the README.md of its folder on the hub, with the header that the hub reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from dissensus.detection.verdicts import NOTHING_UNUSUAL
from dissensus.evaluation import saved
from dissensus.evaluation.results import DETECTED, LABELLED, Results
from dissensus.evaluation.saved import Evaluation
from dissensus.functional.neighbours import KNN
from dissensus.training import adaptation
from dissensus.training.run import Run

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector
    from dissensus.detection.pretrained import HubDocument

SHOWN = 50  # class names; config.json has them all
TEMPLATE = Path(__file__).with_name("card.md")
TAGS = ["out-of-distribution-detection", "ensemble", "scalable-ensemble-diversification"]
# Metrics of the header: ours -> the hub's, and the roles of the sets that they are measured on.
METRICS = {"accuracy": ("accuracy", LABELLED), "auroc": ("roc_auc", DETECTED)}


def create(
    detector: Detector,
    config: HubDocument,
    *,
    repo_id: str,
    license: str | None = None,
    datasets: Sequence[str] = (),
) -> ModelCard:
    """Write the card of a detector; its numbers are those measured for the run that it was loaded from.

    Args:
        detector: The detector.
        config: What config.json says of it.
        repo_id: Its repository, OWNER/NAME.
        license: Of the weights, such as "mit"; None: the card says that there is none yet.
        datasets: Data sets on the hub that it was trained on.
    """
    title, about, run = repo_id.rpartition("/")[2], detector.backbone_info, detector.run
    evaluation = saved.load(run.folder) if run is not None and saved.is_saved(run.folder) else None
    results = [] if evaluation is None else _eval_results(evaluation, "tabular" if about is None else "image")
    data = ModelCardData(
        library_name="dissensus",
        license=license,
        pipeline_tag=None if about is None else "image-classification",
        tags=TAGS,
        datasets=list(datasets) or None,
        metrics=sorted({result.metric_type for result in results}) or None,
        model_name=title,
        eval_results=results or None,
    )
    width = (detector.ensemble.about or {}).get("features", "D")
    card: ModelCard = ModelCard.from_template(
        data,
        template_path=str(TEMPLATE),
        licensed=license is not None,
        repo_id=repo_id,
        title=title,
        members=len(detector.ensemble),
        trunk=", on features," if about is None else f" on the frozen trunk of {about['name']} at {about['size']} px",
        count=len(detector.classes),
        sample="a sample" if about is None else "an image",
        tail=_tail(detector),
        adapted="" if run is None else _adapted(run),
        version=config.version,
        input=f"features):  # (N, {width}) float32" if about is None else '["photo.jpg"]):',
        classes=_classes(detector.classes),
        calibration=_calibration(detector),
        fitted=_fitted(detector),
        measured=_measured(evaluation),
        training=_training(config.training),
    )
    return card


def _eval_results(evaluation: Evaluation, kind: str) -> list[EvalResult]:
    """Return accuracy and AUROC by family of sets, as the hub's header has them."""
    results, suite = Results(evaluation.frame), " ".join(evaluation.about.suite.split())
    found = []
    for name, (metric, roles) in METRICS.items():
        by = {"aggregate": "prediction"} if roles is LABELLED else {"score": results.headline}
        for family in results.families(*roles):
            if (value := results.value(results.rows[0], family, name, **by)) is not None:
                found.append(
                    EvalResult(
                        task_type=f"{kind}-classification",
                        dataset_type=re.sub(r"[^\w.-]+", "-", suite),
                        dataset_name=f"{suite}: {family}",
                        dataset_config=family,
                        metric_type=metric,
                        metric_name=" ".join([name, *by.values()]),
                        metric_value=round(value.mean, 4),
                    )
                )
    return found


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
    document = adaptation.read(run)
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


def _measured(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "Nothing yet: the run was not evaluated before it was exported (`dissensus evaluate`)."
    table = Results(evaluation.frame).summary()
    cells = zip(table.columns, table.rows[0].cells, strict=True)
    rows = [(column.group, column.name, column.text(cell)) for column, cell in cells if cell is not None]
    return f"On the suite {_cell(evaluation.about.suite)}:\n\n" + _table(("measure", "set", "value"), rows)


def _training(settings: Mapping[str, Any]) -> str:
    if not settings:
        return "The settings are not known: the detector was not loaded from a run."
    return _table(("setting", "value"), [(key, _plain(value)) for key, value in settings.items()])


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
