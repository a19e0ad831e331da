"""Folders for the hub: whatever stands in config.json, reading it gives a detector or one line."""

from __future__ import annotations

import json

from dissensus import backbones
from dissensus._core.errors import RunError
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet, extract
from dissensus.training import new_ensemble
from dissensus.training._fit import fit
from tests.damage import damages
from tests.detection.test_image_ensemble import photos

# Informative or optional: a detector may be read whatever they say, as long as it is JSON of the right kind.
FREE = (
    "library_name",
    "training",
    "trained_on",
    "version",
    "classes.0",
    "backbone.tail",
    "backbone.weights",
    "backbone.engine",
)


def test_every_damage_of_the_config_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    backbone = backbones.create("test_vit", "random", size=32)
    features = extract(photos(), backbone, tmp_path / "features", workers=0, progress=False)
    fit(new_ensemble(features, 2), features, "deep-ensemble", epochs=1, out=tmp_path / "run", progress=False)
    detector = Detector.load(tmp_path / "run")
    detector.calibrate(FeatureSet.open(tmp_path / "features").rows(slice(None)), 0.2).save(tmp_path / "run")
    detector.save_pretrained(tmp_path / "mine")
    path = tmp_path / "mine" / "config.json"
    document = json.loads(path.read_text())
    del document["sha256"]
    document["training"] = {"epochs": 1}
    for field, kind, text in damages(document):
        path.write_text(text)
        try:
            Detector.from_pretrained(tmp_path / "mine")
        except RunError as error:
            message = str(error)
            assert "\n" not in message, (field, kind)
            assert str(tmp_path / "mine") in message, (field, kind)
            assert "export it again" in message, (field, kind)
            assert len(message) < 500 + 3 * len(str(tmp_path))
            missing = "the fitted scores" if field.startswith("scores.") else f"{field}: field required"
            assert kind != "removed" or missing in message
        else:
            assert kind != "deep"
            assert field.startswith(FREE) or (field, kind) == ("backbone.squash", "removed"), (field, kind)
