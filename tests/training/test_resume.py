"""A run killed at any moment and started again ends bit-identical to one that was never killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from dissensus._core import tensors
from dissensus._core.errors import RunError
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from dissensus.training.checkpoints import Checkpoints
from dissensus.training.run import Run
from tests.conftest import blobs, linear, small_blocks

# Imports once, then forks: a process that trains and is killed, again and again, costs no start-up time.
DRIVER = """
import os, random, signal, sys, time
sys.path.insert(0, {root!r})
import torch
from torch import nn
from tests.conftest import blobs
from dissensus.training import order
from dissensus import Ensemble
from dissensus import fit

order.BLOCK_BYTES, order.WINDOW_BYTES = 7 * 24, 70 * 24  # 7 rows of the blobs, and 70

def tail():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

def train(out):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            fit(Ensemble(tail, members=5), blobs(300), "sed-a2d", epochs=20, lr=0.01, batch_size=16,
                checkpoint_seconds=0.005, log_every=7, shuffle={shuffle!r}, out=out, progress=False)
            code = 0
        finally:
            os._exit(code)
    return pid

def lines(out):
    try:
        return open(out + "/metrics.jsonl").read().count("step")
    except FileNotFoundError:
        return 0

whole, killed = {whole!r}, {killed!r}
assert os.waitpid(train(whole), 0)[1] == 0
expected = lines(whole)
chance = random.Random(7)
kills = 0
for attempt in range(20):
    pid = train(killed)
    # From before the first step to the last; the sleep spreads kills over steps, logging and checkpoints.
    while lines(killed) < expected * attempt / 20 and os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.001)
    time.sleep(chance.random() * 0.03)
    os.kill(pid, signal.SIGKILL)
    kills += os.waitpid(pid, 0)[1] == signal.SIGKILL
assert os.waitpid(train(killed), 0)[1] == 0
print("killed", kills)
"""


def outcome(out: Path) -> tuple[bytes, list[dict[str, object]]]:
    lines = list(Run.open(out).metrics())
    return (out / "ensemble" / "ensemble.safetensors").read_bytes(), [{**line, "seconds": None} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", ["full", "blocks"])
def test_twenty_kills_at_random_moments_change_nothing(shuffle, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    root = str(Path(__file__).parents[2])
    code = DRIVER.format(root=root, whole=str(whole), killed=str(killed), shuffle=shuffle)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["killed", "20"]
    weights, lines = outcome(whole)
    killed_weights, killed_lines = outcome(killed)
    assert killed_weights == weights
    assert killed_lines == lines
    assert not list(killed.glob(".*tmp"))


class Stop(Exception):  # noqa: N818
    """What a test throws to break off training."""


def break_off_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Make the trainer fail after so many optimiser steps."""
    from dissensus.training import step

    original, seen = step.Stepper.__call__, []

    def counted(self, *args):
        if len(seen) == steps:
            raise Stop
        seen.append(None)
        return original(self, *args)

    monkeypatch.setattr(step.Stepper, "__call__", counted)


