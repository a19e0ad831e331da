"""The folder format of features: safetensors shards, and an index.json that makes them a set.

    shard-00000.safetensors    labels (n,) int64, groups (n,) int64, features (n, ...) float16 or float32
    index.json                 shape, names, and each shard's rows, bytes and sha256

The index is written last, so a folder without one is unfinished. Any safetensors reader opens the shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dissensus.errors import DataError

INDEX, PARTIAL = "index.json", ".partial"
FORMAT, VERSION = "dissensus-features", 1
CODES = {"float16": "F16", "float32": "F32", "int64": "I64"}  # numpy's names -> those of safetensors
MAX_UNNAMED = 1_000_000  # one stray label must not conjure up a billion class names

Array = NDArray[Any]
Values = Tensor | ArrayLike


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


def to_numpy(values: Values) -> Array:
    """Any array-like -> numpy, without a copy where numpy knows the dtype."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    known = not values.is_floating_point() or values.dtype in (torch.float16, torch.float32, torch.float64)
    return (values if known else values.float()).numpy()


def to_float32(rows: Array) -> Tensor:
    """(n, ...) of any float dtype -> float32 tensor; shares memory where it can."""
    if not (rows.flags.writeable and rows.flags.c_contiguous):
        rows = rows.copy()  # torch warns of read-only arrays and refuses negative strides
    return torch.from_numpy(rows).float()


def check_features(features: Values, *, dtype: str = "float32", first: int = 0) -> Array:
    """(N, ...) -> the same as float16, float32 or float64, every value finite in `dtype`.

    `first` is the number that messages give to row 0.
    """
    array = to_numpy(features)
    if array.ndim < 2:
        raise DataError(f"features must be (N, ...); got {array.shape}: for one row use features[None]")
    if 0 in array.shape[1:]:
        raise DataError(f"features need at least one value a row; got {array.shape}: check what made them")
    if array.dtype not in (np.float16, np.float32, np.float64):
        if array.dtype.kind not in "biuf":
            raise DataError(f"features must be real numbers; got {array.dtype}: convert them to float32")
        array = array.astype(np.float32)
    limit = float(np.finfo(dtype).max)
    step = max(1, 2**22 // int(np.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        low, high = torch.aminmax(to_float32(array[start : start + step]))
        if not (-limit <= low and high <= limit):  # NaN compares false
            _refuse_values(array, limit, first, step)
    return array


def _refuse_values(array: Array, limit: float, first: int, step: int) -> None:
    chunks = (to_float32(array[start : start + step]) for start in range(0, len(array), step))
    peaks = torch.cat([chunk.flatten(1).abs().amax(1) for chunk in chunks])
    if len(bad := (~peaks.isfinite()).nonzero()):
        raise DataError(
            f"features must be finite in float32; {len(bad)} of {len(array)} rows hold NaN or inf, "
            f"the first is row {first + int(bad[0])}: remove them or correct what made them"
        )
    row = int((peaks > limit).nonzero()[0])
    raise DataError(f"float16 holds values up to 65504; row {first + row} reaches {peaks[row]:g}: use dtype='float32'")


def check_codes(
    kind: str, values: Values, rows: int, names: Sequence[str] | None, *, first: int = 0
) -> NDArray[np.int64]:
    """The "labels" or "groups" (`kind`) of `rows` rows -> (rows,) int64, each the place of a name."""
    noun = "classes" if kind == "labels" else "groups"
    codes = to_numpy(values)
    if codes.shape != (rows,):
        raise DataError(f"{kind} must be ({rows},), one a row; got {codes.shape}: pass those of these rows")
    if codes.dtype.kind not in "iu":
        raise DataError(f"{kind} must be integers; got {codes.dtype}: number the {noun} 0, 1, 2, ...")
    limit = MAX_UNNAMED if names is None else len(names)
    if len(bad := np.flatnonzero((codes < 0) | (codes >= limit))):
        raise DataError(
            f"{kind} must lie in 0..{limit - 1} ({limit} {noun}); row {first + int(bad[0])} has "
            f"{codes[bad[0]]}: correct it or name all {noun}"
        )
    return codes.astype(np.int64)


def default_names(names: Sequence[str] | None, top: int) -> tuple[str, ...]:
    """The names given or, for want of them, "0" to str(top)."""
    return tuple(map(str, range(top + 1) if names is None else names))


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
