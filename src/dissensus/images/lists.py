"""Lists and tables: text files that name images, and their labels, line by line."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dissensus._core.errors import DataError
from dissensus.images.labels import INTEGER, Codes, in_order, numbered
from dissensus.images.listing import Listing, PathLike, explained, size_of
from dissensus.images.readers import Files

if TYPE_CHECKING:
    import pandas as pd

IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "filepath", "img_filename")
LABEL_COLUMNS = ("label", "class", "y", "target")


def read_list(path: PathLike, base: PathLike | None) -> Listing:
    """One image a line, with its label or without; see `ImageSet.from_list`."""
    path = os.fspath(path)
    with explained(path), open(path, encoding="utf-8-sig") as file:
        lines = file.read().split("\n")
    names: list[str] = []
    labels: list[str] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        name, label = _name_and_label(line)
        if names and bool(label) != bool(labels):
            state = "has one" if label else "has none"
            raise DataError(
                f"all lines of a list have a label or none has; line {number} of {path} {state}, unlike those "
                "before it: complete the labels (after a tab, if they are names) or remove them"
            )
        names.append(name)
        if label:
            labels.append(label)
    if not names:
        raise DataError(f"a list names one image a line; {path} names none: check the file")
    codes, classes = numbered(labels) if labels else (None, None)
    root, names, sizes = _files(names, path, base)
    return Listing(names=names, reader=Files(root), sizes=sizes, labels=codes, classes=classes)


def read_table(
    path: PathLike,
    base: PathLike | None,
    image_column: str | None,
    label_column: str | None,
    group_columns: Sequence[str],
    only: Mapping[str, object] | None,
) -> Listing:
    """One image a row, with columns for labels and groups; see `ImageSet.from_csv`."""
    path = os.fspath(path)
    table = _load(path)
    image_column = image_column or next((name for name in IMAGE_COLUMNS if name in table), None)
    label_column = label_column or next((name for name in LABEL_COLUMNS if name in table), None)
    if image_column is None:
        raise DataError(
            f"a table names its images in a column such as {' or '.join(IMAGE_COLUMNS[:3])}; {path} has "
            f"{', '.join(map(str, table))}: give image_column"
        )
    names = _column(table, image_column, path)
    labels = _column(table, label_column, path) if label_column else []
    for name, cells in ((image_column, names), (label_column, labels)):
        if "" in cells and set(cells) != {""}:
            raise DataError(f"row {cells.index('') + 1} of {path} is empty in column {name!r}: complete the column")
    codes, classes = (None, None) if set(labels) <= {"", "-1"} else in_order(labels)
    axes = [(name, *in_order(_column(table, name, path))) for name in group_columns]
    groups, group_names = _combined(axes) if axes else (None, None)
    # after the numbering: classes and groups are those of the whole table
    keep = np.arange(len(names))
    for name, value in (only or {}).items():
        cells = _column(table, name, path)
        keep = keep[[cells[i] == str(value) for i in keep]]
        if not len(keep):
            known = ", ".join(in_order(cells)[1][:8])
            raise DataError(f"rows are kept whose {name!r} is {value!r}; {path} has none, but {known}: choose one")
    if not len(keep) or set(names) == {""}:
        raise DataError(f"a table names one image a row; {path} names none: check the file")
    root, names, sizes = _files([names[i] for i in keep], path, base)
    return Listing(
        names=names,
        reader=Files(root),
        sizes=sizes,
        labels=None if codes is None else codes[keep],
        classes=classes,
        groups=None if groups is None else groups[keep],
        group_names=group_names,
    )


def _name_and_label(line: str) -> tuple[str, str]:
    """The path and the label, "" if there is none: after a tab or, where it is a number, after a space."""
    name, _, label = line.rpartition("\t")
    if name:
        return name.strip(), label.strip()
    words = line.rsplit(maxsplit=1)
    if len(words) == 2 and INTEGER.fullmatch(words[1]):
        return words[0], words[1]
    return line, ""


def _load(path: str) -> pd.DataFrame:
    """All cells as text, "" where there is none."""
    import pandas as pd  # slow to import, and only tables need it

    try:
        with explained(path), warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            return pd.read_csv(
                path,
                sep="\t" if path.lower().endswith(".tsv") else ",",
                dtype=str,
                keep_default_na=False,  # a class may be called NA
                index_col=False,
                encoding="utf-8-sig",
            ).fillna("")  # where a row is short
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{path} must be a table with a header line; got: {reason}: correct it") from error


def _column(table: pd.DataFrame, name: str, path: str) -> list[str]:
    if name not in table:
        raise DataError(f"{path} has no column {name!r}: choose among {', '.join(map(str, table))}")
    return [str(value) for value in table[name]]


def _combined(axes: Sequence[tuple[str, Codes, Sequence[str]]]) -> tuple[Codes, list[str]]:
    """Columns, each with codes and what these stand for -> the same for the combinations that occur, sorted."""
    rows, groups = np.unique(np.stack([codes for _, codes, _ in axes], 1), axis=0, return_inverse=True)
    names = [
        " ".join(f"{column}={texts[i]}" for (column, _, texts), i in zip(axes, row, strict=True))
        for row in rows.tolist()
    ]
    return groups.reshape(-1), names


def _files(names: Sequence[str], path: str, base: PathLike | None) -> tuple[str, list[str], list[int]]:
    """The folder that paths in the file `path` start from, the paths under it, and the files' sizes."""
    root = os.path.abspath(os.path.dirname(path) if base is None else base)
    # absolute paths beneath the base are shortened, so that a copied folder keeps its fingerprint
    names = [name.removeprefix(root + os.sep) for name in names]
    return root, names, [size_of(os.path.join(root, name)) for name in names]