@pytest.mark.parametrize("method", ["deep-ensemble", "diverse-hps", "a2d", "sed-divdis", "two-stage"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam-mini", "sgd"])
def test_every_method_resumes_exactly(method, optimizer, elsewhere, tmp_path, monkeypatch):
    train = blobs()
    options = {
        "epochs": 6, "batch_size": 32, "lr": 0.02, "optimizer": optimizer, "confidence": 0.9, "progress": False,
        "disagreement": elsewhere if method == "a2d" else None,
    }  # fmt: skip
    whole = fit(linear(), train, method, **options)
    for steps in (3, 9, 11):
        with monkeypatch.context() as patch:
            break_off_after(patch, steps)
            with pytest.raises(Stop):
                fit(linear(), train, method, **options, out=tmp_path / "run", checkpoint_seconds=0)
    resumed = fit(linear(), train, method, **options, out=tmp_path / "run")
    for name, value in whole.stacked().items():
        assert torch.equal(value, resumed.stacked()[name])


def test_two_stage_with_dropout_parts_the_samples_alike_when_resumed(tmp_path, monkeypatch):
    def ensemble():
        return Ensemble(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), members=3)

    options = {"epochs": 6, "batch_size": 32, "lr": 0.1, "confidence": 0.8, "progress": False}
    whole = fit(ensemble(), blobs(), "two-stage", **options)
    with monkeypatch.context() as patch:
        break_off_after(patch, 4 * 6 + 3)  # in the second stage
        with pytest.raises(Stop):
            fit(ensemble(), blobs(), "two-stage", **options, out=tmp_path / "run", checkpoint_seconds=0)
    resumed = fit(ensemble(), blobs(), "two-stage", **options, out=tmp_path / "run")
    assert torch.equal(whole.stacked()["1.weight"], resumed.stacked()["1.weight"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_where_it_is_and_the_same_call_goes_on(number, tmp_path, monkeypatch):
    from dissensus.training import step

    original, seen, before = step.Stepper.__call__, [], signal.getsignal(number)

    def interrupting(self, *args):
        seen.append(None)
        if len(seen) == 5:
            os.kill(os.getpid(), number)
        return original(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(step.Stepper, "__call__", interrupting)
        with pytest.raises(KeyboardInterrupt):
            fit(linear(), blobs(), epochs=5, batch_size=32, out=tmp_path / "run", progress=False)
    assert len(seen) == 5
    seen.clear()
    monkeypatch.setattr(step.Stepper, "__call__", interrupting)
    seen.extend([None] * 10)  # past the fifth: count only
    fit(linear(), blobs(), epochs=5, batch_size=32, out=tmp_path / "run", progress=False)
    assert len(seen) - 10 == 15  # twenty steps in all, five were done
    assert signal.getsignal(number) is before


NEWEST, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"


def damage(path: Path) -> None:
    """Change one bit of a weight."""
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


@pytest.mark.parametrize("how", [damage, lambda path: path.write_bytes(b"rubbish"), Path.unlink])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(how, tmp_path, monkeypatch):
    options = {"epochs": 4, "batch_size": 32, "lr": 0.02, "progress": False}
    whole, run = fit(linear(), blobs(), **options), tmp_path / "run"
    for steps in (6, 3, 1):
        with monkeypatch.context() as patch, contextlib.suppress(Stop):
            break_off_after(patch, steps)
            fit(linear(), blobs(), **options, out=run, checkpoint_seconds=0)
        assert {path.name for path in run.glob("*.safetensors")} == {NEWEST, PREVIOUS}
        how(run / NEWEST)
    # steps 1 to 6, 6 to 8, 8: the last two checkpoints are those after 7 and 8 steps, the damaged ones are gone
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = fit(linear(), blobs(), **options, out=run)
    lines = [str(each.message) for each in caught if NEWEST in str(each.message)]
    expected = f"{run / NEWEST} is damaged; training goes on from {PREVIOUS}, after step 7"
    assert lines == [expected] * (how is not Path.unlink)
    for name, value in whole.stacked().items():
        assert torch.equal(value, resumed.stacked()[name])
    assert not list(run.glob("*.safetensors"))


def test_two_damaged_checkpoints_are_one_line(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        break_off_after(patch, 4)
        with pytest.raises(Stop):
            fit(linear(), blobs(), out=tmp_path / "run", checkpoint_seconds=0, progress=False)
    for name in (NEWEST, PREVIOUS):
        damage(tmp_path / "run" / name)
    with pytest.raises(RunError, match=rf"{NEWEST} is altered.*: remove {NEWEST} and {PREVIOUS} to start again\Z"):
        fit(linear(), blobs(), out=tmp_path / "run", progress=False)


def test_the_checkpoint_of_another_program_is_one_line(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        break_off_after(patch, 1)
        with pytest.raises(Stop):
            fit(linear(), blobs(), out=tmp_path / "run", checkpoint_seconds=0, progress=False)
    tensors.write(tmp_path / "run" / NEWEST, {"weight": torch.zeros(3)})
    with pytest.raises(RunError, match=rf"{NEWEST} must be a checkpoint of this run; it has other tensors: remove"):
        fit(linear(), blobs(), out=tmp_path / "run", progress=False)


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    original, calls = tensors.save_file, []

    def filling(*args):
        calls.append(None)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        original(*args)

    monkeypatch.setattr(tensors, "save_file", filling)
    with pytest.raises(RunError, match=r"cannot write .*checkpoint.safetensors: No space left on device; free some"):
        fit(linear(), blobs(), out=tmp_path / "run", checkpoint_seconds=0, progress=False)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == [NEWEST, "metrics.jsonl", PREVIOUS, "run.json"]
    monkeypatch.setattr(tensors, "save_file", original)
    fit(linear(), blobs(), out=tmp_path / "run", progress=False)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"


def test_checkpoints_of_a_command_that_was_killed_at_its_end_are_removed_by_the_next(tmp_path, monkeypatch):
    """Between finishing the run and removing them."""

    def killed(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(linear(), blobs(), epochs=2, out=tmp_path, checkpoint_seconds=0, progress=False)
    assert (tmp_path / NEWEST).exists()
    fit(linear(), blobs(), epochs=2, out=tmp_path, checkpoint_seconds=0, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ensemble", "metrics.jsonl", "run.json"]


def test_a_run_folder_that_is_removed_during_training_is_one_line(tmp_path, monkeypatch):
    from dissensus.training import step

    original, seen = step.Stepper.__call__, []

    def removing(self, *args):
        seen.append(None)
        if len(seen) == 3:
            shutil.rmtree(tmp_path / "run")
        return original(self, *args)

    monkeypatch.setattr(step.Stepper, "__call__", removing)
    with pytest.raises(RunError, match=r"cannot write .*run/\w+\.\w+: there is no folder .*run, or no longer; start"):
        fit(linear(), blobs(), out=tmp_path / "run", checkpoint_seconds=0, progress=False)
    assert not list(tmp_path.iterdir())


def test_fit_in_a_thread_trains_alike_and_another_on_its_folder_is_refused(tmp_path, monkeypatch):
    from dissensus.training import step

    def train(**options):
        return fit(linear(), blobs(), epochs=2, progress=False, **options)

    original, others, whole = step.Stepper.__call__, [], train()

    def meanwhile(self, *args):
        if not others:
            others.append(pool.submit(train, out=tmp_path / "run"))
            with pytest.raises(RunError, match=r"run is being written by another command: wait for it"):
                others[0].result()
        return original(self, *args)

    monkeypatch.setattr(step.Stepper, "__call__", meanwhile)
    with ThreadPoolExecutor(2) as pool:
        threaded = pool.submit(train, out=tmp_path / "run").result()
    assert others
    for name, value in whole.stacked().items():
        assert torch.equal(value, threaded.stacked()[name])


@pytest.mark.parametrize("method", ["deep-ensemble", "a2d", "sed-a2d", "two-stage"])
def test_an_order_in_blocks_resumes_exactly(method, elsewhere, tmp_path, monkeypatch):
    small_blocks(monkeypatch)
    train = blobs()
    options = {
        "epochs": 6, "batch_size": 16, "lr": 0.02, "confidence": 0.9, "progress": False, "shuffle": "blocks",
        "disagreement": elsewhere if method == "a2d" else None,
    }  # fmt: skip
    whole = fit(linear(), train, method, **options)
    for steps in (3, 9, 17):
        with monkeypatch.context() as patch:
            break_off_after(patch, steps)
            with pytest.raises(Stop):
                fit(linear(), train, method, **options, out=tmp_path / "run", checkpoint_seconds=0)
    resumed = fit(linear(), train, method, **options, out=tmp_path / "run")
    for name, value in whole.stacked().items():
        assert torch.equal(value, resumed.stacked()[name])
    assert Run.open(tmp_path / "run").settings["shuffle"] == "blocks"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dissensus-window")]
