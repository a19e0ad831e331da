"""Where an export goes: a place that is free or holds an export already, and that is whole or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from dissensus._core.errors import RunError
from dissensus._core.files import TEMPORARY, make_folder, settle

REMEDY = "choose another --out, or remove it yourself"


def check_file(out: Path, suffix: str, ours: Callable[[Path], bool]) -> None:
    """Refuse a file of another kind, and one to be written over that no export has made."""
    if out.suffix.lower() != suffix:
        raise RunError(f"--out must name a file that ends in {suffix}; got {str(out)!r}")
    if out.is_dir():
        raise RunError(f"--out must name a file; {out} is a folder: write {out / ('model' + suffix)}")
    if out.exists() and not ours(out):
        raise RunError(f"--out must be free or an earlier export; {out} is something else: {REMEDY}")


def check_folder(out: Path) -> None:
    """Refuse a folder that holds anything: what was changed in it by hand would be lost."""
    if not out.name:
        raise RunError(f"--out must name a folder of its own; got {str(out)!r}")
    if out.exists() and not out.is_dir():
        raise RunError(f"--out must name a folder; {out} is a file: {REMEDY}")
    if out.is_dir() and any(out.iterdir()):
        raise RunError(f"--out must be a new or an empty folder; {out} holds files: {REMEDY}")


@contextmanager
def whole(out: Path) -> Iterator[Path]:
    """Give a path of the same name to write a file or folder to; it is moved to `out` when the block ends well."""
    make_folder(out.parent)
    # in a folder of its own, not under another name: what reads the file for a check goes by the name's end
    temporary = out.with_name(f".{out.name}{TEMPORARY}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
        temporary.mkdir()
        yield temporary / out.name
        for path in temporary.rglob("*"):
            if path.is_file():
                settle(path)
        os.replace(temporary / out.name, out)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(f"cannot write {out}: {reason}; free some space or choose another folder") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
