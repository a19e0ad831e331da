"""Cells of CSV files: spreadsheets run a cell that begins with = + - @, a tab or a carriage return as a formula.

Such a text is written with a quotation mark before it, and read without. Numbers are not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_cell(text: str) -> str:
    """Return a text as a cell.

    >>> to_cell("=1+2.jpg"), to_cell("cat.jpg"), to_cell("'=1+2.jpg")
    ("'=1+2.jpg", 'cat.jpg', "''=1+2.jpg")
    """
    return f"'{text}" if _marked(text) else text


def from_cell(cell: str) -> str:
    """Return the text of a cell that `to_cell` wrote.

    >>> from_cell("'=1+2.jpg"), from_cell("'cat.jpg"), from_cell("''=1+2.jpg")
    ('=1+2.jpg', "'cat.jpg", "'=1+2.jpg")
    """
    return cell[1:] if cell.startswith("'") and _marked(cell) else cell


def to_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with `to_cell` of its texts and of the names of its columns."""
    return _mapped(frame.rename(columns=_of_texts(to_cell)), to_cell)


def from_cells(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with `from_cell` of its texts and of the names of its columns."""
    return _mapped(frame.rename(columns=_of_texts(from_cell)), from_cell)


def _mapped(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    frame = frame.copy()
    for name in frame.select_dtypes(exclude=["number", "bool"]):
        frame[name] = frame[name].map(_of_texts(change))
    return frame


def _of_texts(change: Callable[[str], str]) -> Callable[[Any], Any]:
    return lambda value: change(value) if isinstance(value, str) else value


def _marked(text: str) -> bool:
    """Whether a text is a formula, perhaps after quotation marks, which therefore get one more."""
    return text.lstrip("'").startswith(FORMULA)
