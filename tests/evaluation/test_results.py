"""Results: means over sets of a family and over seeds, the tables made of them, files."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from dissensus._core.errors import DissensusError, RunError
from dissensus.evaluation import results
from dissensus.evaluation._evaluate import evaluate
from dissensus.evaluation.naming import name_runs
from dissensus.evaluation.results import Results
from dissensus.evaluation.tables import Table, Value
from dissensus.functional import aggregates, metrics
from tests.evaluation.conftest import value


def cell(table: Table, group: str, name: str, row: int = 0) -> Value:
    (place,) = [j for j, column in enumerate(table.columns) if (column.group, column.name) == (group, name)]
    found = table.rows[row].cells[place]
    assert found is not None
    return found


def test_the_summary_puts_id_accuracy_of_ensemble_and_members_before_any_auroc(frame):
    table = Results(frame).summary(score="pds")
    groups = [column.group for column in table.columns]
    assert [(c.group, c.name) for c in table.columns[:2]] == [("accuracy %", "id"), ("members %", "id")]
    assert groups.index("members %") < groups.index("AUROC pds")
    mean = (value(frame, dataset="noisy-1", score="pds", metric="auroc")
            + value(frame, dataset="noisy-5", score="pds", metric="auroc")) / 2  # fmt: skip
    assert cell(table, "AUROC pds", "noisy").mean == pytest.approx(mean)
    assert ("worst group %", "halves") in [(c.group, c.name) for c in table.columns]
    text = table.text(width=500)
    assert "sed-a2d" in text
    assert f"{100 * cell(table, 'accuracy %', 'id').mean:.1f}" in text
    assert len({len(line) for line in text.splitlines()}) == 1, "columns must line up"
    narrow = table.text(width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.count("method") > 1


def test_runs_that_differ_in_their_norm_have_rows_of_their_own():
    tail = {"name": "linear", "features": 6, "classes": 3}
    settings = [{"method": "sed-a2d", "seed": 0, "tail": {**tail, "norm": norm}} for norm in ("l2", "none")]
    assert name_runs(settings, ["a", "b"]) == [("sed-a2d norm=l2",) * 2, ("sed-a2d norm=none",) * 2]
    assert name_runs(settings[:1], ["a"]) == [("sed-a2d", "sed-a2d")]


def test_seeds_are_averaged_and_equal_methods_told_apart(frame):
    other = frame.assign(seed=1, value=frame["value"] + 0.1)
    both = Results(pd.concat([frame, other]))
    assert both.rows == ["sed-a2d"]
    assert both.seeds == {"sed-a2d": 2}
    alone = cell(Results(frame).summary(), "accuracy %", "id").mean
    assert cell(both.summary(), "accuracy %", "id") == Value(
        pytest.approx(alone + 0.05), pytest.approx(0.1 / 2**0.5), 2
    )
    weights = Results(pd.concat([frame, frame.assign(diversity=2.0)]))
    assert weights.rows == ["sed-a2d diversity=0.5", "sed-a2d diversity=2"]
    folders = Results(pd.concat([frame.assign(run="first"), frame.assign(run="second")]))
    assert folders.rows == ["sed-a2d (first)", "sed-a2d (second)"]
    mixed = Results(pd.concat([frame, frame.assign(method="single"), other]))
    assert mixed.rows == ["sed-a2d", "single"]


def test_tables_of_a_report_are_made_of_the_frame(frame):
    found = Results(frame)
    assert list(found.roles) == ["id", "noisy", "away", "halves"]
    quality = found.quality()
    assert [c.group for c in quality.columns if c.name == "id"] == [
        "accuracy %", "members %", "best member %", "NLL", "Brier", "ECE", "confidence %",
    ]  # fmt: skip
    assert cell(quality, "NLL", "halves").mean == value(frame, dataset="halves", aggregate="prediction", metric="nll")
    measured = [name for name, entry in aggregates.AGGREGATES.items() if not entry.pretrained]  # no backbone here
    assert [row.names[1] for row in found.by_aggregate().rows] == measured
    detection = found.detection("bma")
    assert cell(detection, "FPR95 %", "away").mean == value(frame, dataset="away", score="bma", metric="fpr95")
    assert "FPR95: Share of OOD samples" in detection.note
    assert [row.names[1] for row in found.by_score(["pds", "unique"]).rows] == ["pds", "unique"]
    assert {column.group for column in found.by_diversity().columns} == {"#unique", "PDS"}


def test_new_metrics_and_aggregates_are_in_every_table_that_they_concern(ensemble, sets, monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", metrics.METRICS.copy())
    monkeypatch.setattr(aggregates, "AGGREGATES", aggregates.AGGREGATES.copy())

    @metrics.register(heading="errors", better="lower", percent=True)
    def errors(correct):
        return float(1 - correct.mean())

    @metrics.register(heading="gap", better="higher", headline=False)
    def gap(id_scores, ood_scores):
        return float(ood_scores.mean() - id_scores.mean())

    @aggregates.register("largest logit", kind="logits")
    def largest(logits):
        return logits.amax(0).log_softmax(-1)

    found = Results(evaluate(ensemble, sets, progress=False))
    assert 0 <= cell(found.summary(), "errors %", "noisy").mean <= 1
    assert cell(found.quality(), "errors %", "id").mean < 0.5
    assert cell(found.detection("pds"), "gap", "away").mean != 0
    assert not any(column.group == "gap" for column in found.summary().columns)
    assert "largest" in [row.names[1] for row in found.by_aggregate().rows]
    assert "errors % id" in found.summary(aggregate="largest").markdown()


def test_files_by_suffix(frame, tmp_path):
    results.write(frame, tmp_path / "r.csv")
    back = results.read(tmp_path / "r.csv")
    pd.testing.assert_frame_equal(back, frame.reset_index(drop=True), check_dtype=False)
    results.write(frame, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())[0]["method"] == "sed-a2d"
    results.write(frame.head(3), tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text().startswith("| method")
    results.write(frame.head(3), tmp_path / "r.tex")
    assert r"\begin{tabular}" in (tmp_path / "r.tex").read_text()
    results.write(frame, tmp_path / "all.tex")
    assert r"worst\_group" in (tmp_path / "all.tex").read_text()
    with pytest.raises(DissensusError, match=r"written as \.csv"):
        results.write(frame, tmp_path / "r.xlsx")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match="not a table of results"):
        results.read(tmp_path / "other.csv")


def test_bad_calibration_is_one_sentence_for_all_rows_alike(frame):
    def scaled(row: str, confidence: float, ece: float) -> pd.DataFrame:
        changed = frame.assign(row=row)
        changed.loc[changed["metric"] == "mean_confidence", "value"] = confidence
        changed.loc[changed["metric"] == "ece", "value"] = ece
        changed.loc[changed["metric"] == "accuracy", "value"] = 0.8
        return changed

    both = Results(pd.concat([scaled("one", 0.6, 0.2), scaled("two", 0.5, 0.3), scaled("three", 0.8, 0.1)]))
    assert both.miscalibrated() == [
        "Badly calibrated on id: one, two (ECE 0.20 to 0.30). Confidence is on average 20 to 30 points below accuracy: "
        "use less label_smoothing, weight_decay or diversity, or train longer."
    ]
    run = {
        "method": "sed-a2d", "members": 4, "active": 2, "main": "active", "batch_size": 32, "samples": 100,
        "epochs": 1000, "diversity": 0.003, "label_smoothing": 0.0, "weight_decay": 1.0, "early_stop": 0.0,
        "tail": None,
    }  # fmt: skip
    (name,) = set(frame["run"])

    def advice(**changes: float) -> str:
        (sentence,) = Results(scaled("one", 0.6, 0.2), {name: run | changes}).miscalibrated()
        return sentence.partition("points below accuracy")[2]

    assert advice() == ": use less diversity."
    assert advice(label_smoothing=0.1) == ": use less label_smoothing or diversity."
    assert advice(label_smoothing=0.1, weight_decay=2.0) == ": use less label_smoothing, weight_decay or diversity."
    assert advice(epochs=1, diversity=0) == ": train longer."
    assert advice(epochs=1) == ": use less diversity, or train longer."
    assert advice(diversity=0.0) == (
        ", which no option of these runs explains. Thresholds are set on held-out samples, so their false-alarm rate "
        "does not depend on it."
    )
    (sentence,) = Results(scaled("sure", 1.0, 0.2), {name: run | {"early_stop": 0.1}}).miscalibrated()
    assert sentence.endswith("above accuracy: use more label_smoothing or weight_decay.")
    (sentence,) = Results(scaled("sure", 1.0, 0.2)).miscalibrated()
    assert "points above accuracy: use more label_smoothing" in sentence
    assert sentence in str(Results(scaled("sure", 1.0, 0.2)).summary()).replace("\n", " ")
