"""The run folder: run.json is a checked document, a damaged one is one line that names the file and the field."""

from __future__ import annotations

import json
import platform

import pytest

from dissensus import __version__
from dissensus._core.errors import RunError
from dissensus.training import Run, fit
from tests.commands import refuse
from tests.conftest import blobs, linear
from tests.damage import damages

QUICK = {"epochs": 1, "batch_size": 64, "progress": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    fit(linear(), blobs(), **QUICK, out=out)
    return out


def refused(folder, text: str) -> str:
    """The one line about a run folder with this run.json."""
    (folder / "run.json").write_text(text)
    with pytest.raises(RunError) as caught:
        Run.open(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder / "run.json") in line
    assert len(line) < 400 + len(str(folder))
    return line


def test_settings_data_and_versions_are_recorded(folder):
    info = json.loads((folder / "run.json").read_text())
    assert info["status"] == "finished"
    assert info["settings"]["method"] == "sed-a2d"
    assert info["data"]["classes"] == ["0", "1", "2"]
    assert info["versions"]["dissensus"] == __version__
    assert info["versions"]["python"] == platform.python_version()
    assert {"resume", "log_every", "member_epochs"}.isdisjoint(info["settings"]), "they do not decide the result"


def test_every_damage_is_one_line_that_names_the_field(folder, tmp_path):
    info = json.loads((folder / "run.json").read_text())
    for field, what, text in damages(info):
        (tmp_path / "run.json").write_text(text)
        line = ""
        try:
            Run.open(tmp_path)
        except RunError as error:
            line = str(error)
        assert "\n" not in line, (field, what)
        assert len(line) < 400 + len(str(tmp_path)), (field, what)
        if what == "removed" and not field.startswith("versions."):
            assert field.split(".")[-1] in line


@pytest.mark.parametrize(
    ("part", "field", "value", "message"),
    [
        ("settings", "lr", -1, "settings: lr must be above 0; got -1"),
        ("settings", "epochs", "ten", "settings: epochs must be a whole number; got 'ten'"),
        ("settings", "active", None, "settings: active must be a whole number; got None"),
        ("settings", "wings", 2, "settings: wings is not a setting"),
        ("data", "classes", "cat", "data.classes: "),
        (None, "status", "done", "status: input should be 'running' or 'finished', got 'done'"),
        (None, "format", "dissensus-run-2", "format: input should be 'dissensus-run-3', got 'dissensus-run-2'"),
    ],
)
def test_a_wrong_value_is_named(part, field, value, message, folder, tmp_path):
    info = json.loads((folder / "run.json").read_text())
    (info if part is None else info[part])[field] = value
    assert message in refused(tmp_path, json.dumps(info))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", "[" * 100_000])
def test_what_is_no_document_is_one_line(text, tmp_path, capsys):
    refused(tmp_path, text)
    line = refuse(capsys, "evaluate", tmp_path, "--suite", "digits")
    assert "give the folder that dissensus train wrote" in line


def test_damaged_metrics_name_the_line(tmp_path):
    fit(linear(), blobs(), **QUICK, out=tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    whole = path.read_text().splitlines()
    run = Run.open(tmp_path / "run")
    path.write_text("\n".join([*whole, whole[0][:9]]))
    assert len(list(run.metrics())) == len(whole), "a line cut short by a kill is left out"
    for damaged in ("{}", "5", '{"kind": "step"}', whole[0].replace('"loss": ', '"loss": "much", "x": '), "\udcff"):
        path.write_text("\n".join([damaged, *whole]), errors="surrogateescape")
        with pytest.raises(RunError, match=r"metrics.jsonl is damaged in line 1, [^\n]+: train again"):
            list(run.metrics())
