"""FeatureWriter: features that need not fit in memory, written to a folder that is whole or not there."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.features import shards
from dissensus.features.shards import INDEX, PARTIAL, Index, Shard, ours
from dissensus.functional import arrays
from dissensus.functional.arrays import Array, Values

SHARD_BYTES = 2**28  # a shard is buffered before it is written, so wide features get fewer rows a shard


class FeatureWriter:
    """Writes features that need not fit in memory; nothing stays unless the `with` block ends well.

        with FeatureWriter("features", shape=768, classes=["cat", "dog"]) as writer:
            for images, labels in loader:
                writer.add(trunk(images), labels)
        features = FeatureSet.open("features")

    `shape` is that of one row, an int for vectors. A shard holds `shard_rows` rows, or fewer where those
    would pass 256 MB. `classes` and `group_names` default to "0", "1", ... as far as the labels go.
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
        try:
            self.provenance: dict[str, Any] = json.loads(json.dumps(dict(provenance or {})))
        except (TypeError, ValueError) as error:
            raise DataError(f"provenance must be plain JSON; {error}: convert the value to text") from error
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = dtype
        self.count = 0
        self._names = {"labels": classes, "groups": group_names}
        self._tops = {"labels": -1, "groups": -1}
        self._capacity = max(1, min(shard_rows, SHARD_BYTES // (4 * math.prod(self.shape) or 1)))
        self._buffer: dict[str, Tensor] = {}
        self._filled = 0
        self._shards: list[Shard] = []
        self._folder = NewFolder(Path(folder))
        self._open = False

    def __enter__(self) -> Self:
        self._folder.claim()
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finished = False
        try:
            if kind is None:
                self._finish()
                finished = True
        finally:
            self._open, self._buffer = False, {}
            if not finished:
                self._folder.abandon()

    def add(self, features: Values, labels: Values | None = None, groups: Values | None = None) -> None:
        """Append rows (B, ...) with labels (B,) and groups (B,), each given always or never.

        Rows that break a rule are refused before any of them is added.
        """
        self._refuse_closed()
        x = arrays.check_features(features, dtype=self.dtype, first=self.count)
        if x.shape[1:] != self.shape:
            raise DataError(f"rows must have shape {self.shape}; got {x.shape[1:]}: open the writer with that")
        batch: dict[str, Array] = {}
        for kind, values in (("labels", labels), ("groups", groups)):
            if values is not None:
                batch[kind] = arrays.check_codes(kind, values, len(x), self._names[kind], first=self.count)
        batch["features"] = x  # last: a file is aligned when its int64 columns come first
        if not self._buffer:
            dtypes = {"features": getattr(torch, self.dtype)}
            self._buffer = {
                kind: torch.empty(self._capacity, *values.shape[1:], dtype=dtypes.get(kind, torch.int64))
                for kind, values in batch.items()
            }
        if batch.keys() != self._buffer.keys():
            had, has = (", ".join(columns) for columns in (self._buffer, batch))
            raise DataError(f"every batch must have the same columns; got {has} after {had}: add what is missing")
        done = 0
        while done < len(x):
            size = min(len(x) - done, self._capacity - self._filled)
            for kind, values in batch.items():
                rows = values[done : done + size]
                target = self._buffer[kind][self._filled : self._filled + size]
                target.copy_(arrays.to_float32(rows) if kind == "features" else torch.from_numpy(rows))
            done, self._filled = done + size, self._filled + size
            if self._filled == self._capacity:
                self._flush()
        for kind in batch.keys() & self._tops.keys():
            self._tops[kind] = max(self._tops[kind], int(batch[kind].max(initial=-1)))
        self.count += len(x)

    def _refuse_closed(self) -> None:
        if not self._open:
            raise DataError("rows are added in a `with FeatureWriter(...)` block that has not failed: open one")

    def _flush(self) -> None:
        """Write the buffered rows as the next shard."""
        name = f"shard-{len(self._shards):05d}.safetensors"
        tensors = {kind: values[: self._filled].numpy() for kind, values in self._buffer.items()}
        self._open = False  # for good if the write fails: the buffer then holds part of a batch
        size, sha256 = self._folder.write(name, shards.shard_bytes(tensors))
        self._open = True
        self._shards.append(Shard(name, self._filled, size, sha256))
        self._filled = 0

    def _finish(self) -> None:
        """Write what is left in the buffer, then the index, which makes the folder a set."""
        self._refuse_closed()
        if not self.count:
            raise DataError("a feature set needs at least one row; none was added: check where rows come from")
        if self._filled:
            self._flush()
        index = Index(
            columns=tuple(self._buffer),
            shape=self.shape,
            dtype=self.dtype,
            count=self.count,
            classes=arrays.default_names(self._names["labels"], self._tops["labels"]),
            group_names=arrays.default_names(self._names["groups"], self._tops["groups"]),
            provenance=self.provenance,
            shards=tuple(self._shards),
        )
        self._folder.write(shards.INDEX, [shards.index_bytes(index)])


class NewFolder:
    """A folder that comes to hold all its files or none: claim it, write into it, abandon it on failure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[Path] = []
        self._folders: list[Path] = []

    def claim(self) -> None:
        """Make the folder, or take an empty one, for this writer alone."""
        claim = self.path / (INDEX + PARTIAL)
        try:
            self._refuse_taken()
            self._folders = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            open(claim, "xb").close()  # one writer only can make it; in the end it becomes index.json
            self._files.append(claim)
            self._refuse_taken(claim.name)  # a rival may have finished since the first look
        except OSError as error:
            self.abandon()
            raise self._explain(error) from error
        except DataError:
            self.abandon()
            raise

    def _refuse_taken(self, *claim: str) -> None:
        names = sorted({*os.listdir(self.path)} - {*claim}) if self.path.is_dir() else []
        if INDEX in names:
            raise DataError(f"features are written once; {self.path} holds some: delete it or choose another")
        if foreign := [name for name in names if not ours(name)]:
            raise DataError(f"features need an empty folder; {self.path} holds {foreign[0]!r}: choose another")
        if names:
            raise DataError(f"features need an empty folder; {self.path} is half-written: delete it first")

    def _explain(self, error: OSError) -> DataError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DataError(f"the disk is full while writing {self.path}: free space or choose another disk")
        return DataError(f"cannot write {self.path}, {error.strerror or error}: choose another folder")

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> tuple[int, str]:
        """Write a file whole: temporary name, fsync, rename. Returns its size in bytes and its sha256."""
        path, partial = self.path / name, self.path / (name + PARTIAL)
        self._files += [partial, path]
        digest = hashlib.sha256()
        try:
            with open(partial, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                    digest.update(piece)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            os.replace(partial, path)
            if os.name == "posix":  # the new name must survive a power cut, too
                handle = os.open(self.path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except OSError as error:
            raise self._explain(error) from error
        return size, digest.hexdigest()

    def abandon(self) -> None:
        """Remove what was written, the index first, and the folders made for it."""
        for file in reversed(self._files):
            with suppress(OSError):
                file.unlink(missing_ok=True)
        for folder in self._folders:
            with suppress(OSError):
                folder.rmdir()
