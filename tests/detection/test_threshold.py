"""Thresholds on disk: what is written is read, and damaged files raise one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from dissensus._core import documents
from dissensus._core.errors import RunError
from dissensus.detection.detector import Detector
from dissensus.detection.threshold import TENSORS, Identity, Threshold
from dissensus.training._fit import fit
from tests.commands import refuse
from tests.conftest import blobs, linear
from tests.damage import damages

IDENTITY = Identity(ensemble="a", backbone=None, scores={})


def calibrated(by_class: bool = False) -> Threshold:
    values = {"pds": torch.arange(100.0), "bma": torch.arange(100.0) ** 2}
    labels = torch.arange(100) % 2 if by_class else None
    return Threshold.calibrate(values, 0.1, labels, ["cat", "dog"])


def test_repr_states_the_rule():
    assert repr(calibrated()) == "Threshold(out if pds+bma > 4.28; 10% false alarms, n = 50)"
    by_class = Threshold.calibrate({"pds": torch.arange(100.0)}, 0.05, torch.arange(100) % 2, ["cat", "dog"])
    assert repr(by_class) == "Threshold(out if pds > 96 to 97 by predicted class; 5% false alarms, n = 100)"


def test_what_is_saved_is_loaded(tmp_path):
    for by_class in (False, True):
        threshold = calibrated(by_class)
        threshold.save(tmp_path, IDENTITY)
        again = Threshold.load(tmp_path, IDENTITY)
        assert (again.scores, again.false_alarms) == (threshold.scores, threshold.false_alarms)
        for name in ("references", "calibrated"):
            one, other = getattr(threshold, name), getattr(again, name)
            one, other = (one, other) if name == "references" else (one.values, other.values)
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert Threshold.load(tmp_path / "elsewhere", IDENTITY) is None


@pytest.mark.parametrize(("call", "kept"), [(1, "former"), (2, "former"), (3, "new")])
def test_a_kill_while_saving_leaves_the_former_calibration_or_the_new_one(tmp_path, monkeypatch, call, kept):
    former, new, seen = calibrated(), calibrated(by_class=True), []
    former.save(tmp_path, IDENTITY)

    def killed(original):
        def function(*args, **options):
            seen.append(None)
            if len(seen) == call:
                raise KeyboardInterrupt
            return original(*args, **options)

        return function

    with monkeypatch.context() as patch:  # what changes the folder: two files are moved, one is removed
        patch.setattr(os, "replace", killed(os.replace))
        patch.setattr(Path, "glob", killed(Path.glob))
        with pytest.raises(KeyboardInterrupt):
            new.save(tmp_path, IDENTITY)
    there = Threshold.load(tmp_path, IDENTITY)
    assert there.calibrated.by_class == (kept == "new")
    new.save(tmp_path, IDENTITY)
    assert Threshold.load(tmp_path, IDENTITY).calibrated.by_class
    assert len(list(tmp_path.iterdir())) == 2


def test_a_reader_meets_a_calibration_that_is_replaced(tmp_path, monkeypatch):
    calibrated().save(tmp_path, IDENTITY)
    original = documents.read

    def replaced(*args, **options):
        document = original(*args, **options)
        monkeypatch.setattr(documents, "read", original)
        calibrated(by_class=True).save(tmp_path, IDENTITY)
        return document

    monkeypatch.setattr(documents, "read", replaced)
    assert Threshold.load(tmp_path, IDENTITY).calibrated.by_class


def test_every_damage_of_the_document_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    calibrated().save(tmp_path, IDENTITY)
    path = tmp_path / "detector.json"
    document = json.loads(path.read_text())
    del document["sha256"]
    for field, kind, text in damages(document):
        path.write_text(text)
        with pytest.raises(RunError) as caught:
            Threshold.load(tmp_path, IDENTITY)
        message = str(caught.value)
        assert "\n" not in message, (field, kind)
        assert str(tmp_path) in message
        assert message.endswith(f"calibrate again: dissensus calibrate {tmp_path} --id SAMPLES"), (field, kind)
        assert len(message) < 400 + 3 * len(str(tmp_path))
        assert kind != "removed" or f"{field}: field required" in message


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("calibration.0"),
        lambda tensors: tensors.pop("reference.1"),
        lambda tensors: tensors.update({"calibration.0": torch.zeros(50, 2)}),
        lambda tensors: tensors.update({"calibration.0": torch.zeros(50, dtype=torch.long)}),
        lambda tensors: tensors.update({"reference.0": torch.full((50,), torch.nan)}),
        lambda tensors: tensors.update({"calibration.0": torch.zeros(3)}),
    ],
    ids=["no scores", "no reference", "matrix", "integers", "nan", "too few"],
)
def test_every_damage_of_the_tensors_is_one_line(tmp_path, change, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    from dissensus._core import tensors

    calibrated().save(tmp_path, IDENTITY)
    (path,) = tmp_path.glob(TENSORS)
    values = tensors.read(path, remedy="")
    change(values)
    tensors.write(path, values)
    with pytest.raises(RunError, match=r"detector-.*\.safetensors.*calibrate again") as caught:
        Threshold.load(tmp_path, IDENTITY)
    assert "\n" not in str(caught.value)


def test_the_command_refuses_a_damaged_calibration(tmp_path, capsys):
    run = tmp_path / "run"
    fit(linear(), blobs(), "deep-ensemble", epochs=1, out=run, progress=False)
    Detector.load(run).calibrate(blobs(400, seed=7)).save(run)
    blobs(9).save(tmp_path / "features")
    path = run / "detector.json"
    document = json.loads(path.read_text())
    for field, kind, text in damages(document):
        path.write_text(text)
        message = refuse(capsys, "predict", run, tmp_path / "features")
        assert "calibrate again" in message, (field, kind)
    path.write_text(json.dumps(document))
    (tensors,) = run.glob(TENSORS)
    tensors.write_bytes(b"\xff" * 100)
    assert f"{tensors.name} is damaged" in refuse(capsys, "predict", run, tmp_path / "features")


def test_parts_are_the_p_values_of_each_score_among_its_references():
    generator = torch.Generator().manual_seed(0)
    values = {"pds": torch.randn(60, generator=generator), "knn": torch.rand(60, generator=generator)}
    threshold = Threshold.calibrate(values, 0.1, weights=(2.0, 1.0))
    new = [torch.tensor([-9.0, 0.1, 50.0]), torch.tensor([0.5, 0.5, 0.0])]
    parts = threshold.parts(new)
    assert parts.shape == (2, 3)
    for part, reference, value in zip(parts, threshold.references, new, strict=True):
        expected = [(1 + sum(float(r) >= float(v) for r in reference)) / (len(reference) + 1) for v in value]
        assert part.tolist() == pytest.approx(expected)
    assert parts[0, 2] == 1 / 31
    assert Threshold.calibrate({"pds": values["pds"]}, 0.1).parts(new[:1]) is None
