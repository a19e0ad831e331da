"""Questions on disk: a table to fill in, and the labelled samples that it becomes.

image,label,votes,reason          images that are files; paths start at the table's folder, or are absolute
row,label,votes,reason,pool       features and images in tars: the row in the pool, and a part of its fingerprint
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dissensus._core.cells import FORMULA, to_cell
from dissensus._core.errors import DataError
from dissensus._core.places import place
from dissensus.adaptation._ask import Questions
from dissensus.features import FeatureSet
from dissensus.images import ImageSet

IMAGE, ROW, LABEL, POOL = "image", "row", "label", "pool"
DIGITS = 12  # of a pool's fingerprint


@dataclass(frozen=True)
class Answers:
    """The rows of a table that have a label.

    Attributes:
        labels: Names of classes.
        paths: Of the images; empty if the samples are rows of a pool.
        rows: In the pool.
        pool: The first digits of its fingerprint; "" if unknown.
    """

    labels: tuple[str, ...]
    paths: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    pool: str = ""


def table(questions: Questions, pool: FeatureSet | ImageSet, folder: str | os.PathLike[str]) -> str:
    """Return the questions as CSV, to be written to a file in `folder`, with an empty column for labels.

    Cells that a spreadsheet would take for formulas begin with a quotation mark, or with ./ if they are paths.

    Raises:
        DataError: If the path of an image is not UTF-8.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    rows = questions.rows.tolist()
    paths = [pool.path(row) if isinstance(pool, ImageSet) else None for row in rows]
    files = None not in paths
    writer.writerow([IMAGE if files else ROW, LABEL, "votes", "reason", *([] if files else [POOL])])
    for row, path, votes, reason in zip(rows, paths, questions.named_votes, questions.reasons, strict=True):
        sample = row if path is None or not files else _path(path, folder)
        cells = [sample, "", to_cell(";".join(votes)), to_cell(reason)]
        writer.writerow([*cells, *([] if files else [_plain_digits(pool)])])
    return file.getvalue()


def _path(path: str, folder: str | os.PathLike[str]) -> str:
    """A path as a table in `folder` names it: relative to it if it lies below, else absolute."""
    inside = os.path.relpath(path, folder)
    outside = inside == os.pardir or inside.startswith(os.pardir + os.sep)
    name = os.path.abspath(path) if outside else inside
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a table names images in UTF-8; {name!r} is not: rename it") from error
    return os.path.join(os.curdir, name) if name.startswith(FORMULA) or name != name.strip() else name


def _plain_digits(pool: FeatureSet | ImageSet) -> str:
    """Part of a fingerprint that no spreadsheet takes for a number, such as 12e45."""
    return f"sha256:{pool.fingerprint[:DIGITS]}"


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a table with columns `image` or `row`, and `label`."""
    if not os.fspath(path).lower().endswith(".csv") or not os.path.isfile(path):
        return False
    try:
        header = _header(place(path).read_text(encoding="utf-8-sig"))[0]
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return LABEL in header and (IMAGE in header or ROW in header)


def is_filled_in(path: str | os.PathLike[str]) -> bool:
    """Whether a file is something else than a table without labels, and must not be overwritten."""
    return not is_table(path) or any(cells[LABEL] for cells in _cells(os.fspath(path)))


def read(path: str | os.PathLike[str], classes: Sequence[str] = ()) -> Answers:
    """Read a table that was filled in; rows without a label are left out.

    Spreadsheets may have saved it with semicolons or tabs instead of commas.

    Args:
        path: The file.
        classes: Names of the classes, by which a quotation mark before a label is recognised.

    Raises:
        DataError: If no row has a label, or a row is damaged.
    """
    name = os.fspath(path)
    filled = [cells for cells in _cells(name) if cells[LABEL]]
    if not filled:
        raise DataError(f"at least one row needs a label; {name} has none: fill in the column {LABEL!r}")
    labels = tuple(_label(cells[LABEL], classes) for cells in filled)
    if IMAGE in filled[0]:
        root = os.path.abspath(os.path.dirname(name))
        if any(not cells[IMAGE] for cells in filled):
            raise DataError(f"every row names an image; {name} has a label without one: complete or remove the row")
        return Answers(labels, paths=tuple(os.path.join(root, cells[IMAGE]) for cells in filled))
    if wrong := [cells[ROW] for cells in filled if not re.fullmatch(r"[0-9]{1,15}", cells[ROW])]:
        raise DataError(f"column {ROW!r} has rows of the pool; {name} has {wrong[0]!r}: take the number that ask wrote")
    pools = sorted({cells.get(POOL, "") for cells in filled} - {""})
    if len(pools) > 1:
        raise DataError(f"a table is about one pool; {name} has rows of {len(pools)}: make a table for each")
    return Answers(labels, rows=tuple(int(cells[ROW]) for cells in filled), pool="".join(pools))


def choose(answers: Answers, pool: FeatureSet | ImageSet, name: str) -> list[int]:
    """Return the rows of a pool that were labelled; raise if it is not the pool that the questions are about."""
    if answers.pool and answers.pool != _plain_digits(pool):
        raise DataError(f"rows are those of the pool that ask was given; {name} is another one: give that pool")
    if max(answers.rows) >= len(pool):
        raise DataError(f"rows are those of the pool; {name} has no row {max(answers.rows)}: give what ask was given")
    return list(answers.rows)


def _label(text: str, classes: Sequence[str]) -> str:
    """A label without the mark that keeps spreadsheets from running it."""
    return text[1:] if text.startswith("'") and text not in classes and text[1:] in classes else text


def _cells(path: str) -> list[dict[str, str]]:
    """The rows of a table by column, stripped; blank rows are left out."""
    try:
        text = place(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"a table is UTF-8 text; {path} is not: save it as CSV UTF-8") from error
    header, separator = _header(text)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))[1:]
    except csv.Error as error:  # a cell of more than 128 KiB
        raise DataError(f"a table is CSV; {path} is not ({error}): correct it") from error
    if long := next((number for number, row in enumerate(rows, 2) if any(row[len(header) :])), None):
        raise DataError(f"rows have as many cells as the header; row {long} of {path} has more: correct it")
    blank = [""] * len(header)
    return [
        {column: cell.strip() for column, cell in zip(header, [*row, *blank], strict=False)}
        for row in rows
        if any(cell.strip() for cell in row)
    ]


def _header(text: str) -> tuple[list[str], str]:
    """The names of the columns, and what separates them."""
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    return [name.strip() for name in next(csv.reader([first], delimiter=separator), [])], separator
