"""One process holds a lock; it goes with the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import filelock._unix
import pytest

from dissensus._core.errors import RunError
from dissensus._core.locks import locked

HOLDER = """
import sys, time
from pathlib import Path
from dissensus._core.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_process_is_refused_until_the_first_ends(tmp_path):
    path = tmp_path / "a.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="is being written by another command: wait for it, or"), locked(path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    with locked(path):
        assert path.exists()
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a held file cannot be removed")
def test_a_lock_that_is_removed_while_it_is_opened_is_opened_again(tmp_path, monkeypatch):
    path, original, calls = tmp_path / "a.lock", filelock._unix._lock_fd_nonblocking, []

    def removed(descriptor):
        calls.append(None)
        if len(calls) == 1:
            path.unlink()
        return original(descriptor)

    monkeypatch.setattr(filelock._unix, "_lock_fd_nonblocking", removed)
    with locked(path), pytest.raises(RunError, match="is being written"), locked(path, wait=0):
        pass
    assert not path.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_keep_the_lock(tmp_path):
    path = tmp_path / "a.lock"
    reading, writing = os.pipe()
    with locked(path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    try:
        with locked(path):
            pass
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
