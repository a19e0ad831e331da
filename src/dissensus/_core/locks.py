"""Locks on a file, between processes: the system lets go when a process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

with contextlib.suppress(ImportError):  # not on every system
    import fcntl

PATIENCE = 2.0  # seconds for others, who are about to let go

_HELD: set[int] = set()


class Lock:
    """A file, made if need be, that one process holds alone or several hold together.

    BlockingIOError where others hold it. Systems and disks that know no locks let everyone in.
    """

    def __init__(self, path: Path, *, alone: bool) -> None:
        self.path = path
        while True:
            self._handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
            _HELD.add(self._handle)
            try:
                self._lock(alone)
                with contextlib.suppress(FileNotFoundError):
                    # else its last holder removed it while it was being opened: the next to come would lock another
                    if os.path.samestat(os.fstat(self._handle), os.stat(path)):
                        return
            except BaseException:
                self.release()
                raise
            self.release()

    def share(self) -> None:
        """Let others hold it, too."""
        self._lock(alone=False)

    def alone(self) -> bool:
        """Hold it alone again, once the others let go; False if one keeps it for long."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._lock(alone=True)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)

    def release(self) -> None:
        """Let go."""
        _HELD.discard(self._handle)
        os.close(self._handle)

    def _lock(self, alone: bool) -> None:
        if "fcntl" not in globals():
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_NB | (fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        except BlockingIOError:
            raise
        except OSError:
            return


def _drop() -> None:
    # a copy of the handle in a child would keep the lock of a parent that was killed
    for handle in _HELD:
        with contextlib.suppress(OSError):
            os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop)
