"""The simple page: the summary tables of several suites, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dissensus.evaluation.results import Results
from dissensus.report.page import render

SCORES = ("pds", "bma")


@dataclass(frozen=True)
class Section:
    """One suite's results: its name, a line about it, and the frame of `evaluate`."""

    title: str
    summary: str
    frame: pd.DataFrame


def write(sections: Sequence[Section], path: Path) -> None:
    """Write the page: a summary table per suite and score."""
    shown = []
    for section in sections:
        results = Results(section.frame)
        scores = [name for name in SCORES if name in set(section.frame["score"])]
        tables = [results.summary(score=name, title=f"OOD score: {name}") for name in scores]
        shown.append({"title": section.title, "summary": section.summary, "tables": tables})
    render("simple.html", {"sections": shown}, path)
