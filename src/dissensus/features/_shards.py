"""The folder format of features: the shards that img2dataset and clip-retrieval write, and an index of them.

    img_emb/img_emb_00000.npy            features (n, ...) float16 or float32
    metadata/metadata_00000.parquet      image_path, label, group, digest: those that are known
    index.json                           shape, names, and the rows, bytes and sha256 of each shard

The index is written last, so a folder without one is unfinished, or not ours. NumPy opens the features and any Parquet
reader the metadata. The folder may be at a URL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator

from dissensus._core import documents
from dissensus._core.documents import Document, Part, Sha256
from dissensus._core.errors import DataError
from dissensus._core.files import is_temporary, replacing
from dissensus._core.places import files_in
from dissensus.features import _metadata
from dissensus.features._metadata import Column
from dissensus.features._provenance import Count, checked
from dissensus.functional.arrays import Array

INDEX = "index.json"
FEATURES, METADATA = "img_emb", "metadata"
REMEDY = "copy or write it again"

Dtype = Literal["float16", "float32"]
Natural = Annotated[int, Field(ge=0, lt=2**63)]


class Written(Part):
    """A file as it was when written."""

    bytes: Count
    sha256: Sha256


class Shard(Part):
    """One shard of a set: a file of features and, unless nothing else is known, one of metadata."""

    number: Natural
    rows: Count
    features: Written
    metadata: Written | None

    @property
    def files(self) -> dict[str, Written]:
        """Its files, by path under the folder."""
        files = {features_file(self.number): self.features}
        return files if self.metadata is None else {**files, metadata_file(self.number): self.metadata}


class Shards(Part):
    """The shards of a set by column, which stays small for many; metadata columns are empty if there is none."""

    number: tuple[Natural, ...]
    rows: tuple[Count, ...]
    bytes: tuple[Count, ...]
    sha256: tuple[Sha256, ...]
    metadata_bytes: tuple[Count, ...]
    metadata_sha256: tuple[Sha256, ...]

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Shards:
        """Return these shards by column."""
        metadata = [shard.metadata for shard in shards if shard.metadata is not None]
        return cls(
            number=tuple(shard.number for shard in shards),
            rows=tuple(shard.rows for shard in shards),
            bytes=tuple(shard.features.bytes for shard in shards),
            sha256=tuple(shard.features.sha256 for shard in shards),
            metadata_bytes=tuple(written.bytes for written in metadata),
            metadata_sha256=tuple(written.sha256 for written in metadata),
        )

    @model_validator(mode="after")
    def _check(self) -> Shards:
        lengths = {len(self.number), len(self.rows), len(self.bytes), len(self.sha256)}
        about = {len(self.metadata_bytes), len(self.metadata_sha256)}
        if len(lengths) > 1 or len(about) > 1 or not about <= {0, *lengths}:
            raise ValueError("every column must have a value for every shard")
        if not self.number or any(first >= second for first, second in zip(self.number, self.number[1:], strict=False)):
            raise ValueError("shards must be in ascending order, at least one")
        return self

    def __len__(self) -> int:
        return len(self.number)

    def __getitem__(self, i: int) -> Shard:
        metadata = None
        if self.metadata_bytes:
            metadata = Written(bytes=self.metadata_bytes[i], sha256=self.metadata_sha256[i])
        features = Written(bytes=self.bytes[i], sha256=self.sha256[i])
        return Shard(number=self.number[i], rows=self.rows[i], features=features, metadata=metadata)

    def each(self) -> Iterator[Shard]:
        """Yield the shards one by one."""
        return (self[i] for i in range(len(self)))


class Index(Document):
    """index.json: `shape` is that of one row, `columns` are those of the metadata."""

    error = DataError
    remedy = "copy the folder again, or write the features again"

    format: Literal["dissensus-features-4"] = "dissensus-features-4"
    written_by: str
    columns: tuple[Column, ...]
    shape: Annotated[tuple[Count, ...], Field(min_length=1)]
    dtype: Dtype
    count: Count
    classes: tuple[str, ...]
    class_counts: tuple[Natural, ...]  # rows of each class; empty if there are no labels
    group_names: tuple[str, ...]
    provenance: Annotated[dict[str, Any], AfterValidator(checked)]
    shards: Shards

    @model_validator(mode="after")
    def _check(self) -> Index:
        if list(self.columns) != [name for name in _metadata.COLUMNS if name in self.columns]:
            raise ValueError(f"columns must be among {', '.join(_metadata.COLUMNS)}, each once, in order")
        if bool(self.columns) != bool(self.shards.metadata_bytes):
            raise ValueError("shards must have metadata if there are columns")
        if self.count != sum(self.shards.rows):
            raise ValueError("count must be the sum of the rows of all shards")
        labelled = "label" in self.columns
        if len(self.class_counts) != len(self.classes) * labelled or sum(self.class_counts) != self.count * labelled:
            raise ValueError("class_counts must have one number per class, which sum to count")
        if self.count % self.provenance.get("passes", 1):
            raise ValueError("provenance.passes must divide count")
        return self


def features_file(number: int) -> str:
    """Return the path of a shard's features under the folder."""
    return f"{FEATURES}/img_emb_{number:05d}.npy"


def metadata_file(number: int) -> str:
    """Return the path of a shard's metadata under the folder."""
    return f"{METADATA}/metadata_{number:05d}.parquet"


def read_index(folder: Path) -> Index:
    """Read the index of a finished folder and check that every shard has its size, by one listing."""
    index = documents.read(Index, folder / INDEX)
    sizes = {f"{name}/{file}": size for name in (FEATURES, METADATA) for file, size in files_in(folder / name).items()}
    shards = index.shards
    for path, expected in (
        *zip(map(features_file, shards.number), shards.bytes, strict=True),
        *zip(map(metadata_file, shards.number), shards.metadata_bytes, strict=False),
    ):
        check_size(folder / path, sizes.get(path, -1), expected)
    return index


def check_size(path: Path, size: int, expected: int) -> None:
    """Raise `DataError` if a file of a shard has another size than when it was written; -1: it is missing."""
    if size != expected:
        state = "missing" if size < 0 else f"{'truncated' if size < expected else 'altered'}, {size}"
        raise DataError(f"a shard must be as written, {expected} bytes; {path} is {state}: {REMEDY}")


def write_shard(folder: Path, number: int, features: Array, metadata: pa.Table) -> Shard:
    """Write a shard, the features last, each file atomically and hashed on the way."""
    about = None
    if metadata.num_columns:
        with replacing(folder / metadata_file(number)) as temporary, open(temporary, "wb") as file:
            hashing = _Hashing(file)
            _metadata.write(metadata, hashing)  # type: ignore[arg-type]  # all that pyarrow calls is there
            about = hashing.written()
    with replacing(folder / features_file(number)) as temporary, open(temporary, "wb") as file:
        hashing = _Hashing(file)
        np.save(hashing, np.ascontiguousarray(features), allow_pickle=False)
        written = hashing.written()
    return Shard(number=number, rows=len(features), features=written, metadata=about)


class _Hashing:
    """A file that is hashed while it is written, front to back."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self._size = file, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._size += memoryview(data).nbytes
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def written(self) -> Written:
        return Written(bytes=self._size, sha256=self._digest.hexdigest())


def belongs(name: str) -> bool:
    """Whether a file or folder of this name is part of a set, finished or not."""
    name = name[1:] if is_temporary(name) else name
    return name in (FEATURES, METADATA) or name.startswith(("shard-", "plan.", "bad.tsv", INDEX))
