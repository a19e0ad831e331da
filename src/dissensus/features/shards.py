"""The folder format of features: safetensors shards, and an index.json that makes them a set.

    shard-00000.safetensors    labels (n,) int64, groups (n,) int64, features (n, ...) float16 or float32
    index.json                 shape, names, and each shard's rows, bytes and sha256

The index is written last, so a folder without one is unfinished. Any safetensors reader opens the shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dissensus._core.errors import DataError
from dissensus.functional.arrays import Array

INDEX, PARTIAL = "index.json", ".partial"
FORMAT, VERSION = "dissensus-features", 1
CODES = {"float16": "F16", "float32": "F32", "int64": "I64"}  # numpy's names -> those of safetensors


@dataclass(frozen=True)
class Shard:
    """One file of the set, as it was when written."""

    file: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What index.json says; `shape` is that of one row, `columns` are the tensors of every shard."""

    columns: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    count: int
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    provenance: dict[str, Any]
    shards: tuple[Shard, ...]


def read_index(folder: Path) -> Index:
    """The index of a finished folder, every shard of which has its recorded size."""
    path = folder / INDEX
    if not folder.is_dir():
        raise DataError(f"features are a folder; {folder} is none: check the path")
    if not path.is_file():
        begun = any(map(ours, os.listdir(folder)))
        remedy = "its writing never finished: give the same command again, or delete it" if begun else "check the path"
        raise DataError(f"a folder of features holds {INDEX}; {folder} does not: {remedy}")
    try:
        raw = json.loads(path.read_bytes())
        if raw.pop("format") != FORMAT:
            raise ValueError("it names another format")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} must be JSON of format {FORMAT!r}; got {error!r}: check the path") from error
    if (version := raw.pop("version", None)) != VERSION:
        raise DataError(f"{path} must be version {VERSION}; got {version}: use the Dissensus that wrote it")
    raw.pop("written_by", None)
    try:
        lists: dict[str, Any] = {key: tuple(raw.pop(key)) for key in ("columns", "shape", "classes", "group_names")}
        index = Index(**lists, shards=tuple(Shard(**shard) for shard in raw.pop("shards")), **raw)
        if any(shard.file != Path(shard.file).name for shard in index.shards):
            raise ValueError("a shard lies outside the folder")
        counts = [n for shard in index.shards for n in (shard.rows, shard.bytes)]
        if not all(isinstance(n, int) and n > 0 for n in counts) or index.count != sum(counts[::2]):
            raise ValueError("its counts contradict each other")
        if "features" not in index.columns:
            raise ValueError("no column holds features")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} must list the shards; it is damaged, {error}: write it again") from error
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
    """The tensors of one shard as read-only arrays, memory-mapped: nothing is loaded until it is indexed."""
    file = folder / shard.file
    tensors: dict[str, Array] = {}
    try:
        # a plain view, for np.memmap pays for being a subclass at every indexing
        data: Array = np.asarray(np.memmap(file, mode="r", dtype=np.uint8))
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8:start].tobytes())
        for name in index.columns:
            features = name == "features"
            dtype = index.dtype if features else "int64"
            shape = (shard.rows, *index.shape) if features else (shard.rows,)
            entry = header[name]
            if (entry["dtype"], tuple(entry["shape"])) != (CODES[dtype], shape):
                raise ValueError(f"{name} is {entry['dtype']} {entry['shape']}")
            begin, end = entry["data_offsets"]
            tensors[name] = data[start + begin : start + end].view(dtype).reshape(shape)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file} must hold what {INDEX} says; it is altered, {error}: copy it again") from error
    return tensors


def verify_shard(folder: Path, shard: Shard) -> None:
    """Refuse a shard whose bytes are not those that were written."""
    with open(folder / shard.file, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
            raise DataError(
                f"a shard must be as written; {folder / shard.file} is altered, its sha256 differs: "
                "copy or write it again"
            )


def shard_bytes(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """A safetensors file, piece by piece, so that one pass writes, hashes and can fsync it."""
    header, end = {}, 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": CODES[array.dtype.name], "shape": array.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8: with int64 first, all are aligned
    yield len(text).to_bytes(8, "little")
    yield text
    yield from (array.data for array in tensors.values())


def index_bytes(index: Index) -> bytes:
    """The text of index.json."""
    from dissensus import __version__  # here, for the package imports its modules

    head = {"format": FORMAT, "version": VERSION, "written_by": f"dissensus {__version__}"}
    return json.dumps(head | asdict(index), indent=1, ensure_ascii=False).encode() + b"\n"


def ours(name: str) -> bool:
    """Whether a file of this name is part of a set, finished or not."""
    return name.startswith(("shard-", "plan.", "bad.tsv", INDEX))
