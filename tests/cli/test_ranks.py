"""With --devices 2, a process that dies or freezes ends the command with one line, and none is left over."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import blobs
from tests.forks import until

LIVE = "dissensus: error: all processes of a command must live until its end; process {} of 2 {}: run the same command"

COMMAND = ("env", "OMP_NUM_THREADS=1", sys.executable, "-m", "dissensus")
PAIR = ("--devices", "2", "--accelerator", "cpu", "--rank-timeout", "2")


@pytest.fixture
def argv(tmp_path):
    """A training that takes minutes, with a checkpoint at every step."""
    blobs().save(tmp_path / "features")
    return ["train", tmp_path / "features", "--out", tmp_path / "run", "--member-epochs", 9999, "--checkpoint-seconds",
            0.01, "--no-progress"]  # fmt: skip


def messages(*commands):
    lines = [line for command in commands for line in command.err.splitlines()]
    assert not any("Traceback" in line for line in lines), "\n".join(lines)
    return [line for line in lines if line.startswith("dissensus")]


@contextlib.contextmanager
def launched(argv, stderr) -> Iterator[subprocess.Popen]:
    """A command that launches its second process; both are killed at the end, whatever the test found."""
    command = [*COMMAND, *map(str, argv), *PAIR]
    with subprocess.Popen(command, stderr=stderr, text=True, start_new_session=True) as first:
        try:
            yield first
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(first.pid, signal.SIGKILL)


def child_of(first: subprocess.Popen) -> int:
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    (child,) = (int(pid) for pid in children if b"dissensus" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return child


def ended(pid: int) -> bool:
    """Whether a process has ended; whoever adopted it may not have asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def begun(folder: Path) -> bool:
    return (folder / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_dead_process_ends_the_other(rank, forks, argv, tmp_path):
    commands = forks.pair(*argv)
    until(lambda: begun(tmp_path / "run"))
    os.kill(commands[rank].pid, signal.SIGKILL)
    assert commands[1 - rank].wait(10) == 2, commands[1 - rank].err
    (line,) = messages(*commands)
    assert line.startswith("dissensus: error: all processes of a command must live until its end; ")
    assert ("process 1 of 2 has ended" if rank == 0 else "one has ended") in line


@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_process_ends_the_other(rank, forks, argv, tmp_path):
    commands = forks.pair(*argv, "--rank-timeout", 1.5)
    until(lambda: begun(tmp_path / "run"))
    os.kill(commands[rank].pid, signal.SIGSTOP)
    try:
        assert commands[1 - rank].wait(10) == 2, commands[1 - rank].err
        (line,) = messages(*commands)
        assert line.startswith(LIVE.format(rank + 1, "gives no sign of life for 2 s"))
    finally:
        os.kill(commands[rank].pid, signal.SIGKILL)


def test_a_command_that_is_suspended_as_a_whole_goes_on(forks, argv, tmp_path):
    often = "from dissensus.cli import ranks; ranks.BEAT = 0.1"
    commands = forks.pair(*argv, "--rank-timeout", 0.8, first=often)
    until(lambda: begun(tmp_path / "run"))
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for command in commands:
            os.kill(command.pid, number)
        time.sleep(1)
    assert not any(command.ended() for command in commands), messages(*commands)
    for command in commands:
        os.kill(command.pid, signal.SIGINT)
    assert [command.wait() for command in commands] == [130, 0]
    assert messages(*commands) == ["dissensus: stopped; the same command goes on from here"]


def test_an_error_of_the_first_process_ends_the_other_in_silence(forks, argv, tmp_path):
    commands = forks.pair(*argv)
    until(lambda: begun(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert commands[0].wait(15) == 2, commands[0].err
    assert commands[1].wait(15) != 0
    (line,) = messages(*commands)
    assert "cannot write" in line
    assert "there is no folder" in line


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_frozen_process_of_a_launched_pair_is_not_left_over(rank, argv, tmp_path):
    with launched(argv, subprocess.PIPE) as first:
        until(lambda: begun(tmp_path / "run"), 120)
        child = child_of(first)
        os.kill((first.pid, child)[rank], signal.SIGSTOP)
        _, err = first.communicate(timeout=30)
        until(lambda: ended(child), 5)
    assert first.returncode == (2 if rank else -signal.SIGKILL), err  # a frozen process cannot end itself
    assert LIVE.format(rank + 1, "gives no sign of life for 2 s") in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_launched_pair_without_its_first_process_ends_with_one_line(argv, tmp_path):
    err = tmp_path / "err"
    with err.open("w") as file, launched(argv, file) as first:
        until(lambda: begun(tmp_path / "run"), 120)
        child = child_of(first)
        first.kill()
        until(lambda: ended(child), 20)
    text = err.read_text()
    assert "process 1 of 2 has ended" in text
    assert "frame #" not in text
    assert "Traceback" not in text
