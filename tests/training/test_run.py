"""The run folder: run.json is a checked document, a damaged one is one line that names the file and the field."""

from __future__ import annotations

import json
import platform

import pytest

from dissensus import __version__
from dissensus._core.errors import RunError
from dissensus.training import Run, fit
from tests import damage
from tests.commands import refuse
from tests.conftest import blobs, linear

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


def test_a_field_that_is_missing_is_named(folder, tmp_path):
    info = json.loads((folder / "run.json").read_text())
    for place in damage.places(info):
        if (place[0] == "versions" and len(place) > 1) or (place[:2] == ("data", "classes") and len(place) > 2):
            continue  # of any length
        assert str(place[-1]) in refused(tmp_path, damage.without(info, place)), place


def test_whatever_stands_in_a_field_is_read_or_one_line(folder, tmp_path):
    info = json.loads((folder / "run.json").read_text())
    for place in damage.places(info):
        for value in damage.WRONG:
            (tmp_path / "run.json").write_text(damage.replaced(info, place, value))
            line = ""
            try:
                Run.open(tmp_path)
            except RunError as error:
                line = str(error)
            assert "\n" not in line
            assert len(line) < 400 + len(str(tmp_path))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("settings", "lr"), -1, "settings: lr must be above 0; got -1"),
        (("settings", "epochs"), "ten", "settings: epochs must be a whole number; got 'ten'"),
        (("settings", "active"), None, "settings: active must be a whole number; got None"),
        (("settings", "wings"), 2, "settings: wings is not a setting"),
        (("data", "classes"), "cat", "data.classes: "),
        (("status",), "done", "status: input should be 'running' or 'finished', got 'done'"),
        (("format",), "dissensus-run-1", "format: input should be 'dissensus-run-2', got 'dissensus-run-1'"),
    ],
)
def test_a_wrong_value_is_named(place, value, message, folder, tmp_path):
    info = json.loads((folder / "run.json").read_text())
    assert message in refused(tmp_path, damage.replaced(info, place, value))


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
