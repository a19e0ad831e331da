"""The memory case cleans up after itself and reports failures in one line."""

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.measure import QUICK
from benchmarks.run import run_bench
from dissensus._core.errors import DissensusError
from dissensus.features import FeatureSet


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_features_are_removed_on_ctrl_c(scratch, monkeypatch):
    def interrupt(command, **options):
        assert len(FeatureSet.open(Path(command[3]) / "features")) == QUICK.rows
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_bench(["memory"], quick=True)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9: the machine was probably out of memory"),
        ("import sys; sys.exit(3)", "failed: exit code 3, see its message above"),
        ('print(\'{"error": "DataError: no rows"}\')', "failed: DataError: no rows"),
    ],
)
def test_a_failing_training_process_is_reported(code, message, scratch, monkeypatch):
    monkeypatch.setattr(memory, "CHILD", code)
    with pytest.raises(DissensusError, match=message):
        run_bench(["memory"], quick=True)
    assert list(scratch.iterdir()) == []


def test_the_training_process_prints_its_error(tmp_path, capsys):
    memory.child(str(tmp_path), "5", "2", "16")
    assert json.loads(capsys.readouterr().out)["error"].startswith("DataError: ")


def test_without_proc_the_memory_case_says_that_it_measured_nothing():
    entry = memory.MemoryUse("an epoch", None, None, 1.0)
    assert entry.record()["met"] is None
    assert "memory was not measured" in entry.record()["note"]
    assert "not measured" in entry.row()[1]
