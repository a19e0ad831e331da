"""Two commands do not write one output, and a kill leaves nothing behind that the same command does not clear up."""

from __future__ import annotations

import os

import pytest

from benchmarks.kills import CASES, Kill, Killing, contents
from dissensus._core.locks import locked
from tests.commands import refuse
from tests.forks import until

REFUSAL = "is being written by another command: wait for it, or"
# The first process waits before its work, and leaves a mark.
SLOW = """
import time
from dissensus.detection.detector import Detector
original = Detector.load
def load(*args, **options):
    time.sleep(1)
    return original(*args, **options)
Detector.load = load
"""
WRITERS = {
    "train": ("train", "{0}/features", "--out", "{1}/out"),
    "tune": ("tune", "{0}/features", "--held-out", "{0}/features", "--out", "{1}/out"),
    "demo": ("demo", "--out", "{1}/out"),
    "run": ("run", "--root", "{0}/images", "--out", "{1}/out"),
    "study": ("study", "active", "--suite", "digits", "--out", "{1}/out"),
    "calibrate": ("calibrate", "{1}/out", "--id", "nowhere"),
    "evaluate": ("evaluate", "{1}/out", "--id", "nowhere"),
    "evaluate --out": ("evaluate", "{0}/run", "--id", "nowhere", "--out", "{1}/out.csv"),
    "predict": ("predict", "nowhere", "{0}/images", "--out", "{1}/out.csv"),
    "export": ("export", "{0}/run", "--to", "hub", "--out", "{1}/out"),
    "adapt": ("adapt", "{0}/run", "--labelled", "nowhere", "--out", "{1}/out"),
    "ask": ("ask", "nowhere", "nowhere", "--out", "{1}/out.csv"),
    "ask --sheet": ("ask", "nowhere", "nowhere", "--out", "{1}/a.csv", "--sheet", "{1}/out.html"),
    "watch": ("watch", "nowhere", "{0}/images", "--state", "{1}/out.json"),
    "report": ("report", "nowhere", "--out", "{1}/out.html"),
}


@pytest.fixture(scope="module")
def killing(forks, tmp_path_factory):
    made = Killing(forks, tmp_path_factory.mktemp("kills"))
    made.prepare()
    return made


@pytest.mark.parametrize("name", WRITERS)
def test_a_second_writer_is_refused_before_its_work(name, killing, tmp_path, capsys):
    argv = [each.format(killing.inputs, tmp_path) for each in WRITERS[name]]
    out = next(each for each in argv if each.startswith(f"{tmp_path}/out"))
    if name in ("calibrate", "evaluate"):
        os.symlink(killing.inputs / "run", out)  # a link to it is the same output
    folder, file = os.path.split(os.path.realpath(out))
    before = contents(tmp_path)
    with locked(tmp_path.joinpath(folder, f".{file}.lock")):
        assert f"{out} {REFUSAL}" in refuse(capsys, *argv)
    assert contents(tmp_path) == before


def test_of_two_predictions_to_one_file_one_is_refused(killing, forks, tmp_path):
    argv = ["predict", killing.inputs / "run", killing.inputs / "images", "--out", tmp_path / "out.csv", "--workers", 0]
    first = forks.start(*argv, first=SLOW)
    until((tmp_path / ".out.csv.lock").exists)
    second = forks.run(*argv)
    assert (second.code, second.out) == (2, "")
    assert second.err == f"dissensus: error: {tmp_path / 'out.csv'} {REFUSAL} choose another\n"
    assert first.wait() == 0, first.err
    assert contents(tmp_path) == {"out.csv": killing.undisturbed("predict")["verdicts.csv"]}


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("train", [Kill("replace", 2), Kill("replace", 7, after=True)]),
        ("calibrate", [Kill("replace", 1), Kill("replace", 2), Kill("replace", 2, after=True)]),
        ("predict", [Kill("fsync", 1), Kill("replace", 1)]),
        ("export", [Kill("replace", 3), Kill("fsync", 20)]),
        ("adapt", [Kill("replace", 2), Kill("replace", 5)]),
    ],
)
def test_a_kill_changes_nothing(name, kills, killing):
    assert name in CASES
    assert killing.check(name, kills) == (len(kills), "")
