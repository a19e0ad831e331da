"""Atomic file writing: a file is either complete or absent, whatever interrupts the writer.

Paths may be places at a URL: a file is then written to a temporary folder and uploaded, which object stores do at once.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.places import filesystem, is_remote, place, storage_errors, upload

TEMPORARY = ".tmp"
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{8}" + re.escape(TEMPORARY), re.DOTALL)
REMEDY = "choose another --out, or remove it yourself"


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` atomically when the block succeeds.

    The temporary file is created exclusively under a unique name beside `path`, flushed to disk, and moved. The
    directory is flushed too, so that the new name survives a power failure. If `path` is a symbolic link, the file it
    names is replaced, and the link stays. A temporary file left by a killed process is removed by `outputs.writing`.

    Args:
        path: The file to create or replace. Its folder must exist, except at a URL.
        keep: The new path, in the same folder, of the file that is replaced; None: it is not kept.

    Raises:
        RunError: If the file cannot be written, or something that is not a regular file has its name.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory(prefix="dissensus-") as folder:
            yield Path(folder) / path.name
            with storage_errors(path, RunError):
                if keep is not None and path.is_file():
                    fs, inside = filesystem(path)
                    fs.mv(inside, filesystem(keep)[1])
                upload(Path(folder) / path.name, path)
        return
    path = resolved(path)
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device or pipe"
        raise RunError(f"the output must be a file; {path} is a {kind}: choose another --out")
    temporary = unique(path)
    try:
        mode = create(temporary)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield temporary
        temporary.chmod(mode)
        flush(temporary)
        if keep is not None and path.is_file():
            os.replace(path, keep)
        os.replace(temporary, path)
        flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def unique(path: Path) -> Path:
    """Return a new name beside `path` for a file or folder that is to become it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")


def create(path: Path) -> int:
    """Create a file exclusively; return the mode that the umask allows, which safetensors does not apply."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        return os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: Exception) -> RunError:
    """Return the one-line error for a file or folder that cannot be written."""
    if not path.parent.exists():
        return RunError(f"cannot write {path}: there is no folder {path.parent}, or no longer; start again")
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
    """Whether a file name is one of an unfinished file, or of a lock; neither is part of an output."""
    return _UNFINISHED.fullmatch(name) is not None or (name.startswith(".") and name.endswith(".lock"))


def remove_temporaries(folder: Path, of: str | None = None) -> None:
    """Remove unfinished files and folders of killed processes. Call only while no other process writes to `folder`.

    Args:
        folder: Where they are.
        of: The name of the output that they were to become; None: of any.
    """
    if is_remote(folder) or not folder.is_dir():
        return  # an upload is whole or nothing
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _UNFINISHED.fullmatch(entry.name)
            if match is None or of not in (None, match[1]):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                Path(entry.path).unlink(missing_ok=True)


def resolved(path: Path) -> Path:
    """Return the file or folder that is written where `path` is a symbolic link: what it names."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove those of the folders that are empty, in this order."""
    for folder in folders:
        with suppress(OSError):  # not empty
            folder.rmdir()


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


def check_folder(out: Path, option: str = "--out") -> None:
    """Raise `RunError` if `out` is not a new or empty folder: changes made by hand would be lost."""
    remedy = REMEDY.replace("--out", option)
    if not out.name:
        raise RunError(f"{option} must name a new folder; got {str(out)!r}")
    if out.exists() and not out.is_dir():
        raise RunError(f"{option} must name a folder; {out} is a file: {remedy}")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"{option} must be a new or an empty folder; {out} holds files: {remedy}")


def check_name(name: str, what: str) -> None:
    """Raise if a name cannot be that of a file or folder; `what` says whose it is."""
    if name.startswith(".") or any(character in name for character in "/\\\0"):
        raise DissensusError(f"a name has no slash and no leading dot; {what} is called {name!r}: rename it")


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
