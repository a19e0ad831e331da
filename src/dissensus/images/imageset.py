"""ImageSet: images by number, with labels and groups, however they are stored."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dissensus._core.errors import DataError
from dissensus.functional import arrays
from dissensus.functional.arrays import Values
from dissensus.images import datasets, finding
from dissensus.images.folders import list_folder
from dissensus.images.labels import Codes, renumbered
from dissensus.images.listing import Listing, PathLike
from dissensus.images.lists import read_list, read_table
from dissensus.images.readers import Reader
from dissensus.images.tars import list_tars


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """N images with labels (N,), if known, and groups (N,), if any; both int64.

    `names` are how messages call the images: paths under the folder given, or members of a tar.
    """

    names: tuple[str, ...]
    labels: Codes | None
    groups: Codes | None
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    _reader: Reader = field(kw_only=True)
    _places: Codes = field(kw_only=True)  # where the reader finds each image
    _sizes: Codes = field(kw_only=True)  # in bytes; -1 where unknown
    _shorter: int | None = field(kw_only=True, default=None)  # what `shrunk` leaves of the shorter side

    @classmethod
    def find(
        cls,
        where: PathLike,
        *,
        unlabelled: bool = False,
        classes: Sequence[str] | None = None,
        base: PathLike | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        group_columns: Sequence[str] = (),
        only: Mapping[str, object] | None = None,
    ) -> ImageSet:
        """The images in a folder, a list (.txt), a table (.csv, .tsv), a tar or a folder of tars.

        `classes` numbers the labels; `base` is for lists and tables, the columns and `only` are for tables.
        """
        found = finding.find(
            where,
            unlabelled=unlabelled,
            base=base,
            image_column=image_column,
            label_column=label_column,
            group_columns=group_columns,
            only=only,
        )
        images = cls._of(found)
        images = images.without_labels() if unlabelled else images
        return images if classes is None else images.relabelled(classes)

    @classmethod
    def from_folder(cls, root: PathLike, unlabelled: bool = False) -> ImageSet:
        """A folder of class folders, sorted by name, or a flat one, which is unlabelled.

        `unlabelled` takes every image beneath, whatever the folders.
        """
        return cls._of(list_folder(root, unlabelled))

    @classmethod
    def from_list(cls, path: PathLike, base: PathLike | None = None) -> ImageSet:
        """A text file, one image a line: its path or, after a tab, its label too; a space will do for a number.

        Paths are relative to `base`, by default the list's folder. Blank lines and # comments are skipped.
        """
        return cls._of(read_list(path, base))

    @classmethod
    def from_csv(
        cls,
        path: PathLike,
        base: PathLike | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        group_columns: Sequence[str] = (),
        only: Mapping[str, object] | None = None,
    ) -> ImageSet:
        """A table with a header: a column of paths and, if there is one, of labels; tabs separate a .tsv.

        `only={"split": "0"}` keeps the rows with that text; classes and groups are those of the whole table.
        The groups are the combinations of `group_columns`, such as "y=0 place=1".
        """
        return cls._of(read_table(path, base, image_column, label_column, group_columns, only))

    @classmethod
    def from_tar(cls, paths: PathLike | Sequence[PathLike], *, unlabelled: bool = False) -> ImageSet:
        """Plain tars that together hold class folders, or samples `key.jpg` with `key.cls` or `key.json`.

        The classes are the folders where the tree first branches; a JSON label is under "label" or "cls".
        """
        return cls._of(list_tars([paths] if isinstance(paths, str | os.PathLike) else paths, unlabelled))

    @classmethod
    def from_arrays(
        cls,
        images: Values,
        labels: Values | None = None,
        *,
        classes: Sequence[str] | None = None,
        groups: Values | None = None,
        group_names: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
    ) -> ImageSet:
        """Images in memory, uint8 (N, H, W) or (N, H, W, 3), shared, not copied; called by number by default."""
        return cls._of(datasets.list_arrays(images, labels, classes, groups, group_names, names))

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, classes: Sequence[str] | None = None, image: str = "image", label: str = "label"
    ) -> ImageSet:
        """A map-style data set with items (image, label), as in torchvision, or dicts, as of Hugging Face.

        Labels come from `targets`, `labels` or the column; where there is none, every item is read once.
        """
        return cls._of(datasets.list_dataset(dataset, classes, image, label))

    @classmethod
    def _of(cls, found: Listing) -> ImageSet:
        count = len(found.names)
        if not count:
            raise DataError("a set needs at least one image; got none: check what made it")
        labels, classes = arrays.encode("labels", found.labels, count, found.classes)
        groups, group_names = arrays.encode("groups", found.groups, count, found.group_names)
        return cls(
            names=tuple(found.names),
            labels=labels,
            groups=groups,
            classes=classes,
            group_names=group_names,
            _reader=found.reader,
            _places=np.arange(count) if found.places is None else np.array(found.places, np.int64),
            _sizes=np.array(found.sizes, np.int64),
        )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        known = "unlabelled" if self.labels is None else f"{len(self.classes)} classes"
        groups = "" if self.groups is None else f", {len(self.group_names)} groups"
        shrunk = "" if self._shorter is None else f", shrunk to {self._shorter}"
        return f"ImageSet({len(self)} images, {known}{groups}{shrunk}, {self.names[0]!r}...)"

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 of names, labels, groups and sizes; the same for a copy elsewhere, whatever its dates."""
        facts = [self.names, self.classes, self.group_names, self._shorter, self._reader.identity]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for codes in (self.labels, self.groups, self._sizes):
            digest.update(b"none" if codes is None else codes.astype("<i8").tobytes())
        return digest.hexdigest()

    def image(self, i: int) -> Image.Image:
        """Image `i` as 8-bit RGB; raises BadImage where it cannot be read or decoded."""
        image = self._reader.read(self.names[i], int(self._places[i]), int(self._sizes[i]))
        shorter = min(image.size)
        if self._shorter is None or shorter <= self._shorter:
            return image
        width, height = (round(side * self._shorter / shorter) for side in image.size)
        return image.resize((width, height), Image.Resampling.BICUBIC)  # Pillow widens the kernel: no aliasing

    def subset(self, index: Values | slice) -> ImageSet:
        """These images, by numbers, a mask (N,) or a slice, in this order; `classes` stay the same."""
        at = np.arange(len(self))[index if isinstance(index, slice) else _integers(index)]
        if at.ndim != 1 or not len(at):
            raise DataError(f"a subset needs a list of at least one image; got shape {at.shape}: choose some")
        return replace(
            self,
            names=tuple(self.names[i] for i in at.tolist()),
            labels=None if self.labels is None else self.labels[at],
            groups=None if self.groups is None else self.groups[at],
            _places=self._places[at],
            _sizes=self._sizes[at],
        )

    def part(self, low: float, high: float, seed: int) -> ImageSet:
        """The share from `low` to `high`, within [0, 1], of each class shuffled by `seed`; in the order of the set.

        Adjoining parts of one seed neither overlap nor leave an image out.
        """
        if not 0 <= low < high <= 1:
            raise DataError(f"a part reaches from low to high within 0..1; got {low} to {high}: try 0 to 0.9")
        labels = np.zeros(len(self), np.int64) if self.labels is None else self.labels
        by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
        chosen = []
        for label, rows in enumerate(by_class):
            # by name: a class is shuffled alike whatever its number and whichever other classes there are
            name = "" if self.labels is None else self.classes[label]
            rng = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogatepass"))])
            shuffled = rows[rng.permutation(len(rows))]
            chosen.append(shuffled[_cut(low, len(rows)) : _cut(high, len(rows))])
        at = np.sort(np.concatenate(chosen))
        if not len(at):
            raise DataError(f"a part needs at least one image; {low} to {high} of {self!r} has none: widen it")
        return self.subset(at)

    def relabelled(self, classes: Sequence[str]) -> ImageSet:
        """The same images with labels numbered by `classes`, matched by name; all classes here must be among them."""
        names = tuple(map(str, classes))
        return replace(self, labels=renumbered(self.labels, self.classes, names), classes=names)

    def without_labels(self) -> ImageSet:
        """The same images with neither labels nor classes; groups stay."""
        return replace(self, labels=None, classes=())

    def shrunk(self, pixels: int) -> ImageSet:
        """The same images, those whose shorter side exceeds `pixels` resized to it, bicubic and antialiased."""
        if pixels < 1:
            raise DataError(f"the shorter side keeps at least one pixel; got {pixels}: try 256")
        return replace(self, _shorter=min(pixels, self._shorter or pixels))


def _cut(fraction: float, count: int) -> int:
    # to 6 digits first: 0.1 + 0.2 and 0.3 must cut at the same place
    return int(round(fraction * count, 6) + 0.5)


def _integers(index: Values) -> NDArray[Any]:
    array = arrays.to_numpy(index)
    return array if array.size else array.astype(np.int64)  # [] is an array of floats
