"""Exclusive locks between processes, released by the system when a process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dissensus._core.errors import RunError

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


@contextlib.contextmanager
def locked(path: Path, *, wait: float = 1.0) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, which is created if necessary and removed afterwards.

    Child processes do not inherit the lock.

    Args:
        path: The lock file. Its folder must exist.
        wait: Seconds to wait for another process to release it.

    Raises:
        RunError: If another process holds the lock.
    """
    lock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(f"{path.parent} is being written by another command: wait for it, or choose another") from error
    try:
        yield
    finally:
        # Removed while held: filelock notices a lock on a removed file and tries again. Windows removes it itself.
        if os.name == "posix":
            path.unlink(missing_ok=True)
        lock.release()
