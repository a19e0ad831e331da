"""python -m benchmarks: measure speed as ratios within one run."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import auto_cli

from benchmarks import run_bench


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
    print(run_bench(cases, repeats=repeats, as_json=json, out=None if out is None else Path(out), quick=quick))


if __name__ == "__main__":
    auto_cli(bench, as_positional=False)
