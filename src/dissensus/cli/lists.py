"""dissensus list: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dissensus.cli.parser import Arguments

LISTS = (
    "backbones",
    "methods",
    "scores",
    "aggregates",
    "metrics",
    "suites",
    "studies",
    "tails",
    "corruptions",
    "engines",
    "exports",
)
EXAMPLE = "dissensus list methods"
PLAIN: Arguments = {"what": {"choices": LISTS, "help": ", ".join(LISTS)}}


def list_(what: str) -> None:
    """Say what there is to choose from, a line each.

    Args:
        what: backbones, methods, scores, aggregates, metrics, suites, studies, tails, corruptions, engines or exports.
    """
    from tabulate import tabulate

    from dissensus import backbones, suites
    from dissensus.backbones import engines
    from dissensus.experiments import studies
    from dissensus.export import EXPORTS
    from dissensus.functional import aggregates, metrics, scores
    from dissensus.images import corruptions
    from dissensus.models import tails
    from dissensus.training import methods

    makers: dict[str, Callable[[], dict[str, str]]] = {
        "backbones": backbones.known,
        "methods": lambda: {name: method.summary for name, method in methods.METHODS.items()},
        "scores": lambda: _first_lines(scores.SCORES),
        "aggregates": lambda: {name: a.summary for name, a in aggregates.AGGREGATES.items()},
        "metrics": lambda: {name: metric.summary for name, metric in metrics.METRICS.items()},
        "suites": lambda: {name: suites.summary(name) for name in suites.SUITES},
        "studies": lambda: {name: f"{s.paper}: {s.summary}" for name, s in studies.STUDIES.items()},
        "tails": lambda: (
            _first_lines({name: kind.module for name, kind in tails.TAILS.items()})
            | {"backbone": "The layers that were cut off the backbone."}
        ),
        "corruptions": lambda: dict.fromkeys(corruptions.CORRUPTIONS, "severities 1 to 5, as ImageNet-C"),
        "engines": lambda: _first_lines(engines.ENGINES),
        "exports": lambda: _first_lines(EXPORTS),
    }
    print(tabulate(makers[what]().items(), tablefmt="plain", disable_numparse=True))


def _first_lines(table: Mapping[str, Any]) -> dict[str, str]:
    return {name: (entry.__doc__ or "").strip().split("\n")[0] for name, entry in table.items()}
