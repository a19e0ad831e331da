"""Recipes: a suite of images as a small YAML that names sets, roles and where they are.

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

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dissensus import corruptions
from dissensus.errors import DissensusError, UnknownNameError

ROLES = ("train", "held-out", "id", "shift", "ood", "groups", "disagreement")


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
    unlabelled: bool = False
    base: str | None = None  # folder of the paths in a list or table
    image_column: str | None = None
    label_column: str | None = None
    group_columns: tuple[str, ...] = ()
    only: Mapping[str, str] = field(default_factory=dict)  # rows of a table to keep
    shrink: int | None = None  # to so many pixels, lest sharpness alone tell the set apart
    corruption: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 5)
    family: str = ""
    subset: str | None = None  # present, imagenet-a, imagenet-r, or a file of class names
    get: str = ""

    @property
    def stored(self) -> bool:
        """Whether corrupted images are on disk, a folder each, instead of being made."""
        return any("{corruption}" in place for place in self.images)


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


def read(path: Path) -> Recipe:
    """The recipe in a YAML file, every key and value checked."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DissensusError(f"a suite is a name or a YAML file; {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(f"{path} must be YAML: {reason}") from error
    if not isinstance(found, dict) or not isinstance(found.get("sets"), dict):
        raise DissensusError(f"{path} must have `sets`, each with a name and a role: see docs/suites.md")
    sets = found.pop("sets")
    _check_keys(f"key of {path}", found, Recipe)
    made = tuple(_set(str(name), value, path) for name, value in sets.items())
    given = {"name": path.stem, "summary": f"The sets of {path.name}.", **found}
    recipe = Recipe(sets=made, **given)
    _check(recipe, str(path))
    return recipe


def from_folders(root: Path) -> Recipe:
    """The sets that a folder's own folders name: train, id (or val, test), held-out, disagreement, shift/*, ood/*."""
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is none: check the path")
    inside = next((name for name in ("id", "val", "test") if (root / name).exists()), None)
    sets = [
        SetRecipe("train", "train", ("train",), part=None if inside else (0, 0.8)),
        SetRecipe("id", "id", (inside or "train",), part=None if inside else (0.8, 1)),
    ]
    sets += [SetRecipe(role, role, (role,)) for role in ("held-out", "disagreement") if (root / role).exists()]
    for role in ("shift", "ood"):
        places = sorted((root / role).iterdir()) if (root / role).is_dir() else []
        sets += [
            SetRecipe(path.stem, role, (f"{role}/{path.name}",), unlabelled=role == "ood")
            for path in places
            if not path.name.startswith(".")
        ]
    return Recipe("folders", "Your own images, by the names of their folders.", tuple(sets))


def _set(name: str, given: Any, path: Path) -> SetRecipe:
    if not isinstance(given, dict):
        raise DissensusError(f"set {name!r} of {path} must have a role and images; got {given!r}: see docs/suites.md")
    _check_keys(f"key of set {name!r} in {path}", given, SetRecipe)
    values = dict(given)
    for key in ("images", "group_columns", "corruption", "severities"):
        if key in values:
            values[key] = tuple(values[key]) if isinstance(values[key], list) else (values[key],)
    if values.get("corruption") == ("all",):
        values["corruption"] = corruptions.CORRUPTIONS
    if isinstance(values.get("part"), list):
        values["part"] = tuple(values["part"])
    return SetRecipe(name=name, **{"role": "", **values})


def _check_keys(kind: str, given: Mapping[str, Any], form: type) -> None:
    known = {f.name for f in dataclasses.fields(form)} - {"sets"} - ({"name"} if form is SetRecipe else set())
    for key in given:
        if key not in known:
            raise UnknownNameError(kind, str(key), known)


def _check(recipe: Recipe, where: str) -> None:
    """Refuse a recipe that no folder could satisfy."""
    for role in ("train", "id"):
        found = [s.name for s in recipe.sets if s.role == role]
        if len(found) != 1:
            raise DissensusError(
                f"a suite has exactly one set of role {role}; {where} has {', '.join(found) or 'none'}: give one"
            )
    names = {s.name for s in recipe.sets}
    for s in recipe.sets:
        if s.role not in ROLES:
            raise UnknownNameError(f"role of set {s.name!r}", s.role, ROLES)
        if bool(s.images) == bool(s.of):
            raise DissensusError(f"a set needs either `images` or `of`; set {s.name!r} of {where} has not: give one")
        if s.of is not None and (s.of not in names or s.of == s.name):
            raise UnknownNameError(f"set that {s.name!r} is of", s.of, names - {s.name})
        if s.part is not None and not (len(s.part) == 2 and 0 <= s.part[0] < s.part[1] <= 1):
            raise DissensusError(f"part must be [from, to] within 0..1; set {s.name!r} of {where} has {list(s.part)}")
        for corruption in s.corruption:
            for severity in s.severities:
                corruptions.check(corruption, severity)


def some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(map(str, names[:4])) + (", ..." if len(names) > 4 else "")
