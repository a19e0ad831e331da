"""The bench: every case runs at small sizes and reports what it should; no time or ratio is asserted anywhere.

The sides of a comparison must do the same work, so their losses are compared step by step.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import namedtuple
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks import CASES, core, memory, peers, run_bench
from benchmarks.measure import QUICK, WARM_UP, Bar, Comparison, Side, compare, interleave
from dissensus._core import extras
from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.features import FeatureSet

ENTRIES = {
    "floor": ["floor"],
    "scaling": ["scaling"],
    "pairs": ["pairs"],
    "loop": ["loop-linear", "loop-mlp"],
    "peers": ["torch-uncertainty-linear", "torch-uncertainty-mlp", "torchensemble-linear"],
    "memory": ["memory"],
    "extract": ["extract"],
    "engine": ["engine"],
    "predict": ["predict"],
    "export": ["export"],
}
needs_peers = pytest.mark.skipif(
    bool(extras.missing("bench")),
    reason="the peers are not installed: pip install '.[bench]'",
)

needs_proc = pytest.mark.skipif(not memory.STATUS.is_file(), reason=f"{memory.STATUS} is missing here")


def test_every_case_is_described_and_tested():
    assert list(CASES) == list(ENTRIES)
    assert all(case.__doc__ for case in CASES.values())


MARKS = {"peers": needs_peers, "memory": needs_proc}


@pytest.mark.parametrize("case", [pytest.param(name, marks=MARKS.get(name, ())) for name in ENTRIES])
def test_a_case_reports_what_it_measured(case, capfd):
    record = json.loads(run_bench([case], quick=True, repeats=2, as_json=True))
    assert capfd.readouterr().out == ""  # peers print while they train
    assert {"dissensus", "torch", "python"} <= record["versions"].keys()
    assert record["threads"] == torch.get_num_threads()
    assert record["sizes"]["features"] == QUICK.features
    assert record["quick"] is True
    assert [entry["name"] for entry in record["results"]] == ENTRIES[case]
    for entry in record["results"]:
        assert isinstance(entry["met"], bool)
        assert entry["bar"]
        value = entry["megabytes"] if case == "memory" else entry["ratio"]
        assert value > 0
        assert math.isfinite(value)
        if case == "memory":
            assert entry["repeats"] == 1
            assert entry["epoch_seconds"] > 0
            assert entry["vm_hwm_megabytes"] >= entry["megabytes"]
        else:
            assert entry["repeats"] == 2
            assert entry["numerator"]
            assert entry["denominator"]
            assert min(entry["numerator_ms"], entry["denominator_ms"]) > 0
            low, high = entry["ratio_quartiles"]
            assert 0 < low <= high


def test_the_table_names_the_cases_and_the_file_holds_the_numbers(tmp_path):
    out = tmp_path / "made" / "bench.json"
    text = run_bench(["scaling", "floor", "scaling"], quick=True, repeats=1, out=out)
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["scaling", "floor"]
    assert "<= 1.3" in text
    assert "Quick sizes" in text
    assert [entry["name"] for entry in json.loads(out.read_text())["results"]] == ["scaling", "floor"]


def test_sides_take_turns_and_warming_up_does_not_count():
    order, warm = [], [99.0] * WARM_UP
    a, b = iter([*warm, 1.0, 2.0, 3.0]), iter([*warm, 4.0, 5.0, 6.0])

    def telling(name, values):
        def run():
            order.append(name)
            return next(values)

        return run

    assert interleave("ab", telling("a", a), telling("b", b), repeats=3) == ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert "".join(order[-6:]) == "ba" + "ab" + "ba"
    assert len(order) == 2 * (3 + WARM_UP)


def test_a_comparison_is_the_ratio_of_medians():
    result = Comparison("ab", "a", "b", Bar("<=", 2.0), numerator_ms=(4.0, 2.0, 1.0), denominator_ms=(1.0, 1.0, 2.0))
    assert result.record() == {
        "name": "ab",
        "ratio": 2.0,
        "numerator": "a",
        "denominator": "b",
        "bar": "<= 2",
        "met": True,
        "numerator_ms": 2.0,
        "denominator_ms": 1.0,
        "repeats": 3,
        "ratio_quartiles": [1.25, 3.0],  # of 4, 2 and 0.5
    }


def failing():
    return partial(os._exit, 7)


def test_a_process_that_ends_early_is_reported():
    side = Side("one that fails", failing)
    with pytest.raises(DissensusError, match="process for 'one that fails' ended with exit code 7"):
        compare("ab", side, side, Bar("<", 1.0), repeats=1)


@pytest.mark.parametrize(
    ("sign", "below", "at", "above"),
    [("<", True, False, False), ("<=", True, True, False), (">", False, False, True), (">=", False, True, True)],
)
def test_bars(sign, below, at, above):
    assert [Bar(sign, 2.0).met(value) for value in (1.9, 2.0, 2.1)] == [below, at, above]


@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_the_loop_does_the_same_training_as_the_step(tail):
    batch = core.random_batch(QUICK)
    ours = core.stepper(QUICK, members=5, active=2, tail=tail)
    members = [ours.ensemble.member(i) for i in range(5)]
    step, plain = core.stepping(ours, batch), peers.looping(members, ours.draw, batch)
    torch.testing.assert_close([step()[0].float() for _ in range(6)], [plain() for _ in range(6)], rtol=1e-4, atol=0)


@needs_peers
@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_torch_uncertainty_does_the_same_training_as_the_step(tail):
    batch = core.random_batch(QUICK)
    ours = core.stepper(QUICK, members=5, active=5, diversity=0.0, tail=tail)
    members = [ours.ensemble.member(i) for i in range(5)]
    step, theirs = core.stepping(ours, batch), peers.repeating(peers.require(), members, batch)
    torch.testing.assert_close([step()[0].float() for _ in range(6)], [theirs() for _ in range(6)], rtol=1e-4, atol=0)


def test_an_unknown_case_is_refused_with_a_suggestion():
    with pytest.raises(UnknownNameError, match=r"case 'flor': did you mean 'floor'\? known: engine, export, extract"):
        run_bench(["scaling", "flor"], quick=True)


def test_repeats_must_be_positive():
    with pytest.raises(DissensusError, match="repeats must be at least 1; got 0"):
        run_bench(["floor"], repeats=0, quick=True)


@pytest.mark.parametrize("missing", ["torch_uncertainty.methods", "torchensemble"])
def test_a_missing_peer_is_told_before_anything_runs(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(sys.modules, "torch_uncertainty.transforms", namedtuple("Stub", "RepeatTarget")(None))
    if missing == "torchensemble":
        monkeypatch.setitem(sys.modules, "torch_uncertainty.methods", namedtuple("Stub", "deep_ensembles")(None))
    monkeypatch.setitem(CASES, "floor", lambda sizes, repeats: pytest.fail("ran before the check"))
    with pytest.raises(DissensusError, match=r"pip install '\.\[bench\]'") as caught:
        run_bench(["floor", "peers"], quick=True)
    assert missing in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_little_disk_is_told_before_anything_runs(monkeypatch):
    usage = namedtuple("Usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(free=10**6))
    monkeypatch.setitem(CASES, "floor", lambda sizes, repeats: pytest.fail("ran before the check"))
    with pytest.raises(DissensusError, match=r"needs 0\.1 GB in .*; 0\.0 GB are free: set TMPDIR"):
        run_bench(["floor", "memory"], quick=True)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_features_go_when_the_memory_case_is_interrupted(scratch, monkeypatch):
    def interrupt(command, **how):
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


def test_the_training_process_tells_its_error(tmp_path, capsys):
    memory.child(str(tmp_path), "5", "2", "16")
    assert json.loads(capsys.readouterr().out)["error"].startswith("DataError: ")


def test_without_proc_the_memory_case_says_that_it_measured_nothing():
    entry = memory.MemoryUse("an epoch", None, None, 1.0)
    assert entry.record()["met"] is None
    assert "memory was not measured" in entry.record()["note"]
    assert "not measured" in entry.row()[1]
