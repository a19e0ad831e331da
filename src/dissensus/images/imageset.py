"""ImageSet: images by index, with labels and groups, however they are stored."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dissensus._core.errors import DataError, some
from dissensus._core.places import is_url
from dissensus.functional import arrays
from dissensus.functional.arrays import Values
from dissensus.images._datasets import list_arrays, list_dataset
from dissensus.images._files import PathLike, join, several
from dissensus.images._listing import Files, Joined, Listing, Reader
from dissensus.images._lists import Columns
from dissensus.images._paths import list_path
from dissensus.images._tars import list_tars
from dissensus.images.decoding import shrink
from dissensus.images.names import Names

Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """N images with labels (N,), if known, and groups (N,), if any; both int64.

    `names` identify the images in messages: paths under the folder given, or members of a tar. They are a sequence of
    strings in one buffer: `list(images.names)` is a list of them.
    """

    names: Names
    labels: Codes | None
    groups: Codes | None
    classes: tuple[str, ...]
    group_names: tuple[str, ...]
    _reader: Reader = field(kw_only=True)
    _places: Codes = field(kw_only=True)  # where the reader finds each image
    _sizes: Codes = field(kw_only=True)  # in bytes; -1 if unknown
    _shorter: int | None = field(kw_only=True, default=None)  # what `shrunk` reduces the shorter side to

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
        """List the images in a folder, a list (.txt), a table (.csv, .tsv, .parquet), a tar or a folder of tars.

        - A folder: the images of its class folders, or of a flat folder, which is unlabelled.
        - A list: one image per line, its path and, after a tab, its label; before a number a space will do.
          Blank lines and lines that start with # are skipped.
        - A table: a header, a column of paths and, if there is one, of labels. Tabs separate a .tsv.
        - A tar: see `from_tar`.

        Args:
            where: The path, or an fsspec URL such as s3://bucket/photos. Paths in a list or table may be URLs, too.
            unlabelled: Ignore labels, and take all images below a folder.
            classes: The classes in the order that numbers the labels; by default sorted by name.
            base: Folder that the paths in a list or table start from, by default that of the file.
            image_column: Column of a table with the paths, by default one of the usual names, such as "image".
            label_column: Column of a table with the labels, by default one of the usual names, such as "label".
            group_columns: Columns of a table whose combinations are the groups, such as "y=0 place=1".
            only: Keep the rows of a table with these values, such as `{"split": 0}`. Classes and groups are
                those of the whole table.

        Raises:
            DataError: If there are no images, or their labels are incomplete or not among `classes`.
        """
        columns = Columns(image_column, label_column, tuple(group_columns), only)
        images = cls._of(list_path(where, unlabelled, base, columns))
        images = images.without_labels() if unlabelled else images
        return images if classes is None else images.relabelled(classes)

    @classmethod
    def from_tar(cls, paths: PathLike | Sequence[PathLike], *, unlabelled: bool = False) -> ImageSet:
        """List the images of plain tars: class folders, or samples `key.jpg` with `key.cls` or `key.json`.

        The classes are the folders where the tree first branches; a JSON label is under "label" or "cls".
        """
        return cls._of(list_tars(several(paths), unlabelled))

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
        """Use images in memory, uint8 (N, H, W) or (N, H, W, 3), shared, not copied; named by index by default."""
        columns = {"labels": labels, "classes": classes, "groups": groups, "group_names": group_names}
        return cls._of(list_arrays(images, names, **columns))

    @classmethod
    def from_dataset(
        cls, dataset: Any, *, classes: Sequence[str] | None = None, image: str = "image", label: str = "label"
    ) -> ImageSet:
        """Use a map-style data set with items (image, label), as in torchvision, or dicts, as of Hugging Face.

        Labels come from `targets`, `labels` or the column; if there is none, every item is read once.
        """
        return cls._of(list_dataset(dataset, classes, image, label))

    @classmethod
    def joined(cls, sets: Mapping[str, ImageSet]) -> ImageSet:
        """Join sets by name, without a slash: an image's name begins with that of its set, which is also its group.

        Labels are matched by class name, and left out unless all sets have labels. Groups of the sets are left out.
        """
        if len({images._shorter for images in sets.values()}) != 1 or any("/" in name for name in sets):
            raise DataError(f"sets are joined by names without a slash, shrunk alike or not at all; got {list(sets)}")
        known = all(images.labels is not None for images in sets.values())
        classes = sorted({name for images in sets.values() for name in images.classes}) if known else []
        parts = [images.relabelled(classes) if known else images.without_labels() for images in sets.values()]
        return cls(
            names=Names.joined((f"{name}/", images.names) for name, images in sets.items()),
            labels=np.concatenate([part.labels for part in parts if part.labels is not None]) if known else None,
            groups=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
            classes=tuple(classes),
            group_names=tuple(sets),
            _reader=Joined({name: images._reader for name, images in sets.items()}),
            _places=np.concatenate([part._places for part in parts]),
            _sizes=np.concatenate([part._sizes for part in parts]),
            _shorter=parts[0]._shorter,
        )

    @classmethod
    def _of(cls, listing: Listing) -> ImageSet:
        count = len(listing.names)
        if not count:
            raise DataError("a set needs at least one image; got none: check its source")
        labels, classes = arrays.encode("labels", listing.labels, count, listing.classes)
        groups, group_names = arrays.encode("groups", listing.groups, count, listing.group_names)
        return cls(
            names=Names.of(listing.names),
            labels=labels,
            groups=groups,
            classes=classes,
            group_names=group_names,
            _reader=listing.reader,
            _places=np.arange(count) if listing.places is None else listing.places,
            _sizes=listing.sizes,
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
        digest = hashlib.sha256(b"[[")
        for i, names in enumerate(self.names.chunks()):  # as one JSON document, never whole in memory
            digest.update((", " * (i > 0) + json.dumps(names)[1:-1]).encode())
        facts = [self.classes, self.group_names, self._shorter, self._reader.identity]
        digest.update(f"], {json.dumps(facts)[1:]}".encode())
        for codes in (self.labels, self.groups, self._sizes):
            digest.update(b"none" if codes is None else codes.astype("<i8", copy=False).data)
        return digest.hexdigest()

    def image(self, i: int) -> Image.Image:
        """Return image `i` as 8-bit RGB; raise BadImage if it cannot be read or decoded."""
        return self.load(i)[0]

    def load(self, i: int) -> tuple[Image.Image, str]:
        """Return image `i` as `image` does, and its digest, by which equal files are found.

        The digest is the first 32 hex digits of the sha256 of the encoded file; of mode, size and pixels for an image
        in memory.
        """
        image, digest = self._reader.load(self.names[i], int(self._places[i]), int(self._sizes[i]))
        return shrink(image, self._shorter), digest

    def missing(self) -> Codes:
        """Return the indices of images whose local file is not there; none for images elsewhere, as at URLs."""
        if not isinstance(self._reader, Files):
            return np.zeros(0, np.int64)
        unknown = np.flatnonzero(self._sizes < 0)
        return np.array([i for i in unknown.tolist() if not is_url(str(self.path(i)))], np.int64)

    def path(self, i: int) -> str | None:
        """Return the absolute path or URL of image `i`; None if it is not a file of its own, as in a tar."""
        return join(self._reader.root, self.names[i]) if isinstance(self._reader, Files) else None

    def subset(self, index: Values | slice) -> ImageSet:
        """Return some images, by indices, a mask (N,) or a slice, in this order; `classes` stay the same."""
        at = np.arange(len(self))[index if isinstance(index, slice) else _integers(index)]
        if at.ndim != 1 or not len(at):
            raise DataError(f"a subset needs a list of at least one image; got shape {at.shape}: choose some")
        return replace(
            self,
            names=self.names.take(at),
            labels=None if self.labels is None else self.labels[at],
            groups=None if self.groups is None else self.groups[at],
            _places=self._places[at],
            _sizes=self._sizes[at],
        )

    def part(self, low: float, high: float, seed: int) -> ImageSet:
        """Return the share from `low` to `high`, in [0, 1], of each class shuffled by `seed`, in the order of the set.

        Adjoining parts of one seed neither overlap nor leave an image out.
        """
        if not 0 <= low < high <= 1:
            raise DataError(f"a part reaches from low to high within 0..1; got {low} to {high}: try 0 to 0.9")
        labels = np.zeros(len(self), np.int64) if self.labels is None else self.labels
        by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
        chosen = []
        for label, rows in enumerate(by_class):
            # by name: the shuffle of a class does not depend on its index or on the other classes
            name = "" if self.labels is None else self.classes[label]
            rng = np.random.default_rng([seed, zlib.crc32(name.encode("utf-8", "surrogatepass"))])
            shuffled = rows[rng.permutation(len(rows))]
            chosen.append(shuffled[_cut(low, len(rows)) : _cut(high, len(rows))])
        at = np.sort(np.concatenate(chosen))
        if not len(at):
            raise DataError(f"a part needs at least one image; {low} to {high} of {self!r} has none: widen it")
        return self.subset(at)

    def relabelled(self, classes: Sequence[str]) -> ImageSet:
        """Return the same images with labels numbered by `classes`; all classes that occur must be among them."""
        names = tuple(map(str, classes))
        index = {name: i for i, name in enumerate(names)}
        if len(index) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"classes have different names; {twice!r} comes twice: rename one")
        if self.labels is None:
            return replace(self, classes=names)
        missing = [repr(self.classes[i]) for i in np.unique(self.labels).tolist() if self.classes[i] not in index]
        if missing:
            raise DataError(
                f"every class must be one of the {len(names)} given; {len(missing)} are not: {some(missing, 5)}: "
                "rename or remove them, or take the images as unlabelled"
            )
        codes = np.array([index.get(name, -1) for name in self.classes], np.int64)
        return replace(self, labels=codes[self.labels], classes=names)

    def without_labels(self) -> ImageSet:
        """Return the same images with neither labels nor classes; groups stay."""
        return replace(self, labels=None, classes=())

    def shrunk(self, pixels: int) -> ImageSet:
        """Return the same images, resized so that the shorter side is at most `pixels` (bicubic, antialiased)."""
        if pixels < 1:
            raise DataError(f"the shorter side keeps at least one pixel; got {pixels}: try 256")
        return replace(self, _shorter=min(pixels, self._shorter or pixels))


def _cut(fraction: float, count: int) -> int:
    # to 6 digits first: 0.1 + 0.2 and 0.3 must give the same index
    return int(round(fraction * count, 6) + 0.5)


def _integers(index: Values) -> NDArray[Any]:
    array = arrays.to_numpy(index)
    return array if array.size else array.astype(np.int64)  # [] is an array of floats
