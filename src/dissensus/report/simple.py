"""The simple page: results of one or several suites as tables with bars, no script at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from dissensus import __version__
from dissensus._core.files import make_folder, replacing
from dissensus.evaluation import tables

__all__ = ["Section", "write"]

NEUTRAL = frozenset({"#unique", "PDS"})  # diversity is neither good nor bad by itself: nothing is set in bold


@dataclass(frozen=True)
class Section:
    """One suite's results, as the page shows them."""

    title: str
    summary: str
    frame: pd.DataFrame


def write(sections: Sequence[Section], path: Path, *, score: str = "pds", other: str = "bma") -> None:
    """Write the page: per suite one table with a bar in every cell, and the AUROC of a second score beside."""
    environment = Environment(loader=PackageLoader("dissensus.report"), autoescape=True, undefined=StrictUndefined)
    shown = [
        {
            "title": section.title,
            "summary": section.summary,
            "tables": [_table(section, s) for s in (score, other) if _has_auroc(section.frame) or s == score],
        }
        for section in sections
    ]
    html = environment.get_template("simple.html").render(sections=shown, version=__version__)
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _has_auroc(frame: pd.DataFrame) -> bool:
    return bool((frame["metric"] == "auroc").any())


def _table(section: Section, score: str) -> dict[str, Any]:
    """Header groups, column names and cells: text, bar length in percent, whether it is the best of its column."""
    table = tables.summary(section.frame, score=score)
    groups: list[dict[str, Any]] = []
    for group in (column[0] for column in table.columns):
        if groups and groups[-1]["name"] == group:
            groups[-1]["span"] += 1
        else:
            groups.append({"name": group, "span": 1})
    columns = [_cells(column[0], table[column]) for column in table.columns]
    rows = [
        {"name": name, "cells": [column[i] for column in columns]} for i, name in enumerate(tables.row_names(table))
    ]
    return {"score": score, "groups": groups, "sets": [column[1] for column in table.columns], "rows": rows}


def _cells(group: str, column: pd.Series[float]) -> list[dict[str, Any]]:
    percent = group in tables.PERCENT
    top = float(column.max())
    bounded = percent or group.startswith("AUROC")
    return [
        {
            "text": f"{100 * value:.1f}" if percent else f"{value:.3f}",
            "bar": round(100 * value / (1.0 if bounded else max(top, 1e-9)), 1),
            "best": group not in NEUTRAL and value == top and len(column) > 1,
        }
        for value in column
    ]
