"""Run benchmark cases and format their results."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pkgutil
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from tabulate import tabulate

from benchmarks import CASES, disk, images, memory, peers, select
from benchmarks.measure import QUICK, Result, Sizes
from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus._core.files import make_folder, write_json

QUICK_REPEATS = 3
PACKAGES = ("torch-uncertainty", "torchensemble", "scikit-learn", "timm", "onnxruntime")


def run_bench(
    cases: Sequence[str] | None = None,
    *,
    repeats: int = 20,
    as_json: bool = False,
    out: Path | None = None,
    quick: bool = False,
) -> str:
    """Run benchmark cases.

    Args:
        cases: names of cases; None for all of them.
        repeats: interleaved repeats of each case; slow cases use fewer.
        as_json: return JSON instead of a table.
        out: a file to write the JSON to as well.
        quick: use small sizes and at most 3 repeats, to see that everything works; the ratios then say nothing about
            speed.

    Returns:
        A table as text, or JSON.

    Raises:
        UnknownNameError: for an unknown case.
        DissensusError: if `repeats` is below 1, `out` cannot be written, or a case lacks a library or disk space.
    """
    names = select(cases)
    if repeats < 1:
        raise DissensusError(f"repeats must be at least 1; got {repeats}")
    sizes, repeats = (QUICK, min(repeats, QUICK_REPEATS)) if quick else (Sizes(), repeats)
    # Check everything that could stop a late case before the first one runs.
    if {"peers", "job"} & set(names):
        peers.require()
    if "memory" in names:
        memory.require(sizes)
    if "shuffle" in names:
        disk.require(sizes)
    if {"engine", "int8", "export"} & set(names):
        images.require()
    if out is not None:
        _check_out(out)

    results = [result for name in names for result in _run_case(name, sizes, repeats)]
    record = {
        "versions": _versions(),
        "threads": torch.get_num_threads(),
        "quick": quick,
        "sizes": asdict(sizes),
        "results": [result.record() for result in results],
    }
    if out is not None:
        write_json(out, record)
    return json.dumps(record, indent=2, allow_nan=False) if as_json else _table(results, quick)


def _run_case(name: str, sizes: Sizes, repeats: int) -> Sequence[Result]:
    results: Sequence[Result] = pkgutil.resolve_name(f"benchmarks.{CASES[name].function}")(sizes, repeats)
    return results


def _check_out(out: Path) -> None:
    make_folder(out.parent)
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise DissensusError(f"--out must be a file in a writable folder; got {out}: choose another path")


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "dissensus": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _table(results: Sequence[Result], quick: bool) -> str:
    """The table, followed by what each row compares: together they would be too wide for a terminal."""
    headers = ["case", "ratio [quartiles]", "bar", "met", "time"]
    lines = [
        tabulate([result.row() for result in results], headers, disable_numparse=True),
        "",
        *(f"{result.name}: {result.description}" for result in results),
        "",
        f"{torch.get_num_threads()} threads, torch {torch.__version__}",
    ]
    if quick:
        lines.append("Quick sizes: this shows that the benchmarks work, not how fast anything is.")
    return "\n".join(lines)
