"""What several studies make of results: the appendix's table, and the trial that detects best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dissensus.evaluation.results import DETECTED, LABELLED, Measure, Results
from dissensus.evaluation.tables import Table


def best(results: Results, trials: Sequence[str], roles: Iterable[str], score: str = "pds") -> str:
    """The trial with the highest mean AUROC over the families of these roles: a choice that takes OOD data."""
    families = results.families(*roles)

    def quality(trial: str) -> float:
        values = [v.mean for family in families if (v := results.auroc(trial, family, score)) is not None]
        return sum(values) / len(values) if values else float("-inf")

    return max(trials, key=quality)


def overview(
    results: Results, title: str, heads: Sequence[str], rows: Sequence[tuple[Sequence[str], str]], note: str = ""
) -> Table:
    """The layout of the paper's appendix: ensemble accuracy on id and shifts, AUROC of PDS on shifts and ood.

    `rows` are (names, trial).
    """
    measures = [Measure("accuracy", family, "prediction") for family in results.families(*LABELLED)]
    measures += [Measure("accuracy", family, "members", heading="members") for family in results.families("id")]
    measures += [Measure("auroc", family, score="pds", heading="AUROC pds") for family in results.families(*DETECTED)]
    return results.table(title, measures, heads=heads, rows=rows, note=note)
