"""EXPORTS: what a trained run can be written as. A module of this package that registers a target is all it takes.

A target is a function of a run, a path and its own options by keyword; the first line of its docstring is its help:

    @register("numpy")
    def to_numpy(run: Run, out: Path) -> Written:
        '''The members' weights as one .npz file.'''
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import REMEDY
from dissensus._core.outputs import writing
from dissensus._core.places import place
from dissensus._core.registry import Registry
from dissensus.training.run import Run

MARK = "dissensus"  # the metadata key of files written here


class Written(NamedTuple):
    """What an export wrote."""

    path: Path | None  # None if it is on the hub alone
    usage: str  # what can be done with it, to follow "wrote PATH"; or where it was pushed to
    code: str = ""  # the code that loads it
    uncalibrated: bool = False  # whether verdicts are missing because the run is not calibrated


Target = Callable[..., Written]
EXPORTS: Registry[Target] = Registry("export target")
"""Every registered target by name."""

_F = TypeVar("_F", bound=Target)


def register(name: str) -> Callable[[_F], _F]:
    """Add the decorated function to `EXPORTS`."""

    def add(function: _F) -> _F:
        EXPORTS.add(name, function)
        return function

    return add


def export(run: str | os.PathLike[str], to: str, out: str | os.PathLike[str] | None, **options: Any) -> Written:
    """Write a run for use elsewhere.

    Args:
        run: A run folder.
        to: The target, a name in `EXPORTS`.
        out: The file or folder to write; None: none, if the target pushes to the hub.
        options: Options of the target; those that are None are left out.

    Raises:
        DissensusError: If target, options, run or `out` cannot be used.
    """
    target = EXPORTS[to]
    given = {name: value for name, value in options.items() if value is not None}
    known = inspect.signature(target).parameters
    for name in given:
        if name not in known:
            raise DissensusError(f"--{name} is not an option of --to {to}: leave it out")
    if out is None and "push" not in given:
        pushing = ", or --push OWNER/NAME" if "push" in known else ""
        raise DissensusError(f"--to {to} writes a file or folder; got no --out: add --out PATH{pushing}")
    opened = Run.open(run)
    opened.check_single("export writes one backbone")
    if out is None:
        return target(opened, None, **given)
    with writing(out):
        return target(opened, place(out), **given)


def check_file(out: Path, suffix: str, is_export: Callable[[Path], bool]) -> None:
    """Raise `RunError` if `out` has another suffix, or exists and is not an earlier export."""
    if out.suffix.lower() != suffix:
        raise RunError(f"--out must name a file that ends in {suffix}; got {str(out)!r}")
    if out.is_dir():
        raise RunError(f"--out must name a file; {out} is a folder: write {out / ('model' + suffix)}")
    if out.exists() and not is_export(out):
        raise RunError(f"--out must be free or an earlier export; {out} is something else: {REMEDY}")
