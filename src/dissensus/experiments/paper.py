"""The figures that the paper prints, from paper.yaml, as rows of our tables."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, model_validator

from dissensus._core.documents import Part
from dissensus._core.parsing import read_yaml
from dissensus.evaluation.tables import Column, Row, Table, Value


class PrintedRow(Part):
    """A row: its names, and its values for each group of columns."""

    names: tuple[str, ...]
    values: tuple[tuple[float | Value, ...], ...]


class PrintedTable(Part):
    """A table of the paper, or a part of one; percentages as percentages."""

    columns: dict[str, tuple[str, ...]]  # group -> names
    rows: tuple[PrintedRow, ...]
    title: str = ""  # a word in the title of the study's table that it belongs to; "": any
    suite: str = "imagenet"

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        lengths = [len(names) for names in self.columns.values()]
        for row in self.rows:
            if [len(values) for values in row.values] != lengths:
                raise ValueError(f"row {', '.join(row.names)} should have {lengths} values")
        return self


@cache
def tables() -> dict[str, tuple[PrintedTable, ...]]:
    """Return the paper's tables by study."""
    values = read_yaml(Path(str(resources.files(__package__) / "paper.yaml")), "the paper's tables are a YAML file")
    adapter = TypeAdapter(dict[str, tuple[PrintedTable, ...]])
    return adapter.validate_json(json.dumps(values))  # JSON: arrays may be tuples


def rows(study: str, suite: str, table: Table) -> tuple[Row, ...]:
    """Return the paper's rows for a table of a study.

    Args:
        study: A name in `STUDIES`.
        suite: The suite that the study ran on; only the paper's own suites have rows.
        table: The table, whose columns the rows follow.

    Returns:
        One row per row of the paper with a value under some column; cells that the paper does not print are None.
    """
    matching = [t for t in tables().get(study, ()) if t.suite == suite and t.title in table.title]
    result = []
    for printed in matching:
        columns = [(group, name) for group, names in printed.columns.items() for name in names]
        for row in printed.rows:
            values = dict(zip(columns, (value for group in row.values for value in group), strict=True))
            cells = tuple(_cell(values.get((column.group, column.name)), column) for column in table.columns)
            if any(cell is not None for cell in cells):
                result.append(Row(row.names, cells, source="paper"))
    return tuple(result)


def _cell(value: float | Value | None, column: Column) -> Value | None:
    if value is None or isinstance(value, Value):
        return value
    return Value(value / 100 if column.percent else value)
