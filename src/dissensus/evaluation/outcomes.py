"""Outcomes: the results of a study, as tables, curves and examples; for a terminal and documents, and as JSON."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict

from dissensus._core import documents
from dissensus._core.documents import Document, Part
from dissensus._core.errors import ShapeError
from dissensus.evaluation.examples import Example
from dissensus.evaluation.tables import Column, Row, Table, Value


@dataclass(frozen=True)
class Curve:
    """Lines over a common axis: name -> values at `x`."""

    __pydantic_config__: ClassVar[ConfigDict] = Part.model_config

    title: str
    x_name: str
    y_name: str
    x: tuple[float, ...]
    lines: Mapping[str, tuple[Value | None, ...]]

    def __post_init__(self) -> None:
        for name, values in self.lines.items():
            if len(values) != len(self.x):
                raise ShapeError(
                    f"a line needs one value per x, {len(self.x)}; {name} has {len(values)}: add the others"
                )

    def table(self) -> Table:
        """The same as a table, one row per x."""
        columns = tuple(Column(self.y_name, name, better="") for name in self.lines)
        rows = [Row((f"{x:g}",), tuple(values[i] for values in self.lines.values())) for i, x in enumerate(self.x)]
        return Table(self.title, (self.x_name,), columns, tuple(rows))


class Outcome(Document):
    """The results of a study.

    Attributes:
        study: its name.
        paper: which table or figure of the paper it is.
        suite: name of the suite it was run on.
        title: what the page calls the data; "": the suite.
        summary: one line about it.
        tables: its tables.
        curves: its curves.
        examples: heading -> images.
        notes: lines below.
    """

    remedy: ClassVar[str] = "remove it and run the study again"

    format: Literal["dissensus-study-2"] = "dissensus-study-2"
    study: str
    paper: str
    suite: str
    summary: str
    tables: tuple[Table, ...] = ()
    curves: tuple[Curve, ...] = ()
    examples: Mapping[str, tuple[Example, ...]] = {}
    notes: tuple[str, ...] = ()
    title: str = ""

    @property
    def every_table(self) -> list[Table]:
        """The tables, and the curves as tables."""
        return [*self.tables, *(curve.table() for curve in self.curves)]

    def text(self, width: int | None = None) -> str:
        """For a terminal of `width` columns (None: this one's, else 80)."""
        width = width or shutil.get_terminal_size((80, 24)).columns
        parts = [textwrap.fill(f"{self.study} ({self.paper}) on {self.suite}: {self.summary}", width) + "\n"]
        parts += [table.text(width) for table in self.every_table]
        for heading, examples in self.examples.items():
            lines = [f"{e.pds:7.3f}  {e.line}" for e in examples]
            filled = [textwrap.fill(line, width, subsequent_indent=" " * 9) for line in lines]
            parts.append("\n".join([heading, "", *filled]) + "\n")
        return "\n".join([*parts, *(textwrap.fill(note, width) for note in self.notes)])

    def markdown(self) -> str:
        """For a document, without pictures."""
        parts = [f"### {self.study} ({self.paper}) on {self.suite}", f"{self.summary[:1].upper()}{self.summary[1:]}."]
        for table in self.every_table:
            parts += [f"**{table.title}**", table.markdown()]
        for heading, examples in self.examples.items():
            parts += [f"**{heading}**", "\n".join(f"- {e.line}; PDS {e.pds:.3f}" for e in examples)]
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def latex(self) -> str:
        """Its tables, each under a comment with its title."""
        return "\n".join(f"% {self.study}: {table.title}\n{table.latex()}" for table in self.every_table)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        documents.write(path, self)

    @classmethod
    def load(cls, path: Path) -> Outcome | None:
        """Read what `save` wrote; None if the file is of another kind.

        Raises:
            RunError: if it is the outcome of a study, but damaged.
        """
        try:
            with open(path, "rb") as file:
                start = file.read(200)  # `format` is the first field
        except OSError:
            return None
        return documents.read(cls, path) if cls.model_fields["format"].default.encode() in start else None
