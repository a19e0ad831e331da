"""FeatureSet: what the frozen trunk outputs, with labels, in memory or in the shards of a folder.

    features = FeatureSet.from_arrays(x, ["cat", "dog", ...])           # (N, ...), (N,)
    features = features.save("features")                                # sharded, float16, opened again
    x = features.rows(torch.randint(len(features), (256,)))             # (256, ...) float32

Rows are read on demand; a set of a billion rows opens in seconds. The folder may be at a URL, such as
s3://bucket/features.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError
from dissensus._core.places import place, storage_errors
from dissensus.features import _opening
from dissensus.features._memory import Memory
from dissensus.features._provenance import passes_of, plain
from dissensus.features._rows import positions
from dissensus.features._storage import Kind, Storage, Text
from dissensus.features.npz import read_npz
from dissensus.features.writer import FeatureWriter
from dissensus.functional import arrays
from dissensus.functional.arrays import Array, Values

WHOLE = 2**24  # up to this many rows, all labels are read at once
TEXTS = 2**20  # rows whose paths and digests are read at once: rows in random order may need the metadata of all shards


@dataclass(frozen=True, eq=False, repr=False)
class FeatureSet:
    """N rows of features. Create one with `from_arrays` or `open`.

    Attributes:
        classes: The names of the classes.
        group_names: The names of the groups.
        provenance: Where the features come from, such as the backbone.
        folder: Where they are stored; None for arrays in memory.
        passes: Augmented passes over the same samples, one after the other; training uses one per epoch.
    """

    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    provenance: dict[str, Any]
    folder: Path | None
    _storage: Storage  # the rows of the root set
    _index: NDArray[np.int64] | None = None  # this set's rows in it; None: all
    _labels: NDArray[np.int64] | None = None  # of this set's rows, instead of those that are stored
    _open: tuple[str, str | None] | None = None  # arguments of `open`, for another process
    _hidden: bool = False  # whether labels and groups are ignored
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
            classes=classes,
            group_names=group_names,
            passes=passes_of(provenance or {}, len(array)),
            provenance=plain(provenance or {}),
            folder=None,
            _storage=Memory(array, y, g),
        )

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, verify: bool = False, label_column: str | None = None
    ) -> FeatureSet:
        """Open the set in a folder: nothing but its index is read.

        Args:
            folder: A folder written by `save`, `FeatureWriter` or `extract`; one that clip-retrieval wrote, with
                `img_emb/*.npy` and `metadata/*.parquet`; or an .npz file, which is loaded. A path or a URL.
            verify: Read all files now and compare their sha256, which otherwise happens when they are used.
            label_column: The column of clip-retrieval's metadata that holds the labels; None: "label", "class", "cls"
                or none.

        Raises:
            DataError: If the folder is missing, unfinished or damaged.
        """
        path = place(folder)
        with storage_errors(path):
            if path.suffix == ".npz":
                values = read_npz(path)
                return cls.from_arrays(values["features"], values.get("labels"), groups=values.get("groups"))
            storage = _opening.open_folder(path, label_column)
        index = storage.index
        features = cls(
            classes=index.classes,
            group_names=index.group_names,
            provenance=index.provenance,
            folder=path,
            _storage=storage,
            _open=(str(path), label_column),
            passes=index.provenance.get("passes", 1),
        )
        if verify:
            features.verify()
        return features

    def save(self, folder: str | os.PathLike[str], *, dtype: str = "float16", shard_rows: int = 65536) -> FeatureSet:
        """Write the set to a new or empty folder, and open it there; see `FeatureWriter` for the options.

        Labels, groups, and the paths and digests of images are written too, where they are known.
        """
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
            for begin in range(0, len(self), TEXTS):
                part = slice(begin, min(begin + TEXTS, len(self)))
                paths, digests = self.paths(part), self.digests(part)
                for x, here in self.subset(part).batches(max(1, 2**22 // self.width)):
                    at = slice(begin + here.start, begin + here.stop)
                    writer.add(
                        x,
                        None if self.labels is None else self.labels[at],
                        None if self.groups is None else self.groups[at],
                        paths=None if paths is None else paths[here],
                        digests=None if digests is None else digests[here],
                    )
        return FeatureSet.open(folder)

    def verify(self, progress: bool = False) -> None:
        """Raise `DataError` if a file has changed since it was written; otherwise each is verified when it is read.

        Args:
            progress: Show a progress bar.
        """
        name = "" if self.folder is None else self.folder.name
        self._storage.verify(partial(tqdm, desc=f"verify {name}", disable=not progress))

    def __len__(self) -> int:
        return self._storage.count if self._index is None else len(self._index)

    def __repr__(self) -> str:
        backbone = (self.provenance.get("backbone") or {}).get("name")
        facts = [
            f"{len(self):,} rows of shape {self.shape}",
            "unlabelled" if not self.has_labels else f"{len(self.classes)} classes",
            f"{len(self.group_names)} groups" if self.has_groups else "",
            "" if self.passes == 1 else f"{self.passes} passes",
            "" if backbone is None else f"backbone {backbone}",
            "in memory" if self.folder is None else f"in {str(self.folder)!r}",
        ]
        return f"FeatureSet({', '.join(filter(None, facts))})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Mapped arrays would be pickled by value: send the address and the row numbers instead.
        if self._open is None:
            return super().__reduce__()
        return _reopened, (*self._open, self._index, self._labels, self.classes, self._hidden, self.passes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self._storage.shape

    @property
    def width(self) -> int:
        """The number of values per row."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all features as stored, without labels."""
        return len(self) * self.width * self._storage.dtype.itemsize

    @property
    def has_labels(self) -> bool:
        """Whether the labels are known; asking does not read them."""
        return self._labels is not None or (not self._hidden and "label" in self._storage.kinds)

    @property
    def has_groups(self) -> bool:
        """Whether the groups are known; asking does not read them."""
        return not self._hidden and "group" in self._storage.kinds

    @cached_property
    def labels(self) -> Tensor | None:
        """(N,) int64, indices into `classes`, read when first asked for; None if unknown."""
        if not self.has_labels:
            return None
        return torch.from_numpy(self._codes("label") if self._labels is None else self._labels)

    @cached_property
    def groups(self) -> Tensor | None:
        """(N,) int64, indices into `group_names`, read when first asked for; None if there are none."""
        return torch.from_numpy(self._codes("group")) if self.has_groups else None

    def _codes(self, kind: Kind) -> NDArray[np.int64]:
        return self._storage.codes(kind, self._index)

    def labels_at(self, rows: Values | slice) -> Tensor:
        """Return the labels (...) int64 of these rows; of a large set, only those are read.

        Args:
            rows: As for `rows`.

        Raises:
            DataError: If the labels are not known.
        """
        if not self.has_labels:
            raise DataError("labels are needed; this set has none: give labels when making it")
        at = positions(rows, len(self))
        if len(self) <= WHOLE or self._labels is not None or "labels" in self.__dict__:
            assert self.labels is not None
            return self.labels[torch.from_numpy(at)]
        flat = at.reshape(-1)
        codes = self._storage.codes("label", flat if self._index is None else self._index[flat])
        return torch.from_numpy(codes).view(at.shape)

    @cached_property
    def class_counts(self) -> Tensor:
        """(C,): the number of rows of each class; all 0 when unlabelled."""
        counts = torch.zeros(len(self.classes), dtype=torch.int64)
        if not self.has_labels:
            return counts
        if self._index is None and self._labels is None:
            stored = torch.from_numpy(self._storage.counts)
            counts[: len(stored)] = stored
            return counts
        for start in range(0, len(self), WHOLE):
            labels = self.labels_at(slice(start, start + WHOLE))
            counts += torch.bincount(labels, minlength=len(counts))
        return counts

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 of values, labels, names, order and passes; it differs between memory and disk."""
        passes = b"" if self.passes == 1 else f" {self.passes} passes".encode()
        known = self.has_labels or self.has_groups or self.classes or self.group_names
        names = (self.classes, self.group_names) if known else None
        whole = self._storage.fingerprint(names)
        for codes in (self._index, self._labels):
            if codes is not None:
                whole = hashlib.sha256(whole.encode() + codes.tobytes()).hexdigest()
        return hashlib.sha256(whole.encode() + passes).hexdigest() if passes else whole

    @property
    def images(self) -> str | None:
        """The fingerprint of the images that the rows come from; None for a subset, or if unknown."""
        return None if self._index is not None else self.provenance.get("images")

    def rows(self, index: Values | slice) -> Tensor:
        """Return float32 features (..., *shape) of these rows in this order.

        Args:
            index: Integers (...), of which negative ones count from the end; a slice; or a mask (N,).
        """
        rows = positions(index, len(self))
        return arrays.to_float32(self._read(rows.reshape(-1))).reshape(*rows.shape, *self.shape)

    def _read(self, rows: NDArray[np.int64]) -> Array:
        return self._storage.read(rows if self._index is None else self._index[rows])

    def expect(self, ranges: Sequence[range]) -> None:
        """Announce ranges of rows that `rows` will be asked for soon; a disk reads them in the meantime."""
        if self._index is None:
            self._storage.expect(ranges)

    def paths(self, index: Values | slice) -> list[str] | None:
        """Return where the images of these rows came from, as extraction wrote it; None if unknown."""
        return self._texts("image_path", index)

    def digests(self, index: Values | slice) -> list[str] | None:
        """Return the digests of the images of these rows, which equal files share; None if unknown."""
        return self._texts("digest", index)

    def _texts(self, column: Text, index: Values | slice) -> list[str] | None:
        rows = positions(index, len(self)).reshape(-1)
        return self._storage.texts(column, rows if self._index is None else self._index[rows])

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
        return replace(
            self,
            _index=rows if self._index is None else self._index[rows],
            _labels=None if self._labels is None else self._labels[rows],
            passes=passes_of({"passes": passes}, len(rows)),
        )

    def unlabelled(self) -> FeatureSet:
        """Return a view of the same rows without labels, classes and groups; features are not copied."""
        if not (self.has_labels or self.has_groups):
            return self
        return replace(self, classes=(), group_names=(), _hidden=True, _labels=None)

    def relabelled(self, labels: Values, classes: Sequence[str]) -> FeatureSet:
        """Return a view of the same rows with other labels (N,), integers that number `classes`."""
        codes = arrays.check_codes("labels", labels, len(self), classes)
        return replace(self, _labels=codes, classes=tuple(classes))

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


def _reopened(
    folder: str,
    label_column: str | None,
    index: NDArray[np.int64] | None,
    labels: NDArray[np.int64] | None,
    classes: tuple[str, ...],
    hidden: bool,
    passes: int,
) -> FeatureSet:
    """Return a set as it was in another process."""
    whole = FeatureSet.open(folder, label_column=label_column)
    names = () if hidden else whole.group_names
    changes: dict[str, Any] = {"_index": index, "_labels": labels, "_hidden": hidden, "passes": passes}
    return replace(whole, classes=classes, group_names=names, **changes)
