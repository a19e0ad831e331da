"""The images of one set of a recipe, labelled by the classes of the training set."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from timm.data.imagenet_info import ImageNetInfo

from dissensus._core.errors import DataError
from dissensus.images import ImageSet
from dissensus.suites._recipe import UNLABELLED, SetRecipe, some

SUBSETS = {"imagenet-a": "imagenet_a_synsets.txt", "imagenet-r": "imagenet_r_synsets.txt"}


@dataclass(frozen=True)
class Source:
    """The images of one set of a suite, labelled as in training."""

    name: str
    role: str
    images: ImageSet
    family: str = ""
    subset: tuple[int, ...] | None = None  # numbers of the classes that the set has, where these are only a part
    corruption: tuple[str, int] | None = None  # name and severity, to be applied
    of: str | None = None  # the set whose features it shares; its images are then not read
    seeded: bool = False  # whether its images, or what is done to them, depend on the seed


class MissingError(Exception):
    """A set that counts as missing; the message says why."""


@dataclass
class Finder:
    """Images under a root; each place is listed once, however many sets are parts or corruptions of it."""

    root: Path
    seed: int
    classes: tuple[str, ...] = ()  # of the training set, once that was found
    notes: dict[str, str] = field(default_factory=dict)
    _listed: dict[Any, ImageSet] = field(default_factory=dict)

    def source(self, s: SetRecipe, place: Path) -> Source:
        """Return the images of a set, labelled as in training; raise DataError if they cannot be."""
        images, subset = self._images(s, place), None
        if s.role not in UNLABELLED:
            if images.labels is None:
                raise DataError(no_labels(s.role, str(place)))
            if s.role == "train":
                self._train(images, place)
            elif self.classes:
                images, subset = self._restricted(s, images, place)
            images = images.relabelled(self.classes or images.classes)
        corruption = (s.corruption[0], s.severities[0]) if s.corruption else None
        seeded = s.part is not None or corruption is not None
        return Source(s.name, s.role, images, s.family, subset, corruption, seeded=seeded)

    def _images(self, s: SetRecipe, place: Path) -> ImageSet:
        is_list = place.is_file() and place.suffix.lower() != ".tar"
        base = self.root / s.base if s.base is not None and is_list else None
        if base is not None and not base.is_dir():
            raise MissingError(f"{place} lists images of {base}, which is not a folder")
        options: dict[str, Any] = {
            "unlabelled": s.role in UNLABELLED,
            "base": base,
            "image_column": s.image_column,
            "label_column": s.label_column,
            "group_columns": s.group_columns,
            "only": s.only or None,
        }
        key = (place, str(options))
        if key not in self._listed:
            images = ImageSet.find(place, **options)
            folder = (base or place.parent).absolute()
            if is_list and not any((folder / name).exists() for name in images.names):
                raise MissingError(f"none of the {len(images):,} images that {place} lists is in {folder}")
            self._listed[key] = images
        images = self._listed[key]
        if s.part is not None:
            try:
                images = images.part(*s.part, self.seed)
            except DataError as error:
                low, high = (f"{share:.0%}" for share in s.part)
                raise MissingError(f"{place} has too few images per class to take {low} to {high} of them") from error
        return images if s.shrink is None else images.shrunk(s.shrink)

    def _train(self, images: ImageSet, place: Path) -> None:
        if len(images.classes) < 2:
            raise DataError(
                f"training needs at least two classes; {place} has {some(images.classes)}: add a folder for another, "
                "or name the folder that holds the class folders"
            )
        self.classes = images.classes

    def _restricted(self, s: SetRecipe, images: ImageSet, place: Path) -> tuple[ImageSet, tuple[int, ...] | None]:
        """The images of classes in the training set, and the numbers of the set's classes if they are a part."""
        assert images.labels is not None
        if s.subset is None or s.subset == "present":
            self._check_classes(s, images, place)
            present = [images.classes[i] for i in np.unique(images.labels)]
            return images, None if s.subset is None else self._numbers(present, place)
        names = subset_names(s.subset, self.root)
        if unexpected := sorted(set(images.classes) - set(names)):
            raise DataError(
                f"a set has only classes of its subset, {s.subset}; {place} has also {some(unexpected)}: remove them"
            )
        trained = set(self.classes)
        kept = np.array([name in trained for name in images.classes])[images.labels]
        common = [name for name in names if name in trained]
        if not kept.any() or len(common) < 2:
            raise MissingError(f"{place} has fewer than two classes of the training set")
        if not kept.all():
            self.notes[s.name] = (
                f"{len(names) - len(common)} of its {len(names)} classes are not in the training set: "
                f"{int((~kept).sum()):,} images left out"
            )
        return images.subset(kept), self._numbers(common, place)

    def _numbers(self, names: Sequence[str], place: Path) -> tuple[int, ...]:
        if len(names) < 2:
            raise DataError(f"a subset has two or more classes; {place} has {some(names) or 'none'}: add others")
        number = {name: i for i, name in enumerate(self.classes)}
        return tuple(sorted(number[name] for name in names))

    def _check_classes(self, s: SetRecipe, images: ImageSet, place: Path) -> None:
        if unexpected := sorted(set(images.classes) - set(self.classes)):
            raise DataError(
                f"classes must be those of the training set, {some(self.classes)}; {place} has also "
                f"{some(unexpected)}: rename or remove them"
            )
        absent = sorted(set(self.classes) - set(images.classes))
        if absent and s.subset is None:
            raise DataError(
                f"classes must be those of the training set; {place} lacks {some(absent)}: add them, or write "
                "`subset: present` in a YAML file of your own"
            )


def subset_names(subset: str, root: Path) -> list[str]:
    """The classes of a subset: of a published list, or one per line of a file."""
    if subset in SUBSETS:
        data = pkgutil.get_data(ImageNetInfo.__module__, f"_info/{SUBSETS[subset]}")
        assert data is not None  # comes with timm
        return data.decode().split()
    try:
        lines = (root / subset).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(["present", *SUBSETS])
        raise DataError(
            f"subset must be {known}, or a file of class names under {root}; got {subset!r}: correct it"
        ) from error
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def no_labels(role: str, what: str) -> str:
    """The message about a set that needs labels and has none."""
    return f"sets of role {role} need labels, such as class folders; {what} has none: sort its images into folders"
