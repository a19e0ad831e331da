"""Storage: where the rows of a `FeatureSet` are, in memory (`_memory`) or in the shards of a folder.

Both have the same interface. Rows are read by number, in the stored dtype, only when they are requested.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dissensus._core import digests
from dissensus._core.digests import State
from dissensus._core.errors import DataError
from dissensus._core.places import filesystem, is_remote, local_copy, storage_errors
from dissensus.features import _metadata, _shards
from dissensus.features._files import NPY_ERRORS, ShardFile
from dissensus.features._shards import Index
from dissensus.functional.arrays import Array

Kind = Literal["label", "group"]
Text = Literal["image_path", "digest"]
Rows = NDArray[np.int64]
T = TypeVar("T")

OPEN = 256  # shards that are open at once; Linux allows 1,024 files per process by default
KEPT = 2**27  # bytes of a set that may be kept in memory; larger ones are read row by row, whatever the order
REMOVES_OPEN_FILES = os.name == "posix"  # elsewhere shards at URLs are held in memory, at most KEPT bytes of them
COPIES = 2**33  # bytes of shards at URLs that are kept as temporary files at once
WHOLE_SHARE = 0.5  # of a shard's rows; if as many are read, a shard at a URL is copied as a whole
CODES = 128  # shards whose labels or groups are kept in memory


class Storage(Protocol):
    """The rows of a set, with labels and groups where they are known."""

    count: int
    shape: tuple[int, ...]  # of one row
    dtype: np.dtype[Any]
    kinds: frozenset[str]  # those of "label" and "group" that are known

    def read(self, rows: Rows) -> Array:
        """Return these rows (n, ...) in this order, in the stored dtype."""

    def expect(self, ranges: Sequence[range]) -> None:
        """Announce rows that will be read soon, so that a disk can fetch them in the meantime."""

    def codes(self, kind: Kind, rows: Rows | None = None) -> NDArray[np.int64]:
        """Return the labels or groups (n,) of these rows, or of all."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """The rows of each class (C,); classes after the largest label may be left out."""

    def texts(self, column: Text, rows: Rows) -> list[str] | None:
        """Return the paths or digests of the images of these rows; None if unknown."""

    def fingerprint(self, names: Sequence[Sequence[str]] | None) -> str:
        """Return a sha256 of values and order, and of codes and these names; without codes if `names` is None."""

    def verify(self, progress: Callable[[range], Any]) -> None:
        """Raise `DataError` if a file has changed since it was written; `progress` wraps the numbers of the shards."""


class Folder:
    """Rows in the shards of a folder, which are opened on demand; at most `OPEN` at once.

    Files are verified before they are read for the first time, and again if their size or date has changed. Shards at a
    URL are copied to temporary files first, at most `COPIES` bytes of them at once.

    Args:
        folder: The folder.
        index: Its index.
        columns: The columns of labels and groups, if they have other names in the metadata.
        numbered: Whether numbers in these columns are codes; otherwise they are names.
    """

    _recorded = True  # whether the index has the digests of the files

    def __init__(
        self, folder: Path, index: Index, *, columns: dict[str, str] | None = None, numbered: bool = True
    ) -> None:
        self.folder, self.index = folder, index
        self.count, self.shape, self.dtype = index.count, index.shape, np.dtype(index.dtype)
        self.kinds = frozenset[str](index.columns) & {"label", "group"}
        self._columns, self._numbered = columns or {}, numbered
        self._starts: Rows = np.cumsum([0, *index.shards.rows])
        self._lookup = {
            "label": {name: i for i, name in enumerate(index.classes)},
            "group": {name: i for i, name in enumerate(index.group_names)},
        }
        if self.kinds and numbered:  # names that are not unique are stored as numbers
            for kind, names in (("label", index.classes), ("group", index.group_names)):
                if len(self._lookup[kind]) < len(names):
                    self._lookup[kind] = {f"{i}: {name}": i for i, name in enumerate(names)}
        copies = COPIES if REMOVES_OPEN_FILES else KEPT
        most = OPEN if not is_remote(folder) else max(1, min(OPEN, copies // max(index.shards.bytes)))
        self._by_range = is_remote(folder) and sum(index.shards.bytes) > copies  # more than can be kept as copies
        self._keep = sum(index.shards.bytes) <= KEPT
        self._open = _Recent[ShardFile](most)
        self._known = _Recent[NDArray[np.int64]](CODES)

    def read(self, rows: Rows) -> Array:
        if len(self.index.shards) == 1:
            return self._read(0, rows)
        values = np.empty((len(rows), *self.shape), self.dtype)
        for shard, here, inside in self._by_shard(rows):
            few = len(inside) < WHOLE_SHARE * self.index.shards.rows[shard]
            if few and self._by_range and (shard, None) not in self._open:
                values[here] = self._fetch(shard, inside)
            else:
                values[here] = self._read(shard, inside)
        return values

    def _read(self, number: int, rows: Rows) -> Array:
        """Return rows of a shard; raise `DataError` if its file is not what was written, or ends before them."""
        path = self._features(number)
        try:
            with storage_errors(path, missing=False):
                state = None if is_remote(path) else State.of(path)
                return self._open((number, state), lambda: self._opened(number)).read(rows)
        except FileNotFoundError as error:
            raise DataError(f"a shard must be as written; {path} is missing: {_shards.REMEDY}") from error
        except EOFError as error:
            raise DataError(f"a shard must be as written; {path} is truncated: {_shards.REMEDY}") from error
        except NPY_ERRORS as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"a shard must be as written; {path} is altered, {error}: {_shards.REMEDY}") from error

    def _opened(self, number: int) -> ShardFile:
        path, shards = self._features(number), self.index.shards
        # A temporary copy is deleted once it is open: its space is freed with the file, however the process ends.
        with local_copy(path) as file:
            _shards.check_size(path, file.stat().st_size, shards.bytes[number])
            if self._recorded:
                digests.verify(path, shards.sha256[number], remedy=_shards.REMEDY, copy=file)
            shard = ShardFile(file, shards.rows[number], self.shape, self.dtype, keep=self._keep)
            if is_remote(path) and not REMOVES_OPEN_FILES:
                shard.load()
            return shard

    def expect(self, ranges: Sequence[range]) -> None:
        if is_remote(self.folder) or not hasattr(os, "posix_fadvise"):
            return
        spans: dict[int, list[tuple[int, int]]] = {}
        for rows in ranges:
            for shard, start, length in self._spans(rows):
                spans.setdefault(shard, []).append((start, length))
        for shard, parts in spans.items():
            with suppress(OSError), open(self._features(shard), "rb") as file:  # reading will raise what is wrong
                for start, length in parts:
                    os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_WILLNEED)

    def _spans(self, rows: range) -> list[tuple[int, int, int]]:
        """Return where consecutive rows are: the number of each shard, the first byte in its file, and how many."""
        shards, row_bytes = self.index.shards, self.dtype.itemsize * math.prod(self.shape)
        first, last = (int(np.searchsorted(self._starts, row, side="right")) - 1 for row in (rows.start, rows.stop - 1))
        spans = []
        for shard in range(first, last + 1):
            header = shards.bytes[shard] - shards.rows[shard] * row_bytes
            start, stop = (
                min(max(row - int(self._starts[shard]), 0), shards.rows[shard]) for row in (rows.start, rows.stop)
            )
            spans.append((shard, header + start * row_bytes, (stop - start) * row_bytes))
        return spans

    def _fetch(self, number: int, rows: Rows) -> Array:
        """Return ascending rows of a shard at a URL by requests for these bytes only, one per run of neighbours."""
        shards, row_bytes = self.index.shards, self.dtype.itemsize * math.prod(self.shape)
        start = shards.bytes[number] - shards.rows[number] * row_bytes  # after the header
        unique, inverse = np.unique(rows, return_inverse=True)
        runs = np.split(unique, np.flatnonzero(np.diff(unique) != 1) + 1)
        path = self._features(number)
        with storage_errors(path, missing=False):
            fs, inside = filesystem(path)
            begins = [start + int(run[0]) * row_bytes for run in runs]
            ends = [start + (int(run[-1]) + 1) * row_bytes for run in runs]
            try:
                data = b"".join(fs.cat_ranges([inside] * len(runs), begins, ends, on_error="raise"))
            except FileNotFoundError as error:
                raise DataError(f"a shard must be as written; {path} is missing: {_shards.REMEDY}") from error
        if len(data) != len(unique) * row_bytes:
            raise DataError(f"a shard must be as written; {path} is truncated: {_shards.REMEDY}")
        return np.frombuffer(data, self.dtype).reshape(-1, *self.shape)[inverse]

    def codes(self, kind: Kind, rows: Rows | None = None) -> NDArray[np.int64]:
        if rows is None:
            return np.concatenate([self._shard_codes(kind, shard) for shard in range(len(self.index.shards))])
        codes = np.empty(len(rows), np.int64)
        for shard, here, inside in self._by_shard(rows):
            codes[here] = self._shard_codes(kind, shard)[inside]
        return codes

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.array(self.index.class_counts, np.int64)

    def texts(self, column: Text, rows: Rows) -> list[str] | None:
        if column not in self.index.columns:
            return None
        texts = [""] * len(rows)
        for shard, here, inside in self._by_shard(rows):
            with storage_errors(self.folder, missing=False):
                values = _metadata.read_strings(
                    self._metadata(shard), column, self.index.shards.rows[shard], sha256=self._sha256(shard)
                )
            for position, i in zip(here.tolist(), inside.tolist(), strict=True):
                texts[position] = values[i]
        return texts

    def fingerprint(self, names: Sequence[Sequence[str]] | None) -> str:
        shards = self.index.shards
        about = () if names is None else shards.metadata_sha256
        facts = [self.count, self.shape, str(self.dtype), names, shards.rows, shards.sha256, about]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def verify(self, progress: Callable[[range], Any]) -> None:
        for number in progress(range(len(self.index.shards))):
            for name, written in self.index.shards[number].files.items() if self._recorded else ():
                digests.verify(self.folder / name, written.sha256, remedy=_shards.REMEDY)

    def _sha256(self, number: int) -> str | None:
        """The digest of the metadata of a shard; None if none was recorded."""
        return self.index.shards.metadata_sha256[number] if self._recorded else None

    def _by_shard(self, rows: Rows) -> list[tuple[int, Rows, Rows]]:
        """Return for each shard in turn: its number, the positions in `rows` that it holds, and the rows in it."""
        order = np.argsort(rows, kind="stable")  # so that each shard is read once, front to back
        ordered = rows[order]
        cuts = np.searchsorted(ordered, self._starts)
        return [
            (i, order[cuts[i] : cuts[i + 1]], ordered[cuts[i] : cuts[i + 1]] - self._starts[i])
            for i in np.flatnonzero(np.diff(cuts)).tolist()
        ]

    def _features(self, number: int) -> Path:
        return self.folder / _shards.features_file(self.index.shards.number[number])

    def _metadata(self, number: int) -> Path:
        return self.folder / _shards.metadata_file(self.index.shards.number[number])

    def _shard_codes(self, kind: Kind, number: int) -> NDArray[np.int64]:
        return self._known((kind, number), lambda: self._read_codes(kind, number))

    def _read_codes(self, kind: Kind, number: int) -> NDArray[np.int64]:
        path = self._metadata(number)
        with storage_errors(path):
            return _metadata.read_codes(
                path,
                self._columns.get(kind, kind),
                self._lookup[kind],
                self.index.shards.rows[number],
                numbered=self._numbered,
                sha256=self._sha256(number),
            )


class _Recent(Generic[T]):
    """Cache of the most recently used values by key; at most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[Hashable, T](), threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; call `make` if it is not cached."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
