"""Outcomes: what a study found, as tables and curves with means and deviations over seeds; text, JSON and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dissensus._core.files import read_json, write_json

FORMAT = "dissensus-study-1"


@dataclass(frozen=True)
class Value:
    """A mean over seeds, the deviation between them, and how many there were."""

    mean: float
    deviation: float = 0.0
    count: int = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> Value | None:
        """The mean and sample deviation of what is there; None of nothing."""
        found = np.asarray([v for v in values if not math.isnan(v)], dtype=float)
        if not len(found):
            return None
        return cls(float(found.mean()), float(found.std(ddof=1)) if len(found) > 1 else 0.0, len(found))


@dataclass(frozen=True)
class Column:
    """One column of a table: its group, its name, and how its values are shown.

    `best` is "max", "min", or "" where no value is better than another. `percent` shows a share in percent.
    """

    group: str
    name: str
    best: str = "max"
    percent: bool = False
    digits: int = 3

    def text(self, value: Value | None) -> str:
        """The value as a cell."""
        if value is None:
            return "-"
        scale, digits = (100, 1) if self.percent else (1, self.digits)
        mean = f"{scale * value.mean:.{digits}f}"
        return mean if value.count < 2 else f"{mean} ± {scale * value.deviation:.{digits}f}"


@dataclass(frozen=True)
class Row:
    """One row of a table; `source` is "" for what was measured here and "paper" for the paper's own figures."""

    names: tuple[str, ...]
    cells: tuple[Value | None, ...]
    source: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; `heads` name the columns that hold the rows' names."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def best(self) -> set[tuple[int, int]]:
        """The places (row, column) of the best of each column, ties included, of what was measured here."""
        found = set()
        for j, column in enumerate(self.columns):
            own = [(i, row.cells[j]) for i, row in enumerate(self.rows) if not row.source]
            there = [(i, value.mean) for i, value in own if value is not None]
            if not column.best or len(there) < 2:
                continue
            top = (max if column.best == "max" else min)(mean for _, mean in there)
            found |= {(i, j) for i, mean in there if math.isclose(mean, top, abs_tol=1e-12)}
        return found

    def text(self) -> str:
        """For a terminal; the best of a column has a star."""
        best = self.best()
        names = [" / ".join(dict.fromkeys(filter(None, (c.group, c.name)))) for c in self.columns]
        lines = [[*self.heads, *names]]
        for i, row in enumerate(self.rows):
            cells = [c.text(v) + ("*" if (i, j) in best else "") for j, (c, v) in enumerate(self._pairs(row))]
            name = [*row.names[:-1], row.names[-1] + (" (paper)" if row.source else "")]
            lines.append([*name, *cells])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        count = len(self.heads)
        shown = [
            "  ".join(
                cell.ljust(w) if i < count else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        shown.insert(1, "-" * max(map(len, shown)))
        note = [self.note] if self.note else []
        return "\n".join([self.title, "", *(line.rstrip() for line in shown), *note]) + "\n"

    def markdown(self) -> str:
        """For a document; the best of a column in bold."""
        best = self.best()
        heads = [*self.heads, *(" ".join(dict.fromkeys(filter(None, (c.group, c.name)))) for c in self.columns)]
        lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(self.heads)}{'---:|' * len(self.columns)}"]
        for i, row in enumerate(self.rows):
            cells = []
            for j, (column, value) in enumerate(self._pairs(row)):
                text = column.text(value)
                cells.append(f"**{text}**" if (i, j) in best else text)
            name = [*row.names[:-1], row.names[-1] + (" (paper)" if row.source else "")]
            lines.append(f"| {' | '.join([*name, *cells])} |")
        return "\n".join(lines) + ("\n\n" + self.note if self.note else "") + "\n"

    def _pairs(self, row: Row) -> list[tuple[Column, Value | None]]:
        return list(zip(self.columns, row.cells, strict=True))


@dataclass(frozen=True)
class Curve:
    """Lines over a common axis: name -> values at `x`."""

    title: str
    x_name: str
    y_name: str
    x: tuple[float, ...]
    lines: Mapping[str, tuple[Value | None, ...]]

    def table(self) -> Table:
        """The same as a table, a row for each x."""
        columns = tuple(Column(self.y_name, name, best="") for name in self.lines)
        rows = [Row((f"{x:g}",), tuple(values[i] for values in self.lines.values())) for i, x in enumerate(self.x)]
        return Table(self.title, (self.x_name,), columns, tuple(rows))


@dataclass(frozen=True)
class Example:
    """One image with what the ensemble and its members say of it; the picture is a data: address."""

    picture: str
    truth: str
    answer: str
    votes: tuple[str, ...]
    score: float
    place: str  # which set and which image


@dataclass(frozen=True)
class Outcome:
    """What a study found."""

    study: str
    paper: str  # which table or figure of the paper it is
    suite: str
    summary: str
    tables: tuple[Table, ...] = ()
    curves: tuple[Curve, ...] = ()
    examples: Mapping[str, tuple[Example, ...]] = field(default_factory=dict)  # a heading -> images
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """For a terminal."""
        parts = [f"{self.study} ({self.paper}) on {self.suite}: {self.summary}\n"]
        parts += [table.text() for table in (*self.tables, *(curve.table() for curve in self.curves))]
        for heading, examples in self.examples.items():
            lines = [
                f"{e.score:7.3f}  {e.place}: {e.truth}; ensemble {e.answer}; members {', '.join(e.votes)}"
                for e in examples
            ]
            parts.append("\n".join([heading, "", *lines]) + "\n")
        return "\n".join([*parts, *self.notes])

    def markdown(self) -> str:
        """For a document, without pictures."""
        parts = [f"### {self.study} ({self.paper}) on {self.suite}", f"{self.summary[:1].upper()}{self.summary[1:]}."]
        for table in (*self.tables, *(curve.table() for curve in self.curves)):
            parts += [f"**{table.title}**", table.markdown()]
        for heading, examples in self.examples.items():
            lines = [
                f"- {e.place}: {e.truth}; ensemble {e.answer}; {', '.join(e.votes)}; PDS {e.score:.3f}"
                for e in examples
            ]
            parts += [f"**{heading}**", "\n".join(lines)]
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def save(self, path: Path) -> None:
        """As JSON."""
        write_json(path, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, path: Path) -> Outcome | None:
        """What `save` wrote, or None."""
        found = read_json(path)
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            return None
        tables = tuple(
            Table(
                **{
                    **table,
                    "heads": tuple(table["heads"]),
                    "columns": tuple(Column(**column) for column in table["columns"]),
                    "rows": tuple(Row(tuple(r["names"]), _values(r["cells"]), r["source"]) for r in table["rows"]),
                }
            )
            for table in found.pop("tables")
        )
        curves = tuple(
            Curve(**{**c, "x": tuple(c["x"]), "lines": {name: _values(line) for name, line in c["lines"].items()}})
            for c in found.pop("curves")
        )
        examples = {
            heading: tuple(Example(**{**e, "votes": tuple(e["votes"])}) for e in group)
            for heading, group in found.pop("examples").items()
        }
        return cls(**{**found, "notes": tuple(found["notes"])}, tables=tables, curves=curves, examples=examples)


def _values(cells: Sequence[Any]) -> tuple[Value | None, ...]:
    return tuple(None if cell is None else Value(**cell) for cell in cells)
