"""FeatureSet: what the frozen trunk outputs, with labels, in memory or memory-mapped from a folder.

    features = FeatureSet.from_arrays(x, ["cat", "dog", ...])           # (N, ...), (N,)
    features = features.save("features")                                # sharded, float16, opened again
    x = features.rows(torch.randint(len(features), (256,)))             # (256, ...) float32

Rows are read on demand; however many there are, memory holds the labels and the rows in use.
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
from dissensus.features._provenance import passes_of, plain
from dissensus.features._rows import gather, positions
from dissensus.features._shards import Shard
from dissensus.features.npz import read_npz
from dissensus.features.writer import FeatureWriter
from dissensus.functional import arrays
from dissensus.functional.arrays import Array, Values


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet:
    """N rows of features. Create one with `from_arrays` or `open`.

    Attributes:
        labels: (N,) int64, indices into `classes`; None if unknown.
        groups: (N,) int64, indices into `group_names`; None if there are none.
        classes: The names of the classes.
        group_names: The names of the groups.
        provenance: Where the features come from, such as the backbone.
        folder: Where they are stored; None for arrays in memory.
        passes: Augmented passes over the same samples, one after the other; training uses one per epoch.
    """

    labels: Tensor | None
    groups: Tensor | None
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    provenance: dict[str, Any]
    folder: Path | None
    _parts: tuple[Array, ...]  # the rows of the root set, one array per shard
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
        """Create a set from arrays of any kind; float features are shared, not copied.

        Args:
            features: (N, ...) numbers.
            labels: (N,) integers, or names of classes.
            classes: The names of the classes; None: the distinct names in `labels`, sorted, or "0", "1", ...
            groups: (N,) integers, or names of groups.
            group_names: The names of the groups; None: as for classes.
            provenance: Where the features come from, as plain JSON.

        Raises:
            DataError: If the arrays do not fit together, or hold values that are not finite.

        Example:
            >>> FeatureSet.from_arrays(np.ones((3, 2)), ["dog", "cat", "dog"])
            FeatureSet(3 rows of shape (2,), 2 classes, in memory)
        """
        array = arrays.check_features(features)
        if not len(array):
            raise DataError(f"a feature set needs at least one row; got {array.shape}: check where they come from")
        y, classes = arrays.encode("labels", labels, len(array), classes)
        g, group_names = arrays.encode("groups", groups, len(array), group_names)
        return cls(
            labels=None if y is None else torch.from_numpy(y),
            groups=None if g is None else torch.from_numpy(g),
            classes=classes,
            group_names=group_names,
            passes=passes_of(provenance or {}, len(array)),
            provenance=plain(provenance or {}),
            folder=None,
            _parts=(array,),
        )

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> FeatureSet:
        """Open the set in a folder, memory-mapped: labels and groups are read, features are not.

        Args:
            folder: A folder written by `save`, `FeatureWriter` or `extract`; or an .npz file, which is loaded.
            verify: Read all shards and check their sha256, besides their sizes.

        Raises:
            DataError: If the folder is missing, unfinished or damaged.
        """
        folder = Path(folder)
        if folder.suffix == ".npz":
            values = read_npz(folder)
            return cls.from_arrays(values["features"], values.get("labels"), groups=values.get("groups"))
        index = _shards.read_index(folder)
        maps = [_shards.map_shard(folder, shard, index) for shard in index.shards]
        codes = {
            kind: torch.from_numpy(np.concatenate([tensors[kind] for tensors in maps]))
            for kind in index.columns
            if kind != "features"
        }
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
        """Write the set to a new or empty folder, and open it there; see `FeatureWriter` for the options."""
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
        """Read every shard; raise `DataError` if its bytes have changed since it was written."""
        if self.folder is not None:
            for shard in tqdm(self._shards, desc=f"verify {self.folder.name}", disable=not progress):
                _shards.verify_shard(self.folder, shard)

    def __len__(self) -> int:
        return int(self._starts[-1]) if self._index is None else len(self._index)

    def __repr__(self) -> str:
        backbone = (self.provenance.get("backbone") or {}).get("name")
        facts = [
            f"{len(self):,} rows of shape {self.shape}",
            "unlabelled" if self.labels is None else f"{len(self.classes)} classes",
            "" if self.groups is None else f"{len(self.group_names)} groups",
            "" if self.passes == 1 else f"{self.passes} passes",
            "" if backbone is None else f"backbone {backbone}",
            "in memory" if self.folder is None else f"in {str(self.folder)!r}",
        ]
        return f"FeatureSet({', '.join(filter(None, facts))})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A mapped array would be pickled by value: send the folder and the row numbers instead.
        if self._root is not None:
            return FeatureSet.subset, (self._root, self._index, self.passes)
        if self.folder is None:
            return super().__reduce__()
        return FeatureSet.open if self._labelled else _open_unlabelled, (self.folder,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self._parts[0].shape[1:]

    @property
    def width(self) -> int:
        """The number of values per row."""
        return math.prod(self.shape)

    @property
    def has_labels(self) -> bool:
        """Whether the labels are known; asking does not read them."""
        return self.labels is not None

    def labels_at(self, rows: Values | slice) -> Tensor:
        """Return the labels (...) int64 of these rows, which only those are read for.

        Args:
            rows: As for `rows`.

        Raises:
            DataError: If the labels are not known.
        """
        if self.labels is None:
            raise DataError("labels are needed; this set has none: give labels when making it")
        return self.labels[torch.from_numpy(positions(rows, len(self)))]

    @property
    def nbytes(self) -> int:
        """Bytes of all features as stored, without labels."""
        return len(self) * self.width * self._parts[0].dtype.itemsize

    @property
    def class_counts(self) -> Tensor:
        """(C,): the number of rows of each class; all 0 when unlabelled."""
        labels = torch.zeros(0, dtype=torch.int64) if self.labels is None else self.labels
        return torch.bincount(labels, minlength=len(self.classes))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *map(len, self._parts)])

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 of values, labels, names, order and passes; it differs between memory and disk."""
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
        """The fingerprint of the images that the rows come from; None for a subset, or if unknown."""
        return None if self._root is not None else self.provenance.get("images")

    def rows(self, index: Values | slice) -> Tensor:
        """Return float32 features (..., *shape) of these rows in this order.

        Args:
            index: Integers (...), of which negative ones count from the end; a slice; or a mask (N,).
        """
        rows = positions(index, len(self))
        flat = rows.reshape(-1)
        x = gather(self._parts, self._starts, flat if self._index is None else self._index[flat])
        return x.reshape(*rows.shape, *self.shape)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        """Yield all rows in order as (features (batch_size, ...), slice); the last batch may be short."""
        if batch_size < 1:
            raise DataError(f"a batch holds at least one row; got batch_size={batch_size}: try 256")
        for start in range(0, len(self), batch_size):
            at = slice(start, min(start + batch_size, len(self)))
            yield self.rows(at), at

    def subset(self, index: Values | slice, passes: int = 1) -> FeatureSet:
        """Return a view of these rows, in this order; features are not copied and `classes` stay the same.

        Args:
            index: Integers, a slice or a mask, as for `rows`.
            passes: How many augmented passes over the same samples the rows are.
        """
        rows = positions(index, len(self))
        if rows.ndim != 1 or not len(rows):
            raise DataError(f"a subset needs a list of at least one row; got shape {rows.shape}: choose rows")
        at = torch.from_numpy(rows)
        return replace(
            self,
            labels=None if self.labels is None else self.labels[at],
            groups=None if self.groups is None else self.groups[at],
            _root=self._root or self,
            _index=rows if self._index is None else self._index[rows],
            passes=passes_of({"passes": passes}, len(rows)),
        )

    def unlabelled(self) -> FeatureSet:
        """Return a view of the same rows without labels, classes and groups; features are not copied."""
        if not self._labelled:
            return self
        root = None if self._root is None else self._root.unlabelled()
        return replace(self, labels=None, groups=None, classes=(), group_names=(), _root=root)

    @property
    def _labelled(self) -> bool:
        return self.labels is not None or self.groups is not None

    def labelled(self, labels: Values, classes: Sequence[str] | None = None) -> FeatureSet:
        """Return the same rows, in memory, with other labels: (N,) integers, or names of classes."""
        backbone = {name: value for name, value in self.provenance.items() if name == "backbone"}
        return FeatureSet.from_arrays(self.rows(slice(None)), labels, classes=classes, provenance=backbone)

    def split(self, fraction: float, seed: int) -> tuple[FeatureSet, FeatureSet]:
        """Return the rest and a random `fraction` that is held out, stratified by class where labels are known.

        All passes of a sample are in the same part.

        Raises:
            DataError: If a class has too few rows for both parts.
        """
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
        rows = [(np.arange(self.passes)[:, None] * samples + np.sort(part)).ravel() for part in parts]
        return self.subset(rows[0], self.passes), self.subset(rows[1], self.passes)


def _open_unlabelled(folder: Path) -> FeatureSet:
    return FeatureSet.open(folder).unlabelled()
