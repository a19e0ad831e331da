"""Features: what the frozen trunk outputs, with labels, in memory or memory-mapped from a folder.

    features = FeatureSet.from_arrays(x, y, classes=["cat", "dog"])     # (N, ...), (N,)
    features = features.save("features")                                # sharded, float16, opened again
    x = features.rows(torch.randint(len(features), (256,)))             # (256, ...) float32

Rows are read when asked for; however many there are, memory holds the labels and the rows in use.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError
from dissensus.features import _shards
from dissensus.features._shards import Shard
from dissensus.features.npz import read_npz
from dissensus.features.writer import FeatureWriter
from dissensus.functional import arrays
from dissensus.functional.arrays import Array, Values

__all__ = ["FeatureSet", "FeatureWriter", "check_backbone"]


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet:
    """N rows of features (N, ...) with labels (N,), if known, and groups (N,), if any; both int64.

    Made by `from_arrays`, `open`, `subset` and `split`. `folder` is None for arrays in memory. Rows may be several
    augmented `passes` over the same samples, one whole pass after the other; training takes one an epoch.
    """

    labels: Tensor | None
    groups: Tensor | None
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    provenance: dict[str, Any]
    folder: Path | None
    _parts: tuple[Array, ...]  # the rows of the root set, one array a shard
    _shards: tuple[Shard, ...] = ()
    _root: FeatureSet | None = None  # the set of which this is a subset,
    _index: NDArray[np.int64] | None = None  # and this set's rows in it
    passes: int = 1

    @classmethod
    def from_arrays(
        cls,
        features: Values,
        labels: Values | None = None,
        *,
        classes: Sequence[str] | None = None,
        groups: Values | None = None,
        group_names: Sequence[str] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> FeatureSet:
        """A set over arrays of any kind, (N, ...) and (N,); float features are shared, not copied."""
        array = arrays.check_features(features)
        if not len(array):
            raise DataError(f"a feature set needs at least one row; got {array.shape}: check what made it")
        y = None if labels is None else arrays.check_codes("labels", labels, len(array), classes)
        g = None if groups is None else arrays.check_codes("groups", groups, len(array), group_names)
        return cls(
            labels=None if y is None else torch.from_numpy(y),
            groups=None if g is None else torch.from_numpy(g),
            classes=arrays.default_names(classes, -1 if y is None else int(y.max())),
            group_names=arrays.default_names(group_names, -1 if g is None else int(g.max())),
            provenance=dict(provenance or {}),
            folder=None,
            _parts=(array,),
            passes=_passes(provenance or {}, len(array)),
        )

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> FeatureSet:
        """The set in a folder, memory-mapped: labels and groups are read, features are not; or that of an .npz file.

        Checks that every shard is there in full; `verify` also reads them all and checks their sha256.
        """
        folder = Path(folder)
        if folder.suffix == ".npz":
            values = read_npz(folder)
            return cls.from_arrays(values["features"], values.get("labels"), groups=values.get("groups"))
        index = _shards.read_index(folder)
        maps = [_shards.map_shard(folder, shard, index) for shard in index.shards]
        codes: dict[str, Tensor] = {}
        for kind, names in (("labels", index.classes), ("groups", index.group_names)):
            if kind in index.columns:
                whole = np.concatenate([tensors[kind] for tensors in maps])
                codes[kind] = torch.from_numpy(arrays.check_codes(kind, whole, index.count, names))
        features = cls(
            labels=codes.get("labels"),
            groups=codes.get("groups"),
            classes=index.classes,
            group_names=index.group_names,
            provenance=index.provenance,
            folder=folder,
            _parts=tuple(tensors["features"] for tensors in maps),
            _shards=index.shards,
            passes=index.provenance.get("passes", 1),
        )
        if verify:
            features.verify()
        return features

    def save(self, folder: str | os.PathLike[str], *, dtype: str = "float16", shard_rows: int = 65536) -> FeatureSet:
        """Write the set to a new or empty folder, and open it there."""
        with FeatureWriter(
            folder,
            shape=self.shape,
            classes=self.classes,
            group_names=self.group_names,
            dtype=dtype,
            shard_rows=shard_rows,
            # its own passes: a subset of an augmented set may have others
            provenance={**self.provenance, "passes": self.passes} if "passes" in self.provenance else self.provenance,
        ) as writer:
            for x, at in self.batches(max(1, 2**22 // self.width)):
                y = None if self.labels is None else self.labels[at]
                writer.add(x, y, None if self.groups is None else self.groups[at])
        return FeatureSet.open(folder)

    def verify(self, progress: bool = False) -> None:
        """Read every shard and refuse one whose bytes changed since it was written."""
        if self.folder is not None:
            for shard in tqdm(self._shards, desc=f"verify {self.folder.name}", disable=not progress):
                _shards.verify_shard(self.folder, shard)

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._index is None else len(self._index)

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {str(self.folder)!r}"
        known = "unlabelled" if self.labels is None else f"{len(self.classes)} classes"
        return f"FeatureSet({(len(self), *self.shape)}, {known}, {where})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # a mapped array would be pickled by value: send the folder's name and the row numbers instead
        if self._root is not None:
            return FeatureSet.subset, (self._root, self._index, self.passes)
        return super().__reduce__() if self.folder is None else (FeatureSet.open, (self.folder,))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self._parts[0].shape[1:]

    @property
    def width(self) -> int:
        """How many values a row has."""
        return math.prod(self.shape)

    @property
    def class_counts(self) -> Tensor:
        """(C,): rows of each class; `(class_counts > 0).sum()` classes occur. All 0 when unlabelled."""
        labels = torch.zeros(0, dtype=torch.int64) if self.labels is None else self.labels
        return torch.bincount(labels, minlength=len(self.classes))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self._parts)])

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 that changes with any value, label, name, the order of rows or the number of passes.

        A set in memory and the same set on disk have different fingerprints.
        """
        passes = b"" if self.passes == 1 else f" {self.passes} passes".encode()
        if self._root is not None and self._index is not None:
            return hashlib.sha256(self._root.fingerprint.encode() + self._index.tobytes() + passes).hexdigest()
        hashes = [shard.sha256 for shard in self._shards]
        facts = [len(self), self.shape, str(self._parts[0].dtype), self.classes, self.group_names, hashes]
        digest = hashlib.sha256(json.dumps(facts).encode() + passes)
        if self.folder is None:
            for codes in (self.labels, self.groups):
                digest.update(b"none" if codes is None else codes.numpy().tobytes())
            step = max(1, 2**22 // self.width)
            for start in range(0, len(self), step):
                digest.update(np.ascontiguousarray(self._parts[0][start : start + step]).data)
        return digest.hexdigest()

    @property
    def images(self) -> str | None:
        """The fingerprint of the images that the rows are of, all of them; None where unknown."""
        return None if self._root is not None else self.provenance.get("images")

    def rows(self, index: Values | slice) -> Tensor:
        """Float32 features of these rows in this order: (...) integers -> (..., *shape).

        Takes a slice and a mask (N,), too. Negative numbers count from the end.
        """
        places = _places(index, len(self))
        flat = places.reshape(-1)
        x = _gather(self._parts, self._starts, flat if self._index is None else self._index[flat])
        return x.reshape(*places.shape, *self.shape)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        """All rows in order, as (features (batch_size, ...), their slice); the last batch may be short."""
        if batch_size < 1:
            raise DataError(f"a batch holds at least one row; got batch_size={batch_size}: try 256")
        for start in range(0, len(self), batch_size):
            at = slice(start, min(start + batch_size, len(self)))
            yield self.rows(at), at

    def subset(self, index: Values | slice, passes: int = 1) -> FeatureSet:
        """A view of these rows, in this order; features are not copied and `classes` stay the same.

        `passes` says how many augmented passes over the same samples the rows are.
        """
        places = _places(index, len(self))
        if places.ndim != 1 or not len(places):
            raise DataError(f"a subset needs a list of at least one row; got shape {places.shape}: choose rows")
        at = torch.from_numpy(places)
        return replace(
            self,
            labels=None if self.labels is None else self.labels[at],
            groups=None if self.groups is None else self.groups[at],
            _root=self._root or self,
            _index=places if self._index is None else self._index[places],
            passes=_passes({"passes": passes}, len(places)),
        )

    def split(self, fraction: float, seed: int) -> tuple[FeatureSet, FeatureSet]:
        """(the rest, a random `fraction` held out), each class in proportion where labels are known."""
        if not 0 < fraction < 1:
            raise DataError(f"the fraction held out must lie between 0 and 1; got {fraction}: try 0.1")
        few = (self.class_counts == self.passes).nonzero()
        if len(few):
            raise DataError(
                f"a split needs 2 rows of every class; class {self.classes[int(few[0])]!r} has 1: "
                "add rows or leave the class out"
            )
        samples = len(self) // self.passes
        labels = None if self.labels is None else self.labels[:samples].numpy()
        try:
            parts = train_test_split(np.arange(samples), test_size=fraction, random_state=seed, stratify=labels)
        except ValueError as error:
            raise DataError(
                f"both sides of a split need a row of every class; got {fraction} of {samples} rows in "
                f"{int((self.class_counts > 0).sum())} classes: add rows or move the fraction towards 0.5"
            ) from error
        # a sample lies on one side with all its passes
        rows = [(np.arange(self.passes)[:, None] * samples + np.sort(part)).ravel() for part in parts]
        return self.subset(rows[0], self.passes), self.subset(rows[1], self.passes)


def check_backbone(expected: Mapping[str, Any] | None, features: FeatureSet, name: str) -> None:
    """Refuse features of another trunk than the one expected, where both are known."""
    found = features.provenance.get("backbone")
    if expected is None or found is None or found["fingerprint"] == expected["fingerprint"]:
        return
    keys = ("name", "layers", "size", "crop", "weights")
    key = next((key for key in keys if found.get(key) != expected.get(key)), "fingerprint")
    raise DataError(
        f"features must come from one backbone; {name} has {key} {str(found.get(key))[:40]}, the training set "
        f"{str(expected.get(key))[:40]}: extract both alike"
    )


def _passes(provenance: Mapping[str, Any], rows: int) -> int:
    passes = provenance.get("passes", 1)
    if not isinstance(passes, int) or passes < 1 or rows % passes:
        raise DataError(f"passes must part the rows evenly; got {passes!r} of {rows} rows: write the features again")
    return passes


def _places(index: Values | slice, count: int) -> NDArray[np.int64]:
    """A slice, a mask (count,) or integers (...) -> int64 row numbers within [0, count)."""
    if isinstance(index, slice):
        return np.arange(*index.indices(count))
    array = arrays.to_numpy(index)
    if array.dtype == bool and array.shape == (count,):
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu" and array.size:
        raise DataError(f"rows are chosen by integers or a mask ({count},); got {array.dtype} {array.shape}")
    places = array.astype(np.int64)
    if places.size and not (-count <= places.min() and places.max() < count):
        raise IndexError(f"rows must lie in 0..{count - 1}; got {places.min()}..{places.max()}")
    return np.where(places < 0, places + count, places)


def _gather(parts: Sequence[Array], starts: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
    """Rows `index` (n,) of the arrays laid end to end -> (n, ...) float32."""
    if len(parts) == 1:
        return arrays.to_float32(parts[0][index])
    order = np.argsort(index)  # in order of place: each shard is read once, front to back
    ordered = index[order]
    cuts = np.searchsorted(ordered, starts)
    x = np.empty((len(index), *parts[0].shape[1:]), parts[0].dtype)
    for i in np.flatnonzero(np.diff(cuts)).tolist():
        here = slice(cuts[i], cuts[i + 1])
        x[order[here]] = parts[i][ordered[here] - starts[i]]
    return arrays.to_float32(x)  # once: torch converts faster than numpy, but a call a shard costs more
