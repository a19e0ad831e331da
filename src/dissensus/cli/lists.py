"""dissensus list: what there is to choose from."""

from __future__ import annotations

from typing import Any

from dissensus.cli.parser import Arguments

LISTS = ("methods", "scores", "aggregates", "suites", "tails")
EXAMPLE = "dissensus list methods"
PLAIN: Arguments = {"what": {"choices": LISTS, "help": ", ".join(LISTS)}}


def list_(what: str) -> None:
    """Say which methods, scores, aggregates, suites or tails there are, a line each.

    Args:
        what: methods, scores, aggregates, suites or tails.
    """
    from dissensus import aggregate, methods, scores, suites, tails

    lines: dict[str, str] = {}
    if what == "methods":
        lines = {name: method.summary for name, method in methods.METHODS.items()}
    else:
        tables: dict[str, dict[str, Any]] = {
            "scores": dict(scores.SCORES),
            "aggregates": dict(aggregate.AGGREGATES),
            "tails": dict(tails.TAILS),
        }
        lines = {name: (entry.__doc__ or "").strip().split("\n")[0] for name, entry in tables.get(what, {}).items()}
    if what == "suites":
        lines = {name: suites.summary(name) for name in suites.SUITES}
    if what == "aggregates":
        lines |= aggregate.OF_WEIGHTS
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name.ljust(width)}  {text}")
