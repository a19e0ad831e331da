"""Saved evaluations: what is saved is loaded, and every damage is one line."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from dissensus._core.errors import RunError
from dissensus.evaluation import saved
from dissensus.evaluation._evaluate import measure, predict_sets
from dissensus.evaluation.examples import find_examples
from dissensus.evaluation.outcomes import Curve, Outcome
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.images import ImageSet
from dissensus.training._fit import fit
from dissensus.training.run import Run
from tests.conftest import blobs, linear
from tests.damage import damages

CLASSES = ("a", "b", "c")


@pytest.fixture(scope="module")
def pictured(sets):
    random = np.random.default_rng(0)
    images = [ImageSet.from_arrays(random.integers(0, 255, (len(s.features), 6, 6), dtype=np.uint8)) for s in sets]
    return [dataclasses.replace(s, images=own) for s, own in zip(sets, images, strict=True)]


@pytest.fixture
def folder(tmp_path, ensemble, pictured):
    predictions = predict_sets(ensemble, pictured, score_names=["pds"], progress=False)
    frame = measure(pictured, predictions, {"run": "mine"})
    saved.save(tmp_path, frame, pictured, predictions, suite="clouds", classes=CLASSES, inputs="digest")
    return tmp_path


def test_what_is_saved_is_loaded(folder, ensemble, pictured):
    evaluation = saved.load(folder)
    predictions = predict_sets(ensemble, pictured, score_names=["pds"], progress=False)
    pd.testing.assert_frame_equal(evaluation.frame, measure(pictured, predictions, {"run": "mine"}), check_dtype=False)
    assert (evaluation.about.suite, evaluation.about.classes, evaluation.about.inputs) == ("clouds", CLASSES, "digest")
    assert [(s.name, s.role, s.family, s.count) for s in evaluation.about.sets][1] == ("noisy-1", "shift", "noisy", 120)
    for name, expected in predictions.items():
        found = evaluation.predictions(name)
        assert torch.equal(found.votes, expected.votes)
        assert torch.equal(found.prediction, expected.prediction)
        assert torch.allclose(found.scores["pds"], expected.scores["pds"].float())
        assert (found.labels is None) == (expected.labels is None)


def test_examples_are_the_most_and_least_divergent(ensemble, pictured):
    (noisy,) = [s for s in pictured if s.name == "noisy-5"]
    predictions = predict_sets(ensemble, [pictured[0], noisy], progress=False)["noisy-5"]
    found = find_examples(noisy, predictions, CLASSES)
    pds = predictions.scores["pds"]
    assert found["most"][0].pds == pytest.approx(float(pds.max()), abs=1e-4)
    assert found["least"][0].pds == pytest.approx(float(pds.min()), abs=1e-4)
    first = found["most"][0]
    row = int(pds.argmax())
    assert first.place == f"noisy-5/{noisy.images.names[row]}"
    assert first.votes == tuple(CLASSES[vote] for vote in predictions.votes[:, row].tolist())
    assert sum(count for _, count in first.tally) == len(ensemble)
    assert find_examples(dataclasses.replace(noisy, images=None), predictions, CLASSES) == {}


def test_a_name_that_is_not_unicode_is_saved_readably(tmp_path, ensemble, sets):
    names = [os.fsdecode(b"caf\xe9 %d" % i) for i in range(120)]
    images = ImageSet.from_arrays(np.zeros((120, 6, 6), np.uint8), names=names)
    inside = [dataclasses.replace(sets[0], images=images)]
    predictions = predict_sets(ensemble, inside, score_names=["pds"], progress=False)
    saved.save(tmp_path, measure(inside, predictions), inside, predictions, suite="x", classes=CLASSES)
    assert saved.load(tmp_path).about.sets[0].examples["most"][0].place.startswith("id/caf\\udce9 ")


def test_a_run_is_evaluated_with_its_own_classes_and_keeps_what_is_asked(tmp_path, sets):
    ensemble = linear()
    fit(ensemble, blobs(), "sed-a2d", epochs=1, out=tmp_path / "run", progress=False)
    run = Run.open(tmp_path / "run")
    frame = saved.evaluate_run(run, ensemble, sets, suite="x", keep="nothing", progress=False)
    assert set(frame["run"]) == {"run"}
    assert not saved.is_saved(run.folder)
    saved.evaluate_run(run, ensemble, sets, suite="x", progress=False)
    assert saved.is_saved(run.folder, predictions=True)
    saved.evaluate_run(run, ensemble, sets, suite="x", keep="values", progress=False)
    assert saved.is_saved(run.folder)
    assert not saved.is_saved(run.folder, predictions=True)
    with pytest.raises(RunError, match=r"there is no file .*set-00\.safetensors: evaluate the run again"):
        saved.load(run.folder).predictions("id")


def refused(path: Path, load: Callable[[], object]) -> bool:
    """Whether loading raises; then with one line that names the file."""
    try:
        load()
    except RunError as error:
        message = str(error)
    else:
        return False
    assert "\n" not in message
    assert message.startswith(f"{path} is damaged or of another version")
    assert len(message) < 400 + len(str(path))
    return True


def test_every_damage_of_the_document_is_one_line(folder, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    path = folder / "evaluation" / "evaluation.json"
    document = json.loads(path.read_text())
    del document["sha256"]
    for field, kind, text in damages(document):
        if field in ("inputs", "title", "sets.0.examples.least") and kind == "removed":
            continue  # they are optional
        path.write_text(text)
        if not refused(path, lambda: saved.load(folder)):  # any text, or fewer examples
            optional = (("most", "removed"), ("truth", "null"), ("predictions", "null"))
            assert kind == "unknown" or (field.rpartition(".")[2], kind) in optional


def test_every_damage_of_a_study_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    table = Table("t", ("m",), (Column("a", "x"),), (Row(("one",), (Value(1.0, 0.1, 3),)),), "note")
    curve = Curve("c", "x", "y", (1.0, 2.0), {"line": (Value(1.0), None)})
    path = tmp_path / "study.json"
    Outcome(study="s", paper="p", suite="x", summary="y", tables=(table,), curves=(curve,)).save(path)
    document = json.loads(path.read_text())
    del document["sha256"]
    seen = 0
    for field, kind, text in damages(document):
        path.write_text(text)
        if refused(path, lambda: Outcome.load(path)):
            seen += 1
        else:  # not a study, a field with a default, or any text
            outcome = Outcome.load(path)
            nullable = field in ("tables.0.rows.0.cells.0", "curves.0.lines.line.0")
            limit = field == "tables.0.columns.0.warn_above" and kind == "number"
            assert outcome is None or kind in ("removed", "unknown") or (kind == "null" and nullable) or limit
            assert outcome is None or (outcome.text() and outcome.markdown() and outcome.latex())
    assert seen > 100
