"""A table as text that fits a terminal, as Markdown, LaTeX and HTML."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

if TYPE_CHECKING:
    from dissensus.evaluation.tables import Table

Lines = list[str]  # a part of a table: group, names, then one line per row, all equally long
GAP = "   "  # between groups of columns
ROOM = 20  # for values at least, however long the rows' names are


def text(table: Table, width: int | None) -> str:
    """Bands of column groups below one another, each with the rows' names; see `Table.text`."""
    width = width or shutil.get_terminal_size((80, 24)).columns
    left = _join([_column(["", head, *names], "ljust") for head, names in zip(table.heads, _names(table), strict=True)])
    room = max(ROOM, width - len(left[0]) - len(GAP))
    best, bands = table.best(), list[list[Lines]]()
    for group, places in table.groups.items():
        for block in _blocks(table, group, places, best, room):
            if not bands or sum(len(GAP) + len(other[0]) for other in [*bands[-1], block]) > room + len(GAP):
                bands.append([])
            bands[-1].append(block)
    parts = [textwrap.fill(table.title, width), ""] if table.title else []
    for number, band in enumerate(bands or [[]]):
        lines = _join([left, *band], GAP)
        parts += [""] * (number > 0) + [*lines[:2], "-" * len(lines[0]), *lines[2:]]
    return "\n".join([*parts, *([textwrap.fill(table.note, width)] if table.note else [])]) + "\n"


def _names(table: Table) -> list[Lines]:
    """The rows' names by head."""
    return [[row.labels[i] for row in table.rows] for i in range(len(table.heads))]


def _blocks(table: Table, group: str, places: Sequence[int], best: set[tuple[int, int]], room: int) -> list[Lines]:
    """The columns of a group side by side; in several pieces where they do not fit."""
    columns = []
    for j in places:
        starred = any(at == j for _, at in best)
        cells = [
            table.columns[j].text(row.cells[j]) + ("*" if (i, j) in best else " " * starred)
            for i, row in enumerate(table.rows)
        ]
        columns.append(_column([table.columns[j].name + " " * starred, *cells], "rjust"))
    blocks: list[Lines] = []
    while columns:
        count = len(columns)
        while count > 1 and sum(2 + len(column[0]) for column in columns[:count]) > room + 2:
            count -= 1
        lines = _join(columns[:count])
        blocks.append(_column([group, *(line.rjust(len(group)) for line in lines)], "ljust"))
        columns = columns[count:]
    return blocks


def _column(lines: Lines, align: str) -> Lines:
    width = max(map(len, lines))
    return [getattr(line, align)(width) for line in lines]


def _join(columns: Sequence[Lines], gap: str = "  ") -> Lines:
    return [gap.join(cells) for cells in zip(*columns, strict=True)]


def markdown(table: Table) -> str:
    """A pipe table; see `Table.markdown`."""
    best, order = table.best(), _order(table)
    lines = [[*table.heads, *(table.columns[j].title for j in order)]]
    for i, row in enumerate(table.rows):
        cells = [table.columns[j].text(row.cells[j]) for j in order]
        marked = [f"**{cell}**" if (i, j) in best else cell for j, cell in zip(order, cells, strict=True)]
        lines.append([*row.labels, *marked])
    shown = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    shown.insert(1, f"|{'---|' * len(table.heads)}{'---:|' * len(order)}")
    return "\n".join(shown) + (f"\n\n{table.note}" if table.note else "") + "\n"


def latex(table: Table) -> str:
    """A tabular; see `Table.latex`."""
    best, order = table.best(), _order(table)
    cells = []
    for i, row in enumerate(table.rows):
        texts = [_tex(table.columns[j].text(row.cells[j])) for j in order]
        marked = [rf"\textbf{{{text}}}" if (i, j) in best else text for j, text in zip(order, texts, strict=True)]
        cells.append([*map(_tex, row.labels), *marked])
    heads = [("", _tex(head)) for head in table.heads]
    heads += [(_tex(table.columns[j].group), _tex(table.columns[j].name)) for j in order]
    frame = pd.DataFrame(cells, columns=pd.MultiIndex.from_tuples(heads))
    form = "l" * len(table.heads) + "r" * len(order)
    return str(frame.style.hide(axis="index").to_latex(hrules=True, column_format=form, multicol_align="c"))


def _tex(plain: str) -> str:
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    escapes |= {mark: "\\" + mark for mark in "&%$#_{}"} | {"λ": r"$\lambda$"}
    return re.sub("|".join(map(re.escape, escapes)), lambda match: escapes[match[0]], plain)


def html(table: Table) -> Markup:
    """A table whose cells carry their values, for the page's script to sort by; see `Table.html`."""
    environment = Environment(loader=PackageLoader("dissensus", "evaluation"), autoescape=True)
    return Markup(environment.get_template("table.html").render(table=table, order=_order(table), best=table.best()))


def _order(table: Table) -> list[int]:
    """The places of the columns, group by group."""
    return [j for places in table.groups.values() for j in places]
