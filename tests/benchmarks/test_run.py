"""Every case runs at small sizes and reports what it measured; no time or ratio is asserted."""

import json
import math
import shutil
import sys
from collections import namedtuple

import pytest
import torch

from benchmarks import CASES, memory, steps
from benchmarks.measure import QUICK
from benchmarks.run import run_bench
from dissensus._core.errors import DissensusError, UnknownNameError
from tests.benchmarks.test_peers import needs_peers

ROWS = {
    "floor": ["floor"],
    "scaling": ["scaling"],
    "pairs": ["pairs"],
    "loop": ["loop-linear", "loop-mlp"],
    "many": ["many-members", "many-pairs"],
    "peers": ["torch-uncertainty-linear", "torch-uncertainty-mlp", "torchensemble-linear"],
    "job": ["job-torch-uncertainty", "job-torchensemble", "job-scikit-learn"],
    "memory": ["memory"],
    "huge": ["huge-open", "huge-epoch"],
    "shuffle": ["shuffle", "shuffle-steps"],
    "extract": ["extract"],
    "engine": ["engine"],
    "int8": ["int8"],
    "compile": ["compile"],
    "predict": ["predict"],
    "distances": ["distances"],
    "serve": ["serve", "serve-p99"],
    "export": ["export"],
}
needs_proc = pytest.mark.skipif(not memory.STATUS.is_file(), reason=f"{memory.STATUS} does not exist here")


def test_every_case_is_described_and_tested():
    assert list(CASES) == list(ROWS)
    assert all(case.summary for case in CASES.values())


MARKS = {"peers": needs_peers, "job": needs_peers, "memory": needs_proc, "huge": needs_proc}
OF_MEMORY = ("memory", "huge")


@pytest.mark.parametrize("case", [pytest.param(name, marks=MARKS.get(name, ())) for name in ROWS])
def test_a_case_reports_what_it_measured(case, capfd):
    record = json.loads(run_bench([case], quick=True, repeats=2, as_json=True))
    assert capfd.readouterr().out == ""  # peers print while they train
    assert {"dissensus", "torch", "python"} <= record["versions"].keys()
    assert record["threads"] == torch.get_num_threads()
    assert record["sizes"]["features"] == QUICK.features
    assert record["quick"] is True
    assert [entry["name"] for entry in record["results"]] == ROWS[case]
    for entry in record["results"]:
        assert isinstance(entry["met"], bool)
        assert entry["bar"]
        value = entry["megabytes"] if case in OF_MEMORY else entry["ratio"]
        assert value > 0 or entry["name"] == "huge-open"  # what comes on top of the imports
        assert math.isfinite(value)
        if case in OF_MEMORY:
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
        assert (case == "job") == ("accuracy" in (entry.get("note") or ""))


def test_the_table_names_the_cases_and_the_file_holds_the_numbers(tmp_path):
    out = tmp_path / "new" / "bench.json"
    text = run_bench(["scaling", "floor", "scaling"], quick=True, repeats=1, out=out)
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["scaling", "floor"]
    assert "<= 1.3" in text
    assert "Quick sizes" in text
    assert [entry["name"] for entry in json.loads(out.read_text())["results"]] == ["scaling", "floor"]


def test_an_unknown_case_raises_with_a_suggestion():
    with pytest.raises(
        UnknownNameError, match=r"case 'flor': did you mean 'floor'\? known: compile, distances, engine, export"
    ):
        run_bench(["scaling", "flor"], quick=True)


def test_repeats_must_be_positive():
    with pytest.raises(DissensusError, match="repeats must be at least 1; got 0"):
        run_bench(["floor"], repeats=0, quick=True)


@pytest.mark.parametrize("missing", ["torch_uncertainty.methods", "torchensemble"])
def test_a_missing_peer_is_reported_before_anything_runs(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(sys.modules, "torch_uncertainty.transforms", namedtuple("Stub", "RepeatTarget")(None))
    if missing == "torchensemble":
        monkeypatch.setitem(sys.modules, "torch_uncertainty.methods", namedtuple("Stub", "deep_ensembles")(None))
    monkeypatch.setattr(steps, "floor", lambda sizes, repeats: pytest.fail("ran before the check"))
    with pytest.raises(DissensusError, match=r"pip install '\.\[bench\]'") as caught:
        run_bench(["floor", "peers"], quick=True)
    assert missing in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_little_disk_is_reported_before_anything_runs(monkeypatch):
    usage = namedtuple("Usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(free=10**6))
    monkeypatch.setattr(steps, "floor", lambda sizes, repeats: pytest.fail("ran before the check"))
    with pytest.raises(DissensusError, match=r"needs 0\.1 GB in .*; 0\.0 GB are free: set TMPDIR"):
        run_bench(["floor", "memory"], quick=True)


def test_out_that_cannot_be_written_is_reported_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "floor", lambda sizes, repeats: pytest.fail("ran before the check"))
    with pytest.raises(DissensusError, match="--out must be a file in a writable folder"):
        run_bench(["floor"], out=tmp_path, quick=True)
