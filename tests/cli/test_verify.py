"""Whatever is read is compared with its checksum: an altered file is one line, --no-verify uses it as it is."""

from __future__ import annotations

import json
import os

import pytest

from dissensus.detection.detector import Detector
from dissensus.training._fit import fit
from tests.commands import refuse, run
from tests.conftest import blobs, linear
from tests.features.samples import flip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A calibrated run and features with labels."""
    root = tmp_path_factory.mktemp("verify")
    fit(linear(), blobs(), "deep-ensemble", epochs=2, out=root / "run", progress=False)
    Detector.load(root / "run").calibrate(blobs(200, seed=7), 0.1).save(root / "run")
    blobs(60).save(root / "features")
    return root


COMMANDS = {
    "evaluate": ["evaluate", "run", "--id", "features", "--no-keep", "--no-progress"],
    "predict": ["predict", "run", "features", "--no-progress"],
    "calibrate": ["calibrate", "run", "--id", "features", "--false-alarms", "0.2"],
    "train": ["train", "features", "--epochs", "1", "--out", "new", "--no-progress"],
}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("evaluate", "features/metadata/metadata_00000.parquet"),
        ("evaluate", "run/ensemble/ensemble.safetensors"),
        ("train", "features/metadata/metadata_00000.parquet"),
        ("calibrate", "features/img_emb/img_emb_00000.npy"),
        ("predict", "features/img_emb/img_emb_00000.npy"),
        ("predict", "run/detector-*.safetensors"),
    ],
)
def test_an_altered_file_is_one_line(name, file, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    file = next(folder.glob(file)).relative_to(folder).as_posix()
    whole = (folder / file).read_bytes()
    flip(folder / file, len(whole) // 2 if file.endswith("parquet") else -1)
    try:
        line = refuse(capsys, *COMMANDS[name])
    finally:
        (folder / file).write_bytes(whole)
    assert line.startswith(f"a file must be as written; {file} is altered, its sha256 differs: ")


def test_a_changed_rate_of_false_alarms_is_used_on_request_only(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    path = folder / "run" / "detector.json"
    whole = path.read_text()
    path.write_text(whole.replace('"false_alarms": 0.1', '"false_alarms": 0.9'))
    (folder / "c.yaml").write_text("verify: false")
    try:
        line = refuse(capsys, *COMMANDS["predict"])
        assert line.startswith("run/detector.json is altered, its sha256 differs from what was written: ")
        assert "calibrate again" in line
        assert line.endswith("or add --no-verify to use it as it is")
        for flag in (["--no-verify"], ["--config", "c.yaml"]):
            code, out, err = run(capsys, *COMMANDS["predict"], "--format", "jsonl", *flag)
            assert code == 0, err
            verdicts = [json.loads(text)["verdict"] for text in out.splitlines()]
            assert verdicts.count("out") > 40, "nine in ten"
    finally:
        path.write_text(whole)
    assert "DISSENSUS_VERIFY" not in os.environ


def test_the_flag_is_in_the_help_of_commands_that_read(capsys):
    assert "--no-verify" in run(capsys, "serve", "--help")[1]
    assert "--no-verify" not in run(capsys, "list", "--help")[1]
    assert "unknown argument '--no-verify'" in refuse(capsys, "list", "methods", "--no-verify")
