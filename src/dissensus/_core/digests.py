"""Digests: sha256 of results and of files, so that whatever changes is noticed.

    written = of_file(path)                                    # recorded where the file is described
    verify(path, written, remedy="write it again")             # one line if the file is another now

A file is verified before it is used, once per process: again only if its size, date or inode has changed. Setting the
environment variable DISSENSUS_VERIFY to 0, or the flag --no-verify, turns this off; other processes inherit it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dissensus._core.errors import DataError, DissensusError
from dissensus._core.places import filesystem, is_remote, storage_errors

VARIABLE = "DISSENSUS_VERIFY"
CHUNK = 2**20  # bytes that are hashed at a time
# A file may change twice within the resolution of its date, so one that was just written is verified again.
SETTLED = 2e9  # nanoseconds


def digest(facts: Any) -> str:
    """A sha256 of plain values: numbers, texts, lists and dictionaries, whose order does not matter.

    >>> digest({"seed": 0, "lr": 0.1}) == digest({"lr": 0.1, "seed": 0})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def of_bytes(data: bytes | memoryview) -> str:
    """Return the sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def of_file(path: Path) -> str:
    """Return the sha256 of a file of any place."""
    if not is_remote(path):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    sha256, (fs, inside) = hashlib.sha256(), filesystem(path)
    with fs.open(inside, "rb") as remote:
        while chunk := remote.read(CHUNK):
            sha256.update(chunk)
    return sha256.hexdigest()


class State(NamedTuple):
    """What tells that a local file has changed, without reading it."""

    device: int
    inode: int
    size: int
    modified: int  # nanoseconds

    @classmethod
    def of(cls, path: Path) -> State:
        """Return the state of a file; raises `OSError` if it is missing."""
        status = os.stat(path)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


_VERIFIED: dict[State, str] = {}  # digests of files as they were


def verifying() -> bool:
    """Whether files are verified before they are used."""
    return os.environ.get(VARIABLE, "1") != "0"


@contextmanager
def unverified(skip: bool = True) -> Iterator[None]:
    """Use files as they are within the block, here and in processes that are started there; not if `skip` is False."""
    before = os.environ.get(VARIABLE)
    if skip:
        os.environ[VARIABLE] = "0"
    try:
        yield
    finally:
        if skip and before is None:
            os.environ.pop(VARIABLE, None)
        elif skip and before is not None:
            os.environ[VARIABLE] = before


def verify(
    path: Path, sha256: str, *, remedy: str, error: type[DissensusError] = DataError, copy: Path | None = None
) -> None:
    """Raise if a file is not as it was written.

    Args:
        path: The file, of any place.
        sha256: Its digest when it was written.
        remedy: What the user can do.
        error: The class of error to raise.
        copy: A local copy to read instead, of a file at a URL.
    """
    if not verifying():
        return
    try:
        with storage_errors(path, error, missing=False):
            state = None if is_remote(path) else State.of(path)
            if state is not None and _VERIFIED.get(state) == sha256:
                return
            now = of_file(copy or path)
    except FileNotFoundError as cause:
        raise error(f"a file must be as written; {path} is missing: {remedy}") from cause
    except OSError as cause:
        raise error(f"a file must be as written; {path} cannot be read, {cause.strerror}: {remedy}") from cause
    check(path, now, sha256, remedy=remedy, error=error)
    if state is not None and time.time_ns() - state.modified > SETTLED:
        _VERIFIED[state] = sha256


def check(path: Path, now: str, sha256: str, *, remedy: str, error: type[DissensusError] = DataError) -> None:
    """Raise if the digest of what was read from a file is not the one that was written."""
    if verifying() and now != sha256:
        raise error(f"a file must be as written; {path} is altered, its sha256 differs: {remedy}")
