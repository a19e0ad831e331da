"""The command `python -m benchmarks`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks import CASES, select
from dissensus._core.errors import DissensusError


class _Parser(argparse.ArgumentParser):
    """A parser that reports misuse in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks: error: {message} (see: {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    listed = "\n".join(f"  {name:<8} {case.summary}" for name, case in CASES.items())
    parser = _Parser(
        prog="python -m benchmarks",
        description="Measure speed as ratios within one run. The two sides of a case run in turn.\n"
        "Each repeat gives one ratio; their median and quartiles are reported.",
        epilog=f"cases (first side / second side):\n{listed}\n\n"
        "examples:\n"
        "  python -m benchmarks --quick   # check that everything works, 1 minute\n"
        "  python -m benchmarks --cases floor loop --repeats 30\n"
        "  python -m benchmarks --json --out results.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="the cases to run (default: all)")
    parser.add_argument(
        "--repeats", type=int, default=20, metavar="N", help="repeats of each case; slow cases use fewer (default: 20)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file as well")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes and at most 3 repeats; the ratios then say nothing about speed",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 2 on misuse, 130 on Ctrl-C."""
    try:
        options = build_parser().parse_args(argv)
        cases = select(options.cases)
        from benchmarks.run import run_bench  # loads PyTorch

        print(run_bench(cases, repeats=options.repeats, as_json=options.json, out=options.out, quick=options.quick))
    except DissensusError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbenchmarks: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
