"""The bench: speed as ratios measured within one run, and the memory of one epoch.

    dissensus bench --json

Every case runs its two sides in turn and reports the ratio of their medians; see `peers`, `images` and `memory` for
what exactly is compared.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import core, images, memory, peers
from benchmarks.measure import QUICK, Entry, Sizes, sizes_record
from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus._core.files import make_folder, write_json
from dissensus._core.registry import Registry

__all__ = ["CASES", "run_bench"]

QUICK_REPEATS = 3

CASES: Registry[Callable[[Sizes, int], Sequence[Entry]]] = Registry(
    "bench case",
    {
        "floor": core.floor,
        "scaling": core.scaling,
        "pairs": core.pairs,
        "loop": peers.loop,
        "peers": peers.libraries,
        "memory": memory.one_epoch,
        "extract": images.extraction,
        "engine": images.faster,
        "predict": images.prediction,
        "export": images.exported,
    },
)


def run_bench(
    cases: Sequence[str] | None = None,
    *,
    repeats: int = 20,
    as_json: bool = False,
    out: Path | None = None,
    quick: bool = False,
) -> str:
    """Run these cases (None: all) and give a table or JSON; `out` is a file for the JSON.

    `quick` shrinks sizes and repeats to see that everything works; its numbers say nothing about speed.
    """
    names = list(CASES) if cases is None else list(dict.fromkeys(cases))
    CASES.check(*names)
    if repeats < 1:
        raise DissensusError(f"repeats must be at least 1; got {repeats}")
    sizes, repeats = (QUICK, min(repeats, QUICK_REPEATS)) if quick else (Sizes(), repeats)
    # What could stop a late case is looked at first, not after minutes.
    if "peers" in names:
        peers.require()
    if "memory" in names:
        memory.require(sizes)
    if {"engine", "export"} & set(names):
        images.require()
    if out is not None:
        make_folder(out.parent)

    entries = [entry for name in names for entry in CASES[name](sizes, repeats)]
    record = {
        "versions": _versions(),
        "threads": torch.get_num_threads(),
        "quick": quick,
        "sizes": sizes_record(sizes),
        "results": [entry.record() for entry in entries],
    }
    if out is not None:
        write_json(out, record)
    return json.dumps(record, indent=2, allow_nan=False) if as_json else _table(entries, quick)


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {
        "dissensus": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    for name in ("torch-uncertainty", "torchensemble", "timm", "onnxruntime"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _table(entries: Sequence[Entry], quick: bool) -> str:
    rows = [["case", "ratio [quartiles]", "bar", "met", "of what (median of each side)"], *(e.row() for e in entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    lines.append(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    if quick:
        lines.append("Quick sizes: this shows that the bench works, not how fast anything is.")
    return "\n".join(lines)
