"""The folder format of features: safetensors shards, and an index.json that makes them a set.

    shard-00000.safetensors    labels (n,) int64, groups (n,) int64, features (n, ...) float16 or float32
    index.json                 shape, names, and the rows, bytes and sha256 of each shard

The index is written last, so a folder without one is unfinished. Any safetensors reader opens the shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from dissensus._core import documents
from dissensus._core.documents import Document, Part
from dissensus._core.errors import DataError
from dissensus._core.files import is_temporary, replacing
from dissensus.features._provenance import Count, checked
from dissensus.functional.arrays import Array

INDEX = "index.json"
COLUMNS = ("labels", "groups", "features")
DTYPES = {"float16": "F16", "float32": "F32", "int64": "I64"}  # numpy's names -> those of safetensors

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Dtype = Literal["float16", "float32"]


class Shard(Part):
    """One file of a set, as it was when written."""

    file: Annotated[str, Field(pattern=r"^shard-[0-9]{5,9}\.safetensors$")]
    rows: Count
    bytes: Count
    sha256: Sha256


class Index(Document):
    """index.json: `shape` is that of one row, `columns` are the tensors of every shard."""

    error = DataError
    remedy = "copy the folder again, or write the features again"

    format: Literal["dissensus-features-2"] = "dissensus-features-2"
    written_by: str
    columns: tuple[Literal["labels", "groups", "features"], ...]
    shape: Annotated[tuple[Count, ...], Field(min_length=1)]
    dtype: Dtype
    count: Count
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    provenance: Annotated[dict[str, Any], AfterValidator(checked)]
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Index:
        if self.columns not in (("features",), ("labels", "features"), ("groups", "features"), COLUMNS):
            raise ValueError("columns must end with features and name each column once, in order")
        if self.count != sum(shard.rows for shard in self.shards):
            raise ValueError("count must be the sum of the rows of all shards")
        if self.count % self.provenance.get("passes", 1):
            raise ValueError("provenance.passes must divide count")
        return self


def read_index(folder: Path) -> Index:
    """Read the index of a finished folder and check that every shard has its size."""
    if not folder.is_dir():
        raise DataError(f"features are a folder; {folder} is not: check the path")
    path = folder / INDEX
    if not path.is_file():
        begun = any(map(belongs, os.listdir(folder)))
        remedy = "it was never finished: run the same command again, or delete it" if begun else "check the path"
        raise DataError(f"a folder of features holds {INDEX}; {folder} does not: {remedy}")
    index = documents.read(Index, path)
    for shard in index.shards:
        file = folder / shard.file
        size = file.stat().st_size if file.is_file() else -1
        if size != shard.bytes:
            state = "missing" if size < 0 else f"{'truncated' if size < shard.bytes else 'altered'}, {size}"
            raise DataError(
                f"a shard must be as written, {shard.bytes} bytes; {file} is {state}: copy or write it again"
            )
    return index


def map_shard(folder: Path, shard: Shard, index: Index) -> dict[str, Array]:
    """Map the tensors of one shard into memory, read-only: nothing is loaded until it is indexed."""
    file = folder / shard.file
    tensors: dict[str, Array] = {}
    try:
        # As a plain array: np.memmap is a subclass, which makes every indexing slower.
        data: Array = np.asarray(np.memmap(file, mode="r", dtype=np.uint8))
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8:start].tobytes())
        for name in index.columns:
            features = name == "features"
            dtype = index.dtype if features else "int64"
            shape = (shard.rows, *index.shape) if features else (shard.rows,)
            entry = header[name]
            if (entry["dtype"], tuple(entry["shape"])) != (DTYPES[dtype], shape):
                raise ValueError(f"{name} is {entry['dtype']} {entry['shape']}")
            begin, end = entry["data_offsets"]
            tensors[name] = data[start + begin : start + end].view(dtype).reshape(shape)
            if not features:
                limit = len(index.classes if name == "labels" else index.group_names)
                low, high = int(tensors[name].min()), int(tensors[name].max())
                if low < 0 or high >= limit:
                    raise ValueError(f"{name} must lie in 0..{limit - 1} and reach from {low} to {high}")
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{file} must hold what {INDEX} says; it is altered, {error}: copy it again") from error
    return tensors


def verify_shard(folder: Path, shard: Shard) -> None:
    """Raise `DataError` if the bytes of a shard are not those that were written."""
    with open(folder / shard.file, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
            raise DataError(
                f"a shard must be as written; {folder / shard.file} is altered, its sha256 differs: "
                "copy or write it again"
            )


def write_shard(folder: Path, number: int, tensors: Mapping[str, Array]) -> Shard:
    """Write a shard atomically, hashing it on the way."""
    name, digest = f"shard-{number:05d}.safetensors", hashlib.sha256()
    with replacing(folder / name) as temporary, open(temporary, "wb") as file:
        for piece in _serialise(tensors):
            file.write(piece)
            digest.update(piece)
        size = file.tell()
    return Shard(file=name, rows=len(tensors["features"]), bytes=size, sha256=digest.hexdigest())


def _serialise(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file piece by piece, so that no copy of the tensors is made."""
    header, end = {}, 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8: with int64 first, all are aligned
    yield len(text).to_bytes(8, "little")
    yield text
    yield from (array.data for array in tensors.values())


def belongs(name: str) -> bool:
    """Whether a file of this name is part of a set, finished or not."""
    name = name[1:] if is_temporary(name) else name
    return name.startswith(("shard-", "plan.", "bad.tsv", INDEX))
