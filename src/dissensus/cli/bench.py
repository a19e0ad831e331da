"""dissensus bench: speed, measured."""

from __future__ import annotations

from pathlib import Path

from dissensus.cli.parser import Arguments

EXAMPLE = "dissensus bench --cases floor scaling --json"
PLAIN: Arguments = {"--cases": {"nargs": "+", "metavar": "CASE", "help": "which cases; by default all of them"}}


def bench(
    cases: list[str] | None = None, repeats: int = 20, json: bool = False, out: str | None = None, quick: bool = False
) -> None:
    """Measure speed as ratios within one run: against the floor, a plain loop, and two peer libraries.

    Args:
        cases: which cases; by default all: floor, scaling, pairs, loop, peers, memory, extract, engine, predict.
        repeats: interleaved repeats; medians are reported.
        json: print JSON instead of a table.
        out: write the JSON to this file as well.
        quick: small sizes and few repeats, to see that it works; the ratios then say little.
    """
    from dissensus.bench import run_bench

    print(run_bench(cases, repeats=repeats, as_json=json, out=None if out is None else Path(out), quick=quick))
