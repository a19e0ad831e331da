"""Open a feature folder: one that Dissensus wrote, by its index, or one that clip-retrieval wrote, by its files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dissensus._core.errors import DataError
from dissensus._core.places import files_in, filesystem
from dissensus.features import _metadata, _shards
from dissensus.features._files import NPY_ERRORS
from dissensus.features._shards import FEATURES, INDEX, METADATA, Index, Shard, Shards, Written
from dissensus.features._storage import Folder

LABELS = ("label", "class", "cls")
THREADS = 16  # that read headers and labels of a folder without an index
PROBE = 2**16  # bytes at each end of a file that its digest covers

T = TypeVar("T")


def open_folder(folder: Path, label_column: str | None = None) -> Folder:
    """Open the features in a folder.

    Raises:
        DataError: If there are none, they are unfinished or damaged, or `label_column` does not apply.
    """
    if (folder / INDEX).is_file():
        if label_column is not None:
            raise DataError(
                f"label_column is for folders without {INDEX}; {folder} has one, which names the labels: leave it out"
            )
        return Folder(folder, _shards.read_index(folder))
    names = sorted(files_in(folder)) if folder.is_dir() else None
    arrays = files_in(folder / FEATURES) if names is not None else {}
    begun = any(map(_shards.belongs, names or ()))
    if names is None:
        raise DataError(f"features are a folder; {folder} is not: check the path")
    if begun or not any(name.endswith(".npy") for name in arrays):
        begun = begun or bool(arrays)
        remedy = "it was never finished: run the same command again, or delete it" if begun else "check the path"
        raise DataError(f"a folder of features holds {INDEX} or {FEATURES}/*.npy; {folder} does not: {remedy}")
    return _open_clip_retrieval(folder, arrays, label_column)


def holds_features(folder: Path) -> bool:
    """Whether `open_folder` accepts a folder: a finished one of Dissensus, or one that clip-retrieval wrote."""
    if (folder / INDEX).is_file():
        return True
    if not (folder / FEATURES).is_dir():  # first: if it is missing, s3fs lists its parent, perhaps many images
        return False
    arrays = any(name.endswith(".npy") for name in files_in(folder / FEATURES))
    return arrays and not any(map(_shards.belongs, files_in(folder)))


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    digest: str  # of the header and both ends


class _Numbered(Folder):
    """A folder whose files are named by clip-retrieval: img_emb_0.npy or img_emb_000.npy, and so on."""

    _recorded = False

    def __init__(self, folder: Path, index: Index, files: dict[int, tuple[str, str]], label: str | None) -> None:
        super().__init__(folder, index, columns={} if label is None else {"label": label}, numbered=False)
        self._files = files

    def _features(self, number: int) -> Path:
        return self.folder / FEATURES / self._files[self.index.shards.number[number]][0]

    def _metadata(self, number: int) -> Path:
        return self.folder / METADATA / self._files[self.index.shards.number[number]][1]


def _open_clip_retrieval(folder: Path, arrays: dict[str, int], label_column: str | None) -> Folder:
    """Open img_emb/*.npy with metadata/*.parquet of the same numbers; labels are a column of the metadata, if any."""
    metadata = _by_number(name for name in files_in(folder / METADATA) if name.endswith(".parquet"))
    features = _by_number(name for name in arrays if name.endswith(".npy"))
    numbers = sorted(features)
    if metadata and metadata.keys() != features.keys():
        odd = min(metadata.keys() ^ features.keys())
        present, absent = (FEATURES, METADATA) if odd in features else (METADATA, FEATURES)
        raise DataError(
            f"every shard has features and metadata; number {odd} of {folder} is in {present} but not in {absent}: "
            "copy the folder again"
        )
    headers = _each(lambda number: _header(folder / FEATURES / features[number]), numbers)
    rows = {number: header.shape[0] for number, header in zip(numbers, headers, strict=True)}
    first = headers[0]
    for number, header in zip(numbers, headers, strict=True):
        if (header.shape[1:], header.dtype) != (first.shape[1:], first.dtype) or len(header.shape) < 2:
            raise DataError(
                f"all shards must hold rows of {first.dtype} {first.shape[1:]}; {folder / FEATURES / features[number]} "
                f"holds {header.dtype} {header.shape}: extract them with one model"
            )
    if first.dtype not in (np.float16, np.float32):
        raise DataError(f"features are float16 or float32; {folder} holds {first.dtype}: convert them")
    label = _label_column(folder / METADATA / metadata[numbers[0]], label_column) if metadata else None
    if label_column is not None and label is None:
        raise DataError(f"label_column is a column of {METADATA}/*.parquet; {folder} has none: leave it out")
    tallies = dict[int, _Tally]()
    if label is not None:
        tallied = _each(lambda number: _tally(folder / METADATA / metadata[number], label, rows[number]), numbers)
        tallies = dict(zip(numbers, tallied, strict=True))
    classes, counts = _count(tallies.values(), label or "")
    shards = [
        Shard(
            number=number,
            rows=rows[number],
            features=Written(bytes=arrays[features[number]], sha256=header.digest),
            metadata=None if label is None else Written(bytes=1, sha256=tallies[number].digest),
        )
        for number, header in zip(numbers, headers, strict=True)
        if rows[number]
    ]
    if not shards:
        raise DataError(f"a feature set needs at least one row; {folder} has none: check where it comes from")
    index = Index(
        written_by="clip-retrieval",
        columns=() if label is None else ("label",),
        shape=first.shape[1:],
        dtype=first.dtype.name,  # type: ignore[arg-type]  # checked above
        count=sum(shard.rows for shard in shards),
        classes=classes,
        class_counts=counts,
        group_names=(),
        provenance={},
        shards=Shards.of(shards),
    )
    files = {number: (features[number], metadata.get(number, "")) for number in numbers}
    return _Numbered(folder, index, files, label)


def _by_number(names: Iterable[str]) -> dict[int, str]:
    numbered = dict[int, str]()
    for name in names:
        if (number := _number(name)) in numbered:
            raise DataError(f"every shard has its own number; {numbered[number]} and {name} share one: remove one")
        numbered[number] = name
    return numbered


def _number(name: str) -> int:
    """Return the number at the end of a file name, such as 12 of img_emb_0012.npy."""
    match = re.search(r"(\d+)\.\w+$", name)
    if match is None:
        raise DataError(f"shards are numbered, as in img_emb_0.npy; got {name}: rename or remove it")
    return int(match[1])


def _header(path: Path) -> _Header:
    fs, inside = filesystem(path)
    try:
        with fs.open(inside, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            whole = file.tell() + math.prod(shape) * dtype.itemsize
            file.seek(0)
            ends = [file.read(PROBE)]
            size = file.seek(0, 2)
            file.seek(max(0, size - PROBE))
            ends.append(file.read(PROBE))
    except NPY_ERRORS as error:
        raise DataError(f"features must be .npy files; {path} cannot be read ({error}): copy it again") from error
    if fortran or dtype.hasobject:
        raise DataError(f"features must be arrays of numbers in C order; {path} is not: save it again with numpy.save")
    if size != whole:
        state = "truncated" if size < whole else "altered"
        raise DataError(
            f"features must be .npy files of {whole} bytes, as their header says; {path} is {state}, {size}"
        )
    return _Header(shape, dtype, hashlib.sha256(str(size).encode() + b"".join(ends)).hexdigest())


def _label_column(path: Path, wanted: str | None) -> str | None:
    with _metadata.opened(path) as file:
        names, about = file.schema_arrow.names, file.schema_arrow.metadata or {}
    if about.items() >= _metadata.MARK.items():
        raise DataError(
            f"features that dissensus wrote have an {INDEX}; {path.parent.parent} has none, it was never finished: run "
            "the same command again, or delete it"
        )
    if wanted is not None and wanted not in names:
        raise DataError(f"{path} has no column {wanted!r}: choose label_column among {', '.join(names)}")
    return wanted or next((name for name in LABELS if name in names), None)


class _Tally(NamedTuple):
    counts: dict[Any, int]  # rows of each label of a file
    digest: str  # of the labels and their order


def _tally(path: Path, column: str, rows: int) -> _Tally:
    values, inverse = _metadata.distinct(path, column)
    if len(inverse) != rows:
        raise DataError(f"{path} must have {rows} rows, as its features; it has {len(inverse)}: copy it again")
    counts = np.bincount(inverse, minlength=len(values)).tolist()
    digest = hashlib.sha256(json.dumps(values).encode() + inverse.tobytes()).hexdigest()
    return _Tally(dict(zip(values, counts, strict=True)), digest)


def _count(tallies: Iterable[_Tally], column: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the distinct labels of all files, numbers in numerical order, and how often each occurs."""
    totals: dict[Any, int] = {}
    for tally in tallies:
        for value, count in tally.counts.items():
            totals[value] = totals.get(value, 0) + count
    if len({type(value) for value in totals}) > 1:
        raise DataError(f"labels must be all text or all numbers; column {column!r} has both: convert it")
    ordered = sorted(totals)
    return tuple(map(str, ordered)), tuple(totals[value] for value in ordered)


def _each(work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, items))
