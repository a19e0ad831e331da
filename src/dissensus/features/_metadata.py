"""Metadata of a shard: a Parquet table with one row per row of features.

    image_path    where the image came from: a path under the folder or list given, or a member of a tar
    label         name of its class; its number where two classes share a name
    group         name of its group; its number where two groups share a name
    digest        first 32 hex digits of the sha256 of the image file

A table has the columns that are known. pandas, Polars and DuckDB read it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dissensus._core import digests
from dissensus._core.errors import DataError
from dissensus._core.places import filesystem, is_remote, storage_errors

Codes = NDArray[np.int64]
Column = Literal["image_path", "label", "group", "digest"]
REMEDY = "copy or write it again"
COLUMNS: tuple[Column, ...] = ("image_path", "label", "group", "digest")
MARK = {b"written_by": b"dissensus"}  # tells a folder of ours that lost its index from one of clip-retrieval


def table(
    *,
    image_path: Sequence[str] | None = None,
    label: pa.Array | None = None,
    group: pa.Array | None = None,
    digest: Sequence[str] | None = None,
) -> pa.Table:
    """Return the table of the columns that are given, in the order of `COLUMNS`."""
    values = {
        "image_path": None if image_path is None else pa.array(image_path, pa.string()),
        "label": label,
        "group": group,
        "digest": None if digest is None else pa.array(digest, pa.string()),
    }
    return pa.table({name: column for name, column in values.items() if column is not None})


def named(codes: Codes, names: Sequence[str]) -> pa.Array:
    """Return the names of codes (n,) as a column; the codes themselves where a name is not unique."""
    if len(set(names)) < len(names):
        return pa.array(codes)
    return pa.array(names, pa.string()).take(pa.array(codes))


def write(rows: pa.Table, file: BinaryIO) -> None:
    """Write a table as Parquet, marked as ours."""
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["label", "group"], "store_schema": False}
    with pq.ParquetWriter(file, rows.schema, **options) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(MARK)


@contextmanager
def opened(path: Path, sha256: str | None = None) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file of any place; verify it, if its digest is given.

    Raises:
        DataError: If it is missing, damaged, or lacks a column that is asked for.
    """
    try:
        if is_remote(path):
            with storage_errors(path, missing=False):
                fs, inside = filesystem(path)
                data = fs.cat_file(inside)  # metadata is small
            if sha256 is not None:
                digests.check(path, digests.of_bytes(data), sha256, remedy=REMEDY)
            with pq.ParquetFile(pa.BufferReader(data)) as file:
                yield file
        else:
            if sha256 is not None:
                digests.verify(path, sha256, remedy=REMEDY)
            with pq.ParquetFile(path) as file:
                yield file
    except FileNotFoundError as error:
        raise DataError(f"a shard must be complete; {path} is missing: copy or write it again") from error
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise DataError(f"metadata must be Parquet as written; {path} is altered ({reason}): copy it again") from error


def read_strings(path: Path, column: Column, rows: int, *, sha256: str | None = None) -> list[str]:
    """Return a text column of a shard, which must have this many rows and, if it is given, this digest."""
    values = [str(value) for value in _column(path, column, sha256).to_pylist()]
    _check_rows(path, len(values), rows)
    return values


def read_codes(
    path: Path,
    column: str,
    lookup: Mapping[str, int],
    rows: int,
    *,
    numbered: bool = True,
    sha256: str | None = None,
) -> Codes:
    """Return the codes (rows,) of a column of labels or groups.

    Args:
        path: The Parquet file.
        column: The name of the column.
        lookup: The code of each name; its size is the number of codes where the column holds numbers.
        rows: How many rows there must be.
        numbered: Whether numbers in the column are codes; otherwise they are names.
        sha256: The digest of the file; None: it is not verified.

    Raises:
        DataError: If the file is damaged, or holds other values.
    """
    values, inverse = distinct(path, column, sha256)
    if numbered and values and isinstance(values[0], int):
        codes = np.array([value if 0 <= value < len(lookup) else -1 for value in values], np.int64)
    else:
        codes = np.array([lookup.get(str(value), -1) for value in values], np.int64)
    _check_rows(path, len(inverse), rows)
    if len(unknown := np.flatnonzero(codes < 0)):
        raise DataError(
            f"every {column} must be among the {len(lookup)} of the index; {path} has {str(values[unknown[0]])!r}: "
            "it is altered, copy it again"
        )
    return codes[inverse]


def distinct(path: Path, column: str, sha256: str | None = None) -> tuple[list[Any], NDArray[np.int32]]:
    """Return the distinct values of a column, and for each row the number of its value among them.

    Raises:
        DataError: If a value is missing, or neither a number nor text.
    """
    values = _column(path, column, sha256)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if not (
        pa.types.is_integer(values.type) or pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    ):
        raise DataError(f"a {column} must be text or a whole number; {path} has {values.type}: convert the column")
    encoded = values.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def _column(path: Path, column: str, sha256: str | None = None) -> pa.Array:
    with opened(path, sha256) as file:
        if column not in file.schema_arrow.names:
            raise KeyError(f"no column {column}; it has {', '.join(file.schema_arrow.names)}")
        values = file.read([column]).column(0).combine_chunks()
        values.validate(full=True)  # such as text that is not UTF-8
    if values.null_count:
        raise DataError(f"every row must have a {column}; {values.null_count} of {path} have none: complete them")
    return values


def _check_rows(path: Path, count: int, rows: int) -> None:
    if count != rows:
        raise DataError(f"{path} must have {rows} rows, as its features; it has {count}: copy it again")
