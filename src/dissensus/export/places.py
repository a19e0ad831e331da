"""Check where an export goes: a place that is free or holds an earlier export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dissensus._core.errors import RunError

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
