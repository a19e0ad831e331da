"""Where the sets of a recipe are: what is there, what is missing, and the images of what is there."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from timm.data.imagenet_info import ImageNetInfo

from dissensus._core.errors import DataError, DissensusError
from dissensus.images import ImageSet
from dissensus.suites.gather import Source
from dissensus.suites.recipe import UNLABELLED, Recipe, SetRecipe, some

SUBSETS = {"imagenet-a": "imagenet_a_synsets.txt", "imagenet-r": "imagenet_r_synsets.txt"}


@dataclass(frozen=True)
class Found:
    """What there is of one set of a recipe: how many images, and what is to be said of it."""

    name: str
    role: str
    place: str
    state: Literal["there", "missing", "unusable"] = "there"
    text: str = ""  # what is wrong and what to do about it, or what of the set is left out
    images: int = 0
    classes: int = 0
    sets: int = 1


def check(recipe: Recipe, root: Path) -> list[Found]:
    """Look for every set of the recipe under the root; of stored corruptions only the first is listed."""
    return _look(recipe, root, seed=0, thorough=False)[1]


def sources(recipe: Recipe, root: Path, *, seed: int = 0) -> tuple[list[Source], list[Found]]:
    """The images of every set that is there, labelled as in training, and what was found.

    Refused: a set that is there and cannot be used, and to do without a training set or an id set.
    """
    made, found = _look(recipe, root, seed=seed, thorough=True)
    for f in found:
        if f.state == "missing" and f.role in ("train", "id"):
            raise DataError(f"suite {recipe.name} needs its {f.role} set, {f.place} under {root}; missing: {f.text}")
    for f in found:
        if f.state == "unusable":
            raise DataError(f"set {f.name!r} of suite {recipe.name} cannot be used: {f.text}")
    return made, found


class _MissingError(Exception):
    """A set that counts as not being there; says why."""


def _look(recipe: Recipe, root: Path, *, seed: int, thorough: bool) -> tuple[list[Source], list[Found]]:
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is none: check the path")
    shelf = _Shelf(root, seed)
    train = next(s for s in recipe.sets if s.role == "train")
    made: dict[str, list[Source]] = {}
    found: dict[str, Found] = {}
    # the training set first, for its classes; what is `of` another set last
    for s in sorted(recipe.sets, key=lambda s: (s is not train, s.of is not None)):
        if s.of is None:
            made[s.name], found[s.name] = _look_at(s, recipe, shelf, thorough)
            continue
        found[s.name] = replace(found[s.of], name=s.name, role=s.role)
        made[s.name] = [replace(origin, name=s.name, role=s.role, family=s.family, of=s.of) for origin in made[s.of]]
        if made[s.name] and s.role not in UNLABELLED and made[s.name][0].images.labels is None:
            found[s.name] = replace(found[s.name], state="unusable", text=_no_labels(s.role, s.of))
    return [source for s in recipe.sets for source in made[s.name]], [found[s.name] for s in recipe.sets]


def _look_at(s: SetRecipe, recipe: Recipe, shelf: _Shelf, thorough: bool) -> tuple[list[Source], Found]:
    get = s.get or recipe.get or "put it there"
    wanted = list(s.variants())
    there = [(variant, place) for variant in wanted if (place := _place(variant, shelf.root)) is not None]
    nothing = Found(s.name, s.role, " or ".join(s.images), "missing", get)
    if not there:
        return [], nothing
    try:
        made = [shelf.source(variant, place) for variant, place in (there if thorough else there[:1])]
    except _MissingError as error:
        return [], replace(nothing, text=f"{error}: {get}")
    except DataError as error:
        return [], replace(nothing, state="unusable", text=str(error))
    gone = [variant.name for variant in wanted if variant not in [each for each, _ in there]]
    notes = [f"{len(gone)} of {len(wanted)} missing, such as {gone[0]}: {get}"] if gone else []
    notes += [shelf.notes[variant.name] for variant, _ in there if variant.name in shelf.notes][:1]
    images, place = made[0].images, there[0][1]
    return made, Found(
        s.name,
        s.role,
        str(place.relative_to(shelf.root) if not s.stored and place.is_relative_to(shelf.root) else s.images[0]),
        text="; ".join(notes),
        images=len(images),
        classes=0 if images.labels is None else len(np.unique(images.labels)),
        sets=len(there),
    )


@dataclass
class _Shelf:
    """Images under a root, each place listed once, however many sets are parts or corruptions of it."""

    root: Path
    seed: int
    classes: tuple[str, ...] = ()  # of the training set, once that was looked at
    notes: dict[str, str] = field(default_factory=dict)
    _listed: dict[Any, ImageSet] = field(default_factory=dict)

    def source(self, s: SetRecipe, place: Path) -> Source:
        """The images of a set, labelled as in training; DataError where that cannot be."""
        images, subset = self._images(s, place), None
        if s.role not in UNLABELLED:
            if images.labels is None:
                raise DataError(_no_labels(s.role, str(place)))
            if s.role == "train":
                self._train(images, place)
            elif self.classes:
                images, subset = self._restricted(s, images, place)
            images = images.relabelled(self.classes or images.classes)
        made = (s.corruption[0], s.severities[0]) if s.corruption else None
        seeded = s.part is not None or made is not None
        return Source(s.name, s.role, images, family=s.family, subset=subset, corruption=made, seeded=seeded)

    def _images(self, s: SetRecipe, place: Path) -> ImageSet:
        listed = place.is_file() and place.suffix.lower() != ".tar"
        base = self.root / s.base if s.base is not None and listed else None
        if base is not None and not base.is_dir():
            raise _MissingError(f"{place} lists images of {base}, which is no folder")
        unlabelled = s.role in UNLABELLED
        key = (place, unlabelled, base, s.image_column, s.label_column, s.group_columns, s.only)
        if key not in self._listed:
            images = ImageSet.find(
                place,
                unlabelled=unlabelled,
                base=base,
                image_column=s.image_column,
                label_column=s.label_column,
                group_columns=s.group_columns,
                only=dict(s.only) or None,
            )
            folder = (base or place.parent).absolute()
            if listed and not any((folder / name).exists() for name in images.names):
                raise _MissingError(f"of the {len(images):,} images that {place} lists none is in {folder}")
            self._listed[key] = images
        images = self._listed[key]
        if s.part is not None:
            try:
                images = images.part(*s.part, self.seed)
            except DataError as error:
                low, high = (f"{share:.0%}" for share in s.part)
                raise _MissingError(f"{place} has too few images per class to take {low} to {high} of them") from error
        return images if s.shrink is None else images.shrunk(s.shrink)

    def _train(self, images: ImageSet, place: Path) -> None:
        if len(images.classes) < 2:
            raise DataError(
                f"training needs at least two classes; {place} has {some(images.classes)}: add a folder for another, "
                "or name the folder that holds the class folders"
            )
        self.classes = images.classes

    def _restricted(self, s: SetRecipe, images: ImageSet, place: Path) -> tuple[ImageSet, tuple[int, ...] | None]:
        """The images of classes that are trained on, and the numbers of the set's classes if they are a part."""
        assert images.labels is not None
        if s.subset is None or s.subset == "present":
            self._check_classes(s, images, place)
            present = [images.classes[i] for i in np.unique(images.labels)]
            return images, None if s.subset is None else self._numbers(present, place)
        names = self._subset_names(s)
        if strange := sorted(set(images.classes) - set(names)):
            raise DataError(f"subset {s.subset} lists the classes of a set; {place} has {some(strange)} besides")
        trained = set(self.classes)
        kept = np.array([name in trained for name in images.classes])[images.labels]
        common = [name for name in names if name in trained]
        if not kept.any() or len(common) < 2:
            raise _MissingError(f"{place} has fewer than two classes that are trained on")
        if not kept.all():
            self.notes[s.name] = (
                f"{len(names) - len(common)} of its {len(names)} classes are not trained on: "
                f"{int((~kept).sum()):,} images left out"
            )
        return images.subset(kept), self._numbers(common, place)

    def _numbers(self, names: Sequence[str], place: Path) -> tuple[int, ...]:
        if len(names) < 2:
            raise DataError(f"a subset has two or more of the classes; {place} has {some(names) or 'none'}: add others")
        number = {name: i for i, name in enumerate(self.classes)}
        return tuple(sorted(number[name] for name in names))

    def _check_classes(self, s: SetRecipe, images: ImageSet, place: Path) -> None:
        if strange := sorted(set(images.classes) - set(self.classes)):
            raise DataError(
                f"classes must be those of the training set, {some(self.classes)}; {place} has {some(strange)} "
                "besides: rename or remove them"
            )
        absent = sorted(set(self.classes) - set(images.classes))
        if absent and s.subset is None:
            raise DataError(
                f"classes must be those of the training set; {place} lacks {some(absent)}: add them, or say "
                "`subset: present` in a YAML of your own"
            )

    def _subset_names(self, s: SetRecipe) -> list[str]:
        assert s.subset is not None
        if s.subset in SUBSETS:
            return subset_names(s.subset)
        try:
            lines = (self.root / s.subset).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            known = ", ".join(["present", *SUBSETS])
            raise DataError(
                f"subset must be {known}, or a file of class names under {self.root}; got {s.subset!r}: correct it"
            ) from error
        return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def _place(s: SetRecipe, root: Path) -> Path | None:
    """The first of the set's places that is there; a * stands for any name."""
    for place in s.images:
        if (root / place).exists():
            return root / place
        pattern = place.lstrip("/") if Path(place).is_absolute() else place
        found = sorted((Path("/") if Path(place).is_absolute() else root).glob(pattern)) if "*" in place else []
        if found:
            return found[0]
    return None


def subset_names(name: str) -> list[str]:
    """The 200 wnids of ImageNet-A or -R."""
    data = pkgutil.get_data(ImageNetInfo.__module__, f"_info/{SUBSETS[name]}")
    assert data is not None  # it comes with timm
    return data.decode().split()


def _no_labels(role: str, what: str) -> str:
    return f"sets of role {role} need labels, such as class folders; {what} has none: sort its images into folders"
