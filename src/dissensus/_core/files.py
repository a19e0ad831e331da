"""Files that are whole or not there: written beside their place, flushed, then moved into it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dissensus._core.errors import RunError

TEMPORARY = ".tmp"
UMASK = os.umask(0)  # there is no way to read it but to set it
os.umask(UMASK)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to; it takes the place of `path` when the block ends well."""
    # one name a file: what a killed process leaves behind, the next one writes over
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        yield temporary
        settle(temporary)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(f"cannot write {path}: {reason}; free some space or choose another folder") from error
    finally:
        temporary.unlink(missing_ok=True)


def settle(path: Path) -> None:
    """Have a file on the disk, readable by whom the user lets read files: safetensors' are the user's alone."""
    path.chmod(0o666 & ~UMASK)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read JSON, or None where there is no such file or it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        return None


def cache_folder() -> Path:
    """Where what can be made again is kept for next time: DISSENSUS_CACHE, or the user's cache folder."""
    own = os.environ.get("DISSENSUS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dissensus"


def make_folder(path: Path) -> None:
    """Make a folder and its parents, with one clear line where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {path}: {error.strerror}; choose another") from error
