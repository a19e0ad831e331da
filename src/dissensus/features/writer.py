"""FeatureWriter: write features that need not fit in memory, row by row."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus._core.places import place
from dissensus.features import _metadata
from dissensus.features._provenance import plain
from dissensus.features._shards import INDEX, Shard
from dissensus.features.store import Store
from dissensus.functional import arrays
from dissensus.functional.arrays import Array, Values

SHARD_BYTES = 2**28  # A shard is buffered before it is written, so wide features get fewer rows per shard.


class FeatureWriter:
    """Write features that need not fit in memory. Nothing stays unless the `with` block succeeds.

    Args:
        folder: A new or empty folder, a path or a URL.
        shape: The shape of one row; an int for vectors.
        classes: The names of the classes, by label; None: "0", "1", ... up to the largest label.
        group_names: The names of the groups; None: as for classes.
        dtype: "float16" or "float32" on disk.
        shard_rows: Rows per shard; fewer where they would exceed 256 MB.
        provenance: Where the features come from, as plain JSON.

    Raises:
        DataError: If an option breaks its rule or, on entering the block, if the folder is not empty.

    Example:
        >>> with FeatureWriter("features", shape=768, classes=["cat", "dog"]) as writer:
        ...     for images, labels in loader:
        ...         writer.add(trunk(images), labels)
        >>> features = FeatureSet.open("features")
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        shape: int | Sequence[int],
        classes: Sequence[str] | None = None,
        group_names: Sequence[str] | None = None,
        dtype: str = "float16",
        shard_rows: int = 65536,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        if dtype not in ("float16", "float32"):
            raise DataError(f"features are stored as float16 or float32; got dtype={dtype!r}: choose one")
        if shard_rows < 1:
            raise DataError(f"a shard holds at least one row; got shard_rows={shard_rows}: try 65536")
        self.provenance = plain(provenance or {})
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = dtype
        self.count = 0
        self._names = {"labels": classes, "groups": group_names}
        self._tops = {"labels": -1, "groups": -1}
        self._capacity = max(1, min(shard_rows, SHARD_BYTES // (4 * math.prod(self.shape) or 1)))
        self._buffer: dict[str, Tensor] = {}
        self._texts: dict[str, list[str]] = {}  # paths and digests
        self._filled = 0
        self._columns: list[str] = []
        self._shards: list[Shard] = []
        self._store = Store(place(folder))
        self._claim = contextlib.ExitStack()
        self._open = False

    def __enter__(self) -> Self:
        self._claim.enter_context(self._store.claimed(self._check_empty))
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._claim:
            succeeded = False
            try:
                if kind is None:
                    self._finish()
                    succeeded = True
            finally:
                self._open, self._buffer = False, {}
                if not succeeded:
                    self._store.clear()

    def add(
        self,
        features: Values,
        labels: Values | None = None,
        groups: Values | None = None,
        *,
        paths: Sequence[str] | None = None,
        digests: Sequence[str] | None = None,
    ) -> None:
        """Append a batch of rows.

        Args:
            features: (B, ...).
            labels: (B,), in every batch or in none.
            groups: (B,), in every batch or in none.
            paths: Where the rows come from, B of them, in every batch or in none.
            digests: The digests of the image files, as `ImageSet.load` returns them, B of them, in every batch or in
                none.

        Raises:
            DataError: If a row breaks a rule; then none of the batch is added.
        """
        self._check_open()
        x = arrays.check_features(features, dtype=self.dtype, first=self.count)
        if x.shape[1:] != self.shape:
            raise DataError(f"rows must have shape {self.shape}; got {x.shape[1:]}: open the writer with that")
        batch: dict[str, Array] = {}
        for kind, values in (("labels", labels), ("groups", groups)):
            if values is not None:
                batch[kind] = arrays.check_codes(kind, values, len(x), self._names[kind], first=self.count)
        batch["features"] = x
        texts = {
            name: _check_texts(name, values, len(x))
            for name, values in (("paths", paths), ("digests", digests))
            if values is not None
        }
        if not self._buffer:
            dtypes = {"features": getattr(torch, self.dtype)}
            self._buffer = {
                kind: torch.empty(self._capacity, *values.shape[1:], dtype=dtypes.get(kind, torch.int64))
                for kind, values in batch.items()
            }
            self._texts = {name: [] for name in texts}
        if batch.keys() != self._buffer.keys() or texts.keys() != self._texts.keys():
            had, has = (", ".join([*columns, *more]) for columns, more in ((self._buffer, self._texts), (batch, texts)))
            raise DataError(f"every batch must have the same columns; got {has} after {had}: add what is missing")
        for kind in batch.keys() & self._tops.keys():
            self._tops[kind] = max(self._tops[kind], int(batch[kind].max(initial=-1)))
        done = 0
        while done < len(x):
            size = min(len(x) - done, self._capacity - self._filled)
            for kind, values in batch.items():
                rows = values[done : done + size]
                target = self._buffer[kind][self._filled : self._filled + size]
                target.copy_(arrays.to_float32(rows) if kind == "features" else torch.from_numpy(rows))
            for name, values in texts.items():
                self._texts[name] += values[done : done + size]
            done, self._filled = done + size, self._filled + size
            if self._filled == self._capacity:
                self._flush()
        self.count += len(x)

    def _check_open(self) -> None:
        if not self._open:
            raise DataError("rows are added in a `with FeatureWriter(...)` block that has not failed: open one")

    def _check_empty(self) -> None:
        names, folder = self._store.contents(), self._store.folder
        if INDEX in names:
            raise DataError(f"features are written once; {folder} holds some: delete it or choose another")
        if names:
            raise DataError(f"features need an empty folder; {folder} is half-written: delete it first")

    def _flush(self) -> None:
        """Write the buffered rows as the next shard."""
        codes = {kind: values[: self._filled].numpy() for kind, values in self._buffer.items() if kind != "features"}
        columns = {
            column: _metadata.named(codes[kind], arrays.default_names(self._names[kind], self._tops[kind]))
            for kind, column in (("labels", "label"), ("groups", "group"))
            if kind in codes
        }
        self._open = False  # for good if the write fails: the buffer then holds part of a batch
        paths, digests = self._texts.get("paths"), self._texts.get("digests")
        metadata = _metadata.table(image_path=paths, digest=digests, **columns)
        self._columns = metadata.column_names
        features = self._buffer["features"][: self._filled].numpy()
        self._shards.append(self._store.write_shard(len(self._shards), features, metadata))
        self._open = True
        self._filled, self._texts = 0, {name: [] for name in self._texts}

    def _finish(self) -> None:
        """Write the rest of the buffer, then the index."""
        self._check_open()
        if not self.count:
            raise DataError("a feature set needs at least one row; none was added: check where rows come from")
        if self._filled:
            self._flush()
        self._store.write_index(
            self._shards,
            self.provenance,
            columns=self._columns,
            shape=self.shape,
            dtype=self.dtype,
            classes=arrays.default_names(self._names["labels"], self._tops["labels"]),
            group_names=arrays.default_names(self._names["groups"], self._tops["groups"]),
        )


def _check_texts(name: str, values: Sequence[str], rows: int) -> list[str]:
    """Return paths or digests as strings; raise if there is not one for each row, or one is not UTF-8."""
    if len(values) != rows:
        raise DataError(f"every row has one of the {name}; got {len(values)} for {rows} rows: pass those of these rows")
    texts = list(map(str, values))
    for text in texts:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise DataError(f"{name} must be UTF-8; {text!r} is not: rename the file")
    return texts
