"""Exclusive locks between processes, released by the system when a process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from dissensus._core.errors import RunError
from dissensus._core.places import is_remote


@contextlib.contextmanager
def locked(
    path: Path, *, wait: float = 1.0, what: Path | None = None, remedy: str = "wait for it, or choose another"
) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`, which is created if necessary and removed afterwards.

    Child processes do not inherit the lock. A URL is not locked, because object stores have no locks: that one command
    at a time writes there is up to the user.

    Args:
        path: The lock file. Its folder must exist.
        wait: Seconds to wait for another process to release it.
        what: What the lock protects, for the message; None: the folder of the lock file.
        remedy: What the user can do if another process holds it.

    Raises:
        RunError: If another process holds the lock.
    """
    if is_remote(path):
        yield
        return
    lock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(f"{what or path.parent} is being written by another command: {remedy}") from error
    try:
        yield
    finally:
        # Removed while held: filelock notices a lock on a removed file and tries again. Windows removes it itself.
        if os.name == "posix":
            path.unlink(missing_ok=True)
        lock.release()
