"""Table: values under grouped columns, a mean ± deviation over seeds each, for a terminal, documents and notebooks.

>>> columns = (Column("accuracy %", "id", percent=True), Column("ECE", "id", better="lower"))
>>> rows = (Row(("single",), (Value(0.91), Value(0.03))), Row(("sed-a2d",), (Value.of([0.92, 0.94]), Value(0.05))))
>>> print(Table("", ("method",), columns, rows))  # doctest: +NORMALIZE_WHITESPACE
         accuracy %    ECE
method           id       id
------------------------------
single         91.0    0.030*
sed-a2d  93.0 ± 1.4*   0.050
<BLANKLINE>
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from markupsafe import Markup
from pydantic import ConfigDict, Field

from dissensus._core.cells import to_cells
from dissensus._core.documents import Part
from dissensus._core.errors import ShapeError, UnknownNameError
from dissensus.evaluation import _rendering
from dissensus.functional.metrics import Better

Format = Literal["text", "md", "tex", "csv", "json"]


@dataclass(frozen=True)
class Value:
    """A mean over seeds, the deviation between them, and how many there are."""

    __pydantic_config__: ClassVar[ConfigDict] = Part.model_config

    mean: float
    deviation: float = 0.0
    count: Annotated[int, Field(ge=1, le=2**40)] = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> Value | None:
        """The mean and sample deviation of the values that are not NaN; None if there are none."""
        known = np.asarray([v for v in values if not math.isnan(v)], dtype=float)
        if not len(known):
            return None
        return cls(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else 0.0, len(known))


@dataclass(frozen=True)
class Column:
    """One column: the group it stands under, its name, and how its values are shown.

    Attributes:
        group: heading shared by neighbouring columns; "" for none.
        name: heading of this column.
        better: "higher", "lower", or "" where no value is better than another.
        percent: show a share in percent.
        digits: decimals of values that are not in percent.
        warn_above: HTML marks values above this with a warning sign; None: none.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Part.model_config

    group: str
    name: str
    better: Better = "higher"
    percent: bool = False
    digits: Annotated[int, Field(ge=0, le=12)] = 3
    warn_above: float | None = None

    @property
    def title(self) -> str:
        """Group and name in one."""
        return " ".join(dict.fromkeys(filter(None, (self.group, self.name))))

    def text(self, value: Value | None) -> str:
        """The value as a cell: "91.3", "91.3 ± 0.4" where it is of several seeds, "-" where there is none."""
        if value is None:
            return "-"
        scale, digits = (100, 1) if self.percent else (1, self.digits)
        mean = f"{scale * value.mean:.{digits}f}"
        return mean if value.count < 2 else f"{mean} ± {scale * value.deviation:.{digits}f}"

    def warns(self, value: Value | None) -> bool:
        """Whether the value is above `warn_above`."""
        return value is not None and self.warn_above is not None and value.mean > self.warn_above


@dataclass(frozen=True)
class Row:
    """One row: its names, a cell for each column, and its source: "" if measured here, "paper" if printed there."""

    __pydantic_config__: ClassVar[ConfigDict] = Part.model_config

    names: tuple[str, ...]
    cells: tuple[Value | None, ...]
    source: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names, with the source if there is one."""
        return (*self.names[:-1], self.names[-1] + (f" ({self.source})" if self.source else ""))


@dataclass(frozen=True)
class Table:
    """Rows of values under columns; `heads` are the headings of the rows' names.

    In notebooks it shows as HTML. `text`, `markdown`, `latex`, `html` and `frame` give the other forms.
    """

    __pydantic_config__: ClassVar[ConfigDict] = Part.model_config

    title: str
    heads: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if (len(row.names), len(row.cells)) != (len(self.heads), len(self.columns)):
                raise ShapeError(
                    f"every row needs {len(self.heads)} names and {len(self.columns)} cells; row {row.names} has "
                    f"{len(row.names)} and {len(row.cells)}: give one per heading and per column"
                )

    def best(self) -> set[tuple[int, int]]:
        """Places (row, column) of the best values of each column, among rows measured here; none if all are equal."""
        places = set()
        for j, column in enumerate(self.columns):
            measured = [(i, row.cells[j]) for i, row in enumerate(self.rows) if not row.source]
            means = [(i, value.mean) for i, value in measured if value is not None]
            if not column.better or len(means) < 2:
                continue
            top = (max if column.better == "higher" else min)(mean for _, mean in means)
            ties = {(i, j) for i, mean in means if math.isclose(mean, top, abs_tol=1e-12)}
            places |= ties if len(ties) < len(means) else set()
        return places

    @property
    def groups(self) -> Mapping[str, list[int]]:
        """The places of the columns by group, groups in the order of their first column."""
        places: dict[str, list[int]] = {}
        for j, column in enumerate(self.columns):
            places.setdefault(column.group, []).append(j)
        return places

    def without_blanks(self) -> Table:
        """The same without columns and rows that have no value."""
        kept = [j for j in range(len(self.columns)) if any(row.cells[j] is not None for row in self.rows)]
        rows = [Row(row.names, tuple(row.cells[j] for j in kept), row.source) for row in self.rows]
        filled = tuple(row for row in rows if any(cell is not None for cell in row.cells))
        return Table(self.title, self.heads, tuple(self.columns[j] for j in kept), filled, self.note)

    def text(self, width: int | None = None) -> str:
        """For a terminal of `width` columns (None: this one's, else 80); the best value of a column has a star.

        Groups of columns that do not fit go below, with the rows' names repeated.
        """
        return _rendering.text(self, width)

    def markdown(self) -> str:
        """For a document; the best value of a column is in bold."""
        return _rendering.markdown(self)

    def latex(self) -> str:
        """A tabular with booktabs rules; the best value of a column is in bold."""
        return _rendering.latex(self)

    def html(self) -> Markup:
        """A table element with a caption; the best value of a column is in bold, everything is escaped."""
        return _rendering.html(self)

    def frame(self) -> pd.DataFrame:
        """One row per row and one column per column; deviations beside the means where there are several seeds."""
        series: dict[str, list[str | float | None]] = {
            head: [row.names[i] for row in self.rows] for i, head in enumerate(self.heads)
        }
        for j in (place for places in self.groups.values() for place in places):
            cells = [row.cells[j] for row in self.rows]
            title = self.columns[j].title.replace(" %", "")  # shares stay shares
            series[title] = [None if cell is None else cell.mean for cell in cells]
            if any(cell is not None and cell.count > 1 for cell in cells):
                series[f"{title} ±"] = [None if cell is None else cell.deviation for cell in cells]
        if any(row.source for row in self.rows):
            series["source"] = [row.source for row in self.rows]
        return pd.DataFrame(series)

    def render(self, form: Format) -> str:
        """The table as "text", "md" (Markdown), "tex" (LaTeX), "csv" or "json" (records)."""
        if form not in get_args(Format):
            raise UnknownNameError("table format", form, get_args(Format))
        if form == "csv":
            return str(to_cells(self.frame()).to_csv(index=False))
        if form == "json":
            return str(self.frame().to_json(orient="records", indent=1, force_ascii=False)) + "\n"
        return {"text": self.text, "md": self.markdown, "tex": self.latex}[form]()

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()
