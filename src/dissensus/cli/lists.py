"""dissensus list: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dissensus._core.registry import Registry
from dissensus.cli.command import command


@command("list", "dissensus list methods")
def list_(what: str) -> None:
    """List the names to choose from, one per line.

    Args:
        what: methods, scores, aggregates, metrics, tails, backbones, engines, corruptions, suites, studies or exports.
    """
    from tabulate import tabulate

    print(tabulate(LISTS[what]().items(), tablefmt="plain", disable_numparse=True))


# Every list imports what it is of and nothing else: methods are there at once, without PyTorch.


def _methods() -> dict[str, str]:
    from dissensus.training.methods import METHODS

    return {name: method.summary for name, method in METHODS.items()}


def _scores() -> dict[str, str]:
    from dissensus.functional.scores import SCORES

    return _first_lines(SCORES)


def _aggregates() -> dict[str, str]:
    from dissensus.functional.aggregates import AGGREGATES

    return {name: aggregate.summary for name, aggregate in AGGREGATES.items()}


def _metrics() -> dict[str, str]:
    from dissensus.functional.metrics import METRICS

    return {name: metric.summary for name, metric in METRICS.items()}


def _tails() -> dict[str, str]:
    from dissensus.models.tails import TAILS

    modules = _first_lines({name: kind.module for name, kind in TAILS.items()})
    return modules | {"backbone": "The layers that were cut off the backbone."}


def _backbones() -> dict[str, str]:
    from dissensus import backbones

    return backbones.known()


def _engines() -> dict[str, str]:
    from dissensus.backbones.engines import ENGINES

    return _first_lines(ENGINES)


def _corruptions() -> dict[str, str]:
    from dissensus.images.corruptions import CORRUPTIONS

    return dict.fromkeys(CORRUPTIONS, "severities 1 to 5, as ImageNet-C")


def _suites() -> dict[str, str]:
    from dissensus import suites

    return {name: suites.summary(name) for name in suites.SUITES}


def _studies() -> dict[str, str]:
    from dissensus.experiments.studies import STUDIES

    return {name: f"{study.paper}: {study.summary}" for name, study in STUDIES.items()}


def _exports() -> dict[str, str]:
    from dissensus.export import EXPORTS

    return _first_lines(EXPORTS)


def _first_lines(table: Mapping[str, Any]) -> dict[str, str]:
    return {name: (entry.__doc__ or "").strip().split("\n")[0] for name, entry in table.items()}


LISTS: Registry[Callable[[], dict[str, str]]] = Registry(
    "list",
    {
        "methods": _methods,
        "scores": _scores,
        "aggregates": _aggregates,
        "metrics": _metrics,
        "tails": _tails,
        "backbones": _backbones,
        "engines": _engines,
        "corruptions": _corruptions,
        "suites": _suites,
        "studies": _studies,
        "exports": _exports,
    },
)
