"""Find the sets of a recipe under a root: what is there, what is missing, and the images of what is there."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from timm.data.imagenet_info import ImageNetInfo

from dissensus._core.errors import DataError, DissensusError, some
from dissensus.images import ImageSet
from dissensus.suites._recipe import UNLABELLED, Recipe, SetRecipe

REQUIRED = ("train", "id")  # roles without which a suite cannot be used
ANY = "any"  # the subset of a set that may lack classes, but whose logits are not restricted to those it has
SUBSETS = {"imagenet-a": "imagenet_a_synsets.txt", "imagenet-r": "imagenet_r_synsets.txt"}
NO_LABELS = "sets of role {} need labels, such as class folders; {} has none: sort its images into folders"


@dataclass(frozen=True)
class Source:
    """The images of one set of a suite, labelled as in training."""

    name: str
    role: str
    images: ImageSet
    family: str = ""
    subset: tuple[int, ...] | None = None  # indices of the classes that the set has, if it has only a part
    corruption: tuple[str, int] | None = None  # name and severity, to be applied
    of: str | None = None  # the set whose features it shares; its images are then not read
    seeded: bool = False  # whether its images, or what is done to them, depend on the seed
    inside: bool = False  # counts as in distribution in the full spectrum


@dataclass(frozen=True)
class Status:
    """What was found of one set of a recipe."""

    name: str
    role: str
    place: str
    state: Literal["found", "missing", "unusable"] = "found"
    text: str = ""  # what is wrong or left out, and what to do about it
    images: int = 0  # of the first set if there are several; that are there, if some are missing
    listed: int = 0  # images of a list or table
    classes: int = 0
    sets: int = 1  # one per corruption and severity


class Checked(NamedTuple):
    """What was found of a suite."""

    name: str
    summary: str
    note: str
    statuses: list[Status]


class MissingError(Exception):
    """A set that counts as missing; the message says why. None of the `listed` images of a list is there."""

    def __init__(self, message: str, listed: int = 0) -> None:
        super().__init__(message)
        self.listed = listed


class IncompleteError(DataError):
    """A list or table of which `there` images are there, not all that are `listed`."""

    def __init__(self, message: str, there: int, listed: int) -> None:
        super().__init__(message)
        self.there, self.listed = there, listed


def check(recipe: Recipe, root: Path) -> list[Status]:
    """Look for every set of a recipe; of stored corruptions only the first is listed."""
    return _look(recipe, root, seed=0, thorough=False)[1]


def locate(recipe: Recipe, root: Path, *, seed: int = 0) -> tuple[list[Source], list[Status]]:
    """Return the images of every set that is there, labelled as in training, and the status of every set.

    Raises:
        DataError: If a set is there but unusable, or the training set or the id set is missing.
    """
    sources, statuses = _look(recipe, root, seed=seed, thorough=True)
    for status in statuses:
        if status.state == "missing" and status.role in REQUIRED:
            places = " or ".join(str(root / place) for place in recipe.sets[status.name].images or (status.place,))
            raise DataError(f"suite {recipe.name} needs its {status.role} set, {places}; missing: {status.text}")
    for status in statuses:
        if status.state == "unusable":
            raise DataError(f"set {status.name!r} of suite {recipe.name} cannot be used: {status.text}")
    return sources, statuses


def _look(recipe: Recipe, root: Path, *, seed: int, thorough: bool) -> tuple[list[Source], list[Status]]:
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is not: check the path")
    finder = Finder(root, seed)
    sources: dict[str, list[Source]] = {}
    statuses: dict[str, Status] = {}
    # the training set first, for its classes; sets `of` another last
    for s in sorted(recipe.sets.values(), key=lambda s: (s.role != "train", s.of is not None)):
        if s.of is None:
            sources[s.name], statuses[s.name] = _look_for(s, s.get or recipe.get or "put it there", finder, thorough)
            continue
        statuses[s.name] = replace(statuses[s.of], name=s.name, role=s.role)
        sources[s.name] = [
            replace(source, name=s.name, role=s.role, family=s.family, of=s.of, inside=s.inside)
            for source in sources[s.of]
        ]
        if s.role not in UNLABELLED and any(source.images.labels is None for source in sources[s.name]):
            statuses[s.name] = replace(statuses[s.name], state="unusable", text=NO_LABELS.format(s.role, s.of))
    return [source for name in recipe.sets for source in sources[name]], [statuses[name] for name in recipe.sets]


def _look_for(s: SetRecipe, get: str, finder: Finder, thorough: bool) -> tuple[list[Source], Status]:
    variants = {variant.name: variant for variant in s.variants()}
    places = {name: place for name, variant in variants.items() if (place := _place(variant, finder.root)) is not None}
    missing = Status(s.name, s.role, " or ".join(s.images), "missing", get)
    if not places:
        return [], missing
    present = list(places) if thorough else list(places)[:1]
    try:
        sources = [finder.source(variants[name], places[name]) for name in present]
    except MissingError as error:
        return [], replace(missing, text=f"{error}: {get}", listed=error.listed)
    except IncompleteError as error:
        return [], replace(missing, state="unusable", text=str(error), images=error.there, listed=error.listed)
    except DataError as error:
        return [], replace(missing, state="unusable", text=str(error))
    absent = [name for name in variants if name not in places]
    notes = [f"{len(absent)} of {len(variants)} missing, such as {absent[0]}: {get}"] if absent else []
    notes += [finder.notes[name] for name in places if name in finder.notes][:1]
    images, place = sources[0].images, places[present[0]]
    return sources, Status(
        s.name,
        s.role,
        str(place.relative_to(finder.root) if not s.stored and place.is_relative_to(finder.root) else s.images[0]),
        text="; ".join(notes),
        images=len(images),
        classes=0 if images.labels is None else len(np.unique(images.labels)),
        sets=len(places),
    )


def _place(s: SetRecipe, root: Path) -> Path | None:
    """Return the first path of a set that exists; `*` stands for any name."""
    for place in s.images:
        if (root / place).exists():
            return root / place
        if "*" in place:
            start, pattern = (Path("/"), place.lstrip("/")) if Path(place).is_absolute() else (root, place)
            if matches := sorted(start.glob(pattern)):
                return matches[0]
    return None


@dataclass
class Finder:
    """Images under a root; each place is listed once, however many sets are parts or corruptions of it."""

    root: Path
    seed: int
    classes: tuple[str, ...] = ()  # of the training set, once that was found
    notes: dict[str, str] = field(default_factory=dict)
    _listed: dict[Any, ImageSet] = field(default_factory=dict)

    def source(self, s: SetRecipe, place: Path) -> Source:
        """Return the images of a set, labelled as in training; raise if they cannot be."""
        images, subset = self._images(s, place), None
        if s.role not in UNLABELLED:
            if images.labels is None:
                raise DataError(NO_LABELS.format(s.role, place))
            if s.role == "train":
                if len(images.classes) < 2:
                    raise DataError(
                        f"training needs at least two classes; {place} has {some(images.classes)}: "
                        "add a folder for another, or name the folder that holds the class folders"
                    )
                self.classes = images.classes
            elif self.classes:
                images, subset = self._restricted(s, images, place)
            images = images.relabelled(self.classes or images.classes)
        corruption = (s.corruption[0], s.severities[0]) if s.corruption else None
        seeded = s.part is not None or corruption is not None
        return Source(s.name, s.role, images, s.family, subset, corruption, seeded=seeded, inside=s.inside)

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
            if is_list:
                _check_files(images, place, (base or place.parent).absolute())
            self._listed[key] = images
        images = self._listed[key]
        if s.part is not None:
            try:
                images = images.part(*s.part, self.seed)
            except DataError as error:
                low, high = (f"{share:.0%}" for share in s.part)
                raise MissingError(f"{place} has too few images per class to take {low} to {high} of them") from error
        return images if s.shrink is None else images.shrunk(s.shrink)

    def _restricted(self, s: SetRecipe, images: ImageSet, place: Path) -> tuple[ImageSet, tuple[int, ...] | None]:
        """Return the images of classes in the training set, and the indices of the set's classes if they are a part."""
        assert images.labels is not None
        if s.subset in (None, ANY, "present"):
            self._check_classes(s, images, place)
            present = [images.classes[i] for i in np.unique(images.labels)]
            return images, self._indices(present, place) if s.subset == "present" else None
        names = subset_names(s.subset, self.root)
        if unexpected := sorted(set(images.classes) - set(names)):
            raise DataError(
                f"a set has only classes of its subset, {s.subset}; {place} has also {some(unexpected)}: remove them"
            )
        kept = np.isin(images.classes, self.classes)[images.labels]
        common = sorted(set(names) & set(self.classes))
        if not kept.any() or len(common) < 2:
            raise MissingError(f"{place} has fewer than two classes of the training set")
        if not kept.all():
            self.notes[s.name] = (
                f"{len(names) - len(common)} of its {len(names)} classes are not in the training set: "
                f"{int((~kept).sum()):,} images left out"
            )
        return images.subset(kept), self._indices(common, place)

    def _indices(self, names: Sequence[str], place: Path) -> tuple[int, ...]:
        if len(names) < 2:
            raise DataError(f"a subset has two or more classes; {place} has {some(names) or 'none'}: add others")
        return tuple(sorted(map(self.classes.index, names)))

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


def _check_files(images: ImageSet, place: Path, folder: Path) -> None:
    """Raise if images that a list or table names are not there."""
    missing = images.missing()
    if not len(missing):
        return
    if len(missing) == len(images):
        raise MissingError(f"none of the {len(images):,} images that {place} lists is in {folder}", len(images))
    raise IncompleteError(
        f"the images that {place} lists must be in {folder}; {len(missing):,} of {len(images):,} are missing, the "
        f"first is {images.names[int(missing[0])]}: add them, or take their lines out of the list",
        len(images) - len(missing),
        len(images),
    )


def subset_names(subset: str, root: Path) -> list[str]:
    """Return the classes of a subset: of a published list, or one per line of a file."""
    if subset in SUBSETS:
        data = pkgutil.get_data(ImageNetInfo.__module__, f"_info/{SUBSETS[subset]}")
        assert data is not None  # comes with timm
        return data.decode().split()
    try:
        lines = (root / subset).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(["present", ANY, *SUBSETS])
        raise DataError(
            f"subset must be {known}, or a file of class names under {root}; got {subset!r}: correct it"
        ) from error
    return list(dict.fromkeys(line.split()[0] for line in lines if line.strip()))
