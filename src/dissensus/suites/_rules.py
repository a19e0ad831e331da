"""Build a recipe from plain values: types, then which sets it must have and what must not stand together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from dissensus._core.documents import problem
from dissensus._core.errors import DissensusError, UnknownNameError, some
from dissensus._core.files import check_name
from dissensus.images import corruptions
from dissensus.suites._recipe import UNLABELLED, Recipe, SetRecipe
from dissensus.training.options import TUNABLE, TrainOptions

ONCE = ("train", "id", "held-out", "disagreement", "pool", "labels")  # roles of at most one set
ROLES = (*ONCE, "shift", "ood", "groups")
SEE = "see docs/suites.md"


def make(values: Mapping[str, Any], where: str) -> Recipe:
    """Build a recipe.

    Args:
        values: The fields of `Recipe`; those of a set as mappings.
        where: The file or folder that they come from, for messages.

    Raises:
        DissensusError: On one line with `where`, the field or set, its rule and what was given.
    """
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        if unknown := [each["loc"] for each in error.errors() if each["type"] == "extra_forbidden"]:
            *path, key = map(str, unknown[0])
            of = f"set {path[1]!r} of {where}" if path else where
            known = set((SetRecipe if path else Recipe).model_fields) - ({"name"} if path else set())
            raise UnknownNameError(f"key of {of}", key, known) from error
        raise DissensusError(f"{where} is not a valid suite; {problem(error)}: {SEE}") from error
    check_name(recipe.name, f"the suite of {where}")
    for s in recipe.sets.values():
        check_name(s.name, f"a set of {where}")
        if s.role not in ROLES:
            raise UnknownNameError(f"role of set {s.name!r} of {where}", s.role, ROLES)
    for role in ONCE:
        names = [s.name for s in recipe.of_role(role)]
        if len(names) > 1 or (role in ("train", "id") and not names):
            rule = "exactly one" if role in ("train", "id") else "at most one"
            given = " and ".join(names) or "none"
            raise DissensusError(f"a suite has {rule} set of role {role}; {where} has {given}: correct `role`")
    if recipe.of_role("pool") and recipe.of_role("labels"):
        raise DissensusError(f"the pool of a suite with `labels` are their images; {where} has both: leave `pool` out")
    for s in recipe.sets.values():
        which = f"set {s.name!r} of {where}"
        if bool(s.images) == bool(s.of):
            given = "both" if s.of else "neither"
            raise DissensusError(f"a set has either `images` or `of`; {which} has {given}: give one")
        _check_of(s, recipe, which)
        _check_corruption(s, which)
        if s.subset is not None and s.role not in ("id", "shift", "groups"):
            raise DissensusError(f"`subset` is for roles id, shift and groups; {which} is {s.role}: leave it out")
        if s.inside and s.role != "shift":
            raise DissensusError(f"`inside` is for role shift; {which} is {s.role}: leave it out")
    counts = Counter(variant.name for s in recipe.sets.values() for variant in s.variants())
    if twice := [name for name, count in counts.items() if count > 1]:
        raise DissensusError(f"sets must have different names; {where} has {twice[0]!r} twice: rename one")
    _check_leaks(recipe, where)
    _check_training(recipe, where)
    return recipe


def _check_of(s: SetRecipe, recipe: Recipe, which: str) -> None:
    if s.of is None:
        return
    others = {name: other for name, other in recipe.sets.items() if other is not s}
    if s.of not in others:
        raise UnknownNameError(f"set that {which} is `of`", s.of, others)
    if others[s.of].of is not None or others[s.of].corruption:
        raise DissensusError(f"`of` names a single set with `images`; {which} is of {s.of!r}: name another")
    if extra := sorted(s.model_fields_set - {"name", "role", "of", "family", "inside", "get"}):
        raise DissensusError(f"a set `of` another shares its images; {which} has `{extra[0]}` too: leave it out")


def _check_corruption(s: SetRecipe, which: str) -> None:
    if s.severities and not s.corruption:
        raise DissensusError(f"`severities` are those of a `corruption`; {which} has none: give both")
    for name in s.corruption:
        for severity in s.severities:
            try:
                corruptions.check(name, severity)
            except DissensusError as error:
                raise DissensusError(f"{which}: {error}") from error
    if s.stored:
        needed = ["{corruption}"] + ["{severity}"] * (len(s.severities) > 1)
        if not s.corruption or any(mark not in place for place in s.images for mark in needed):
            raise DissensusError(
                f"images stored by `corruption` have {{corruption}} and {{severity}} in every path; {which} has "
                f"{some(s.images)}: complete them"
            )


def _check_training(recipe: Recipe, where: str) -> None:
    for name in recipe.training:
        if name not in TUNABLE:
            raise UnknownNameError(f"key of `training` of {where}", name, TUNABLE)
    try:
        TrainOptions(**recipe.training)
    except DissensusError as error:
        raise DissensusError(f"`training` of {where}: {error}") from error


def _check_leaks(recipe: Recipe, where: str) -> None:
    """Raise if a set is evaluated that has images of the training set, or of the set whose labels are asked for."""
    for source in recipe.of_role("train") + recipe.of_role("labels"):
        low, high = source.part or (0, 1)
        for s in recipe.sets.values():
            start, end = s.part or (0, 1)
            same = set(s.images) & set(source.images) and s.only == source.only
            own = {source.name, source.of} - {None}
            overlaps = not own.isdisjoint((s.name, s.of)) or (same and start < high and low < end)
            if s is not source and s.role not in (*UNLABELLED, "train") and overlaps:
                kind = "its training images" if source.role == "train" else "images whose labels it is given"
                raise DissensusError(
                    f"a model is not evaluated on {kind}; set {s.name!r} of {where} has some: give `part`s that do "
                    "not overlap"
                )
