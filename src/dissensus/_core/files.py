"""Atomic file writing: a file is either complete or absent, whatever interrupts the writer.

Paths may be places at a URL: a file is then written to a temporary folder and uploaded, which object stores do at once.
"""

from __future__ import annotations

import glob
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dissensus._core.errors import RunError
from dissensus._core.locks import locked
from dissensus._core.places import is_remote, place, storage_errors, upload

TEMPORARY = ".tmp"
REMEDY = "choose another --out, or remove it yourself"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` atomically when the block succeeds.

    The temporary file is created exclusively under a unique name beside `path`, flushed to disk, and moved. The
    directory is flushed too, so that the new name survives a power failure. A temporary file left by a killed process
    is removed by `remove_temporaries`.

    Args:
        path: The file to create or replace. Its folder must exist, except at a URL.

    Raises:
        RunError: If the file cannot be written.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="dissensus-") as folder:
            yield Path(folder) / path.name
            with storage_errors(path, RunError):
                upload(Path(folder) / path.name, path)
        return
    temporary = _unique(path)
    try:
        mode = _create(temporary)
        yield temporary
        temporary.chmod(mode)
        flush(temporary)
        os.replace(temporary, path)
        flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def assembling(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in a temporary folder; it is moved to `path` when the block succeeds.

    For folders, and for files whose writer or reader depends on the name. An existing file is replaced; an existing
    folder must be empty.

    Args:
        path: The file or folder to create. Its parents are created.

    Raises:
        RunError: If it cannot be written, or another process is writing it.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="dissensus-") as local:
            yield Path(local) / path.name
            with storage_errors(path, RunError):
                for file in sorted(Path(local).rglob("*")):
                    if file.is_file():
                        upload(file, path.parent / file.relative_to(local).as_posix())
        return
    make_folder(path.parent)
    with locked(path.with_name(f".{path.name}.lock")):
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*{TEMPORARY}"):  # of processes that were killed
            shutil.rmtree(stale, ignore_errors=True)
        yield from _assembled(path)


def _assembled(path: Path) -> Iterator[Path]:
    folder = _unique(path)
    try:
        folder.mkdir()
        mode = _create(folder / "mode")
        (folder / "mode").unlink()
        yield folder / path.name
        for file in folder.rglob("*"):
            if file.is_file():
                file.chmod(mode)
                flush(file)
        os.replace(folder / path.name, path)
        flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unique(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")


def _create(path: Path) -> int:
    """Create a file exclusively; return the mode that the umask allows, which safetensors does not apply."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: Exception) -> RunError:
    """Return the one-line error for a file or folder that cannot be written."""
    reason = getattr(error, "strerror", None) or str(error)
    return RunError(f"cannot write {path}: {reason}; free some space or choose another folder")


def flush(path: Path) -> None:
    """Flush a file to disk."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, where the system supports it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(name: str) -> bool:
    """Whether a file name is one that `replacing` gives to unfinished files."""
    return name.startswith(".") and name.endswith(TEMPORARY)


def remove_temporaries(folder: Path) -> None:
    """Remove unfinished files of killed processes. Call only while no other process writes to `folder`."""
    if is_remote(folder):
        return  # an upload is whole or nothing
    for path in folder.iterdir():
        if is_temporary(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON; None if the file does not exist or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return None


def cache_folder() -> Path:
    """Return the folder for files that can be recreated: DISSENSUS_CACHE, or the user's cache folder."""
    folder = os.environ.get("DISSENSUS_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dissensus"


def check_output(path: str | os.PathLike[str]) -> None:
    """Raise if `path` cannot be a folder to write to; nothing is created.

    Raises:
        RunError: If it or one of its parents is a file, or the user may not write there.
    """
    folder = place(path)
    if is_remote(folder):
        return
    there = next((each for each in (folder, *folder.parents) if os.path.lexists(each)), Path())
    if not there.is_dir():
        raise RunError(f"the output must be a folder; {there} is a file: choose another --out")
    if not os.access(there, os.W_OK):
        raise RunError(f"the output must be in a folder that you may write to; {there} is not: choose another --out")


def check_folder(out: Path) -> None:
    """Raise `RunError` if `out` is not a new or empty folder: changes made by hand would be lost."""
    if not out.name:
        raise RunError(f"--out must name a new folder; got {str(out)!r}")
    if out.exists() and not out.is_dir():
        raise RunError(f"--out must name a folder; {out} is a file: {REMEDY}")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"--out must be a new or an empty folder; {out} holds files: {REMEDY}")


def make_folder(path: Path) -> None:
    """Create a folder and its parents.

    Raises:
        RunError: If it cannot be created.
    """
    if is_remote(path):
        return  # object stores have no folders
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {path}: {error.strerror}; choose another") from error
