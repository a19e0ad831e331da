"""Recipes: what a suite of images holds, before any image is looked at. As YAML (see `reading`):

    name: leaves
    summary: Leaves of the garden; autumn leaves are a shift, stones are out of distribution.
    size: 128
    sets:
      train:  {role: train, images: leaves/spring, part: [0, 0.8]}
      spring: {role: id, images: leaves/spring, part: [0.8, 1]}
      autumn: {role: shift, images: leaves/autumn}
      noise:  {role: shift, images: leaves/spring, part: [0.8, 1], corruption: all, severities: [1, 5]}
      stones: {role: ood, images: [stones, stones.tar], shrink: 64}

Places are relative to the root that is given when the suite is loaded; of several the first that is there counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.images import corruptions

ONCE = ("train", "id", "held-out", "disagreement")  # roles of one set at most
ROLES = (*ONCE, "shift", "ood", "groups")
UNLABELLED = ("ood", "disagreement")  # roles whose labels, if any, are not looked at
FOLDER_NAMES = ("train", "id", "val", "test", "held-out", "disagreement", "shift", "ood")  # what `folders` looks for
USES = {"held-out": "to calibrate on", "id": "to test on"}  # of the sets that `folders` can take from the training set


@dataclass(frozen=True)
class SetRecipe:
    """One set, or several that differ in corruption and severity.

    `{corruption}` and `{severity}` in a place are filled in; without them, corruptions are made on the fly.
    """

    name: str
    role: str
    images: tuple[str, ...] = ()  # where it may be
    of: str | None = None  # instead: the features of another set, in another role
    part: tuple[float, float] | None = None  # from and to, as shares of each class in random order
    base: str | None = None  # folder of the paths in a list or table
    image_column: str | None = None
    label_column: str | None = None
    group_columns: tuple[str, ...] = ()
    only: tuple[tuple[str, str], ...] = ()  # rows of a table to keep: column, value
    shrink: int | None = None  # to so many pixels, lest sharpness alone tell the set apart
    corruption: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()
    family: str = ""
    subset: str | None = None  # present, imagenet-a, imagenet-r, or a file of class names
    get: str = ""

    @property
    def stored(self) -> bool:
        """Whether corrupted images are on disk, a folder each, instead of being made."""
        return any("{corruption}" in place or "{severity}" in place for place in self.images)

    def variants(self) -> Iterator[SetRecipe]:
        """The set itself, or one with each of its corruptions and severities, named and filled in.

        `corruption` is left to those whose images are to be corrupted.
        """
        if not self.corruption:
            yield self
        for severity in self.severities:
            for corruption in self.corruption:
                yield replace(
                    self,
                    name=f"{self.name}-{corruption}-{severity}",
                    images=tuple(_filled(place, corruption, severity) for place in self.images),
                    family=_filled(self.family or f"{self.name}-{{severity}}", corruption, severity),
                    corruption=() if self.stored else (corruption,),
                    severities=() if self.stored else (severity,),
                )


@dataclass(frozen=True)
class Recipe:
    """A suite before its images are looked at."""

    name: str
    summary: str
    sets: tuple[SetRecipe, ...]
    get: str = ""
    backbone: str = "lite0"
    size: int | None = None
    crop: float | None = None
    layers: int = 1
    training: Mapping[str, Any] = field(default_factory=dict)  # what fit() takes, for this suite to be trained well
    note: str = ""  # reported when the suite is loaded


def from_folders(root: Path) -> Recipe:
    """Return the recipe of a folder: of class folders, or of folders named train, id, held-out, shift and so on.

    Each of the sets `id` and `held-out` that has no folder takes a fifth of each class of the training images.
    """
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is none: check the path")
    names = [name for name in FOLDER_NAMES if (root / name).exists()]
    place = "train" if names else "."
    tests = [name for name in ("id", "val", "test") if name in names]
    split = ["held-out"] * ("held-out" not in names) + ["id"] * (not tests)
    cuts = [round(1 - 0.2 * (len(split) - i), 1) for i in range(len(split) + 1)]
    parts = dict(zip(split, pairwise(cuts), strict=True))
    get = f"move the class folders into train/, or rename {names[0]}" if names else "add class folders"
    sets = [SetRecipe("train", "train", (place,), part=(0, cuts[0]) if split else None, get=get)]
    for role, own in (("id", tests[:1]), ("held-out", ["held-out"])):
        where = place if role in split else own[0]
        sets.append(SetRecipe(role, role, (where,), part=parts.get(role), get=f"add images, or a folder {role}/"))
    sets += [SetRecipe("disagreement", "disagreement", ("disagreement",))] * ("disagreement" in names)
    for role in ("shift", "ood"):
        places = sorted((root / role).iterdir()) if (root / role).is_dir() else []
        sets += [
            SetRecipe(path.name if path.is_dir() else path.stem, role, (f"{role}/{path.name}",))
            for path in places
            if not path.name.startswith(".")
        ]
    lacking = " and ".join(f"no {name}/" for name in split)
    uses = " and ".join(f"a fifth {'' if i else 'of each class '}{USES[name]}" for i, name in enumerate(split))
    note = f"there is {lacking}, so it sets aside {uses}" if split else ""
    recipe = Recipe("folders", "Your own images, by the names of their folders.", tuple(sets), note=note)
    check(recipe, str(root))
    return recipe


def check(recipe: Recipe, where: str) -> None:
    """Refuse a recipe that no folder could satisfy; `where` it stands is told."""
    _check_name(recipe.name, f"the suite of {where}")
    for s in recipe.sets:
        _check_name(s.name, f"a set of {where}")
        if s.role not in ROLES:
            raise UnknownNameError(f"role of set {s.name!r} of {where}", s.role, ROLES)
    for role in ONCE:
        found = [s.name for s in recipe.sets if s.role == role]
        if len(found) > 1 or (role in ("train", "id") and not found):
            rule = "exactly one" if role in ("train", "id") else "at most one"
            told = " and ".join(found) or "none"
            raise DissensusError(f"a suite has {rule} set of role {role}; {where} has {told}: correct `role`")
    for s in recipe.sets:
        mine = f"set {s.name!r} of {where}"
        if bool(s.images) == bool(s.of):
            got = "both" if s.of else "neither"
            raise DissensusError(f"a set has either `images` or `of`; {mine} has {got}: give one")
        _check_of(s, recipe, mine)
        _check_corruption(s, mine)
        if s.subset is not None and s.role not in ("id", "shift", "groups"):
            raise DissensusError(f"`subset` is for roles id, shift and groups; {mine} is {s.role}: leave it out")
    names = Counter(variant.name for s in recipe.sets for variant in s.variants())
    if twice := [name for name, count in names.items() if count > 1]:
        raise DissensusError(f"every set needs a name of its own; {where} has {twice[0]!r} twice: rename one")
    _check_leaks(recipe, where)


def _check_name(name: str, what: str) -> None:
    """Names become folders of features."""
    if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name:
        raise DissensusError(f"a name has no slash and no leading dot; {what} is called {name!r}: rename it")


def _check_of(s: SetRecipe, recipe: Recipe, mine: str) -> None:
    if s.of is None:
        return
    others = {other.name: other for other in recipe.sets if other is not s}
    if s.of not in others:
        raise UnknownNameError(f"set that {mine} is `of`", s.of, others)
    if others[s.of].of is not None or others[s.of].corruption:
        raise DissensusError(f"`of` names a single set with `images`; {mine} is of {s.of!r}: name another")
    own = ("name", "role", "of", "family", "get")
    if extra := [f.name for f in fields(s) if f.name not in own and getattr(s, f.name) != f.default]:
        raise DissensusError(f"a set `of` another shares its images; {mine} has `{extra[0]}` too: leave it out")


def _check_corruption(s: SetRecipe, mine: str) -> None:
    if s.severities and not s.corruption:
        raise DissensusError(f"`severities` are those of a `corruption`; {mine} has none: give both")
    for name in s.corruption:
        for severity in s.severities:
            try:
                corruptions.check(name, severity)
            except DissensusError as error:
                raise DissensusError(f"{mine}: {error}") from error
    if s.stored:
        needed = ["{corruption}"] + ["{severity}"] * (len(s.severities) > 1)
        if not s.corruption or any(mark not in place for place in s.images for mark in needed):
            raise DissensusError(
                f"images stored by `corruption` have {{corruption}} and {{severity}} in every place; {mine} has "
                f"{some(s.images)}: complete them"
            )


def _check_leaks(recipe: Recipe, where: str) -> None:
    """Refuse to judge on images that were trained on."""
    train = next(s for s in recipe.sets if s.role == "train")
    low, high = train.part or (0, 1)
    for s in recipe.sets:
        start, end = s.part or (0, 1)
        same = set(s.images) & set(train.images) and s.only == train.only
        if (
            s is not train
            and s.role not in UNLABELLED
            and (s.of == train.name or (same and start < high and low < end))
        ):
            raise DissensusError(
                f"no image of the training set is judged on; set {s.name!r} of {where} has some: give `part`s that do "
                "not overlap"
            )


def _filled(text: str, corruption: str, severity: int) -> str:
    return text.replace("{corruption}", corruption).replace("{severity}", str(severity))


def some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(map(str, names[:4])) + (", ..." if len(names) > 4 else "")
