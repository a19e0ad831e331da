"""dissensus list: what there is to choose from."""

from __future__ import annotations

import pkgutil
from typing import Any

from dissensus._core.registry import Registry
from dissensus._core.terminal import show
from dissensus.cli.command import command

# Where each is, imported only when it is asked for: methods are listed without PyTorch.
LISTS: Registry[str] = Registry(
    "list",
    {
        "methods": "dissensus.training.methods:METHODS",
        "scores": "dissensus.functional.scores:SCORES",
        "aggregates": "dissensus.functional.aggregates:AGGREGATES",
        "metrics": "dissensus.functional.metrics:METRICS",
        "tails": "dissensus.models.tails:TAILS",
        "norms": "dissensus.models.norms:NORMS",
        "backbones": "dissensus.backbones.weights:known",
        "engines": "dissensus.backbones.engines:ENGINES",
        "corruptions": "dissensus.images.corruptions:CORRUPTIONS",
        "views": "dissensus.images.standins:VIEWS",
        "suites": "dissensus.suites:SUITES",
        "studies": "dissensus.experiments.studies:STUDIES",
        "exports": "dissensus.export:EXPORTS",
        "score-files": "dissensus.evaluation.score_files:SCORE_FILES",
    },
)


@command("list", "dissensus list methods", reads=False)
def list_(what: str) -> None:
    """List the names to choose from, one per line.

    Args:
        what: methods, scores, aggregates, metrics, tails, norms, backbones, engines, corruptions, views, suites,
            studies, exports or score-files.
    """
    from tabulate import tabulate

    entries: Any = pkgutil.resolve_name(LISTS[what])
    entries = entries() if callable(entries) else entries
    if not isinstance(entries, dict):
        entries = dict.fromkeys(entries, "severities 1 to 5, as ImageNet-C")
    if what == "tails":
        entries = {**entries, "backbone": "The layers that were cut off the backbone."}
    rows = [(name, _summary(entry)) for name, entry in entries.items()]
    show(tabulate(rows, tablefmt="plain", disable_numparse=True))


def _summary(entry: Any) -> str:
    """One line about an entry: its summary, else the first line of its docstring."""
    if isinstance(entry, str):
        return entry
    if hasattr(entry, "summary"):
        return f"{entry.paper}: {entry.summary}" if hasattr(entry, "paper") else str(entry.summary)
    return (getattr(entry, "module", entry).__doc__ or "").strip().split("\n")[0]
