"""Lists and tables: files that name images, and their labels, line by line."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dissensus._core.cells import from_cells
from dissensus._core.errors import DataError
from dissensus._core.places import as_text, is_url
from dissensus.images._files import PathLike, join, lines, opened, sizes_of
from dissensus.images._labels import INTEGER, Coder, label_values
from dissensus.images._listing import Files, Listing, listing_errors
from dissensus.images.names import Builder, Names

if TYPE_CHECKING:
    import pandas as pd

IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "filepath", "img_filename")
"""Names of the column of a table that holds the paths of images; the first that is there is used."""
LABEL_COLUMNS = ("label", "class", "y", "target")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table to use; see `ImageSet.find`."""

    image: str | None = None
    label: str | None = None
    groups: tuple[str, ...] = ()
    only: Mapping[str, object] | None = None


def list_lines(path: str, base: PathLike | None) -> Listing:
    """List the images of a text file: one path per line, with its label or without."""
    names, labels = Builder(), Coder()
    with listing_errors(path):
        for number, line in enumerate(map(str.strip, lines(path)), 1):
            if not line or line.startswith("#"):
                continue
            name, label = _name_and_label(line)
            if len(names) and bool(label) != bool(len(labels)):
                state = "has one" if label else "has none"
                raise DataError(
                    f"all lines of a list have a label or none has; line {number} of {path} {state}, unlike those "
                    "before it: complete the labels (after a tab, if they are names) or remove them"
                )
            names.add(name)
            if label:
                labels.add(label)
    if not len(names):
        raise DataError(f"a list names one image per line; {path} names none: check the file")
    listed = names.names()
    codes, classes = label_values(labels, listed, "a label")
    return _listing(listed, path, base, labels=codes, classes=classes)


def list_table(path: str, base: PathLike | None, columns: Columns) -> Listing:
    """List the images of a table: one per row, with columns for labels and groups."""
    table = _load(path)
    image_column = columns.image or next((name for name in IMAGE_COLUMNS if name in table), None)
    label_column = columns.label or next((name for name in LABEL_COLUMNS if name in table), None)
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
    codes, classes = (None, None) if set(labels) <= {"", "-1"} else _numbered(labels)
    axes = [(name, *_numbered(_column(table, name, path))) for name in columns.groups]
    groups, group_names = _combined(axes) if axes else (None, None)
    # after the numbering: classes and groups are those of the whole table
    keep = np.arange(len(names))
    for name, value in (columns.only or {}).items():
        cells = _column(table, name, path)
        keep = keep[[cells[i] == str(value) for i in keep]]
        if not len(keep):
            known = ", ".join(_numbered(cells)[1][:8])
            raise DataError(f"rows are kept whose {name!r} is {value!r}; {path} has none, but {known}: choose one")
    if not len(keep) or set(names) == {""}:
        raise DataError(f"a table names one image per row; {path} names none: check the file")
    return _listing(
        [names[i] for i in keep],
        path,
        base,
        labels=None if codes is None else codes[keep],
        classes=classes,
        groups=None if groups is None else groups[keep],
        group_names=group_names,
    )


def _name_and_label(line: str) -> tuple[str, str]:
    """Split a line into path and label ("" if none): at a tab or, before a number, at a space."""
    name, _, label = line.rpartition("\t")
    if name:
        return name.strip(), label.strip()
    words = line.rsplit(maxsplit=1)
    if len(words) == 2 and INTEGER.fullmatch(words[1]):
        return words[0], words[1]
    return line, ""


def _load(path: str) -> pd.DataFrame:
    """Read all cells as text, "" where there is none."""
    import pandas as pd  # slow to import, and only tables need it

    try:
        parquet = path.lower().endswith(".parquet")
        with listing_errors(path), opened(path, seeks=parquet) as file, warnings.catch_warnings():
            if parquet:
                return _load_parquet(file)
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
            table = pd.read_csv(
                file,
                sep="\t" if path.lower().endswith(".tsv") else ",",
                dtype=str,
                keep_default_na=False,  # a class may be called NA
                index_col=False,
                encoding="utf-8-sig",
            )
            return from_cells(table.fillna(""))  # where a row is short
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())[:200]
        kind = "Parquet table" if isinstance(error, pa.ArrowInvalid) else "table with a header line"
        raise DataError(f"{path} must be a {kind}; got: {reason}: correct it") from error


def _load_parquet(file: BinaryIO) -> pd.DataFrame:
    """Read the columns of text, integers and the like; others, such as encoded images, are left out."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    columns = [field.name for field in table.schema_arrow if _is_plain(field.type)]
    texts = table.read(columns=columns)
    cells = [column.cast(pa.large_string()).fill_null("") for column in texts.columns]
    frame: pd.DataFrame = pa.table(cells, names=texts.column_names).to_pandas()
    return frame


def _is_plain(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_floating,
    )
    return any(test(value) for test in tests)


def _column(table: pd.DataFrame, name: str, path: str) -> list[str]:
    if name not in table:
        raise DataError(f"{path} has no column {name!r}: choose among {', '.join(map(str, table))}")
    return [str(value) for value in table[name]]


def _numbered(texts: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Return each text's index among the distinct ones, and these, sorted: as numbers if all are integers."""
    names = sorted(set(texts))
    if all(map(INTEGER.fullmatch, names)):
        names.sort(key=int)
    index = {name: i for i, name in enumerate(names)}
    return np.array([index[text] for text in texts], np.int64), names


def _combined(axes: Sequence[tuple[str, NDArray[np.int64], Sequence[str]]]) -> tuple[NDArray[np.int64], list[str]]:
    """Number the combinations of several columns, given as name, codes and texts, that occur."""
    rows, groups = np.unique(np.stack([codes for _, codes, _ in axes], 1), axis=0, return_inverse=True)
    names = [
        " ".join(f"{column}={texts[i]}" for (column, _, texts), i in zip(axes, row, strict=True))
        for row in rows.tolist()
    ]
    return groups.reshape(-1), names


def _listing(names: Sequence[str], path: str, base: PathLike | None, **columns: Any) -> Listing:
    root = as_text(base) if base is not None else path.rpartition("/")[0] if is_url(path) else os.path.dirname(path)
    root = root.rstrip("/") if is_url(root) else os.path.abspath(root)
    # absolute paths below the base are shortened, so that a copied folder keeps its fingerprint
    prefix = root + ("/" if is_url(root) else os.sep)
    short = Names.of(name.removeprefix(prefix) for name in names)
    sizes = sizes_of(join(root, name) for name in short)
    return Listing(names=short, reader=Files(root), sizes=sizes, **columns)
