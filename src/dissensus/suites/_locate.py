"""Find the sets of a recipe under a root: what is there, what is missing, and the images of what is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from dissensus._core.errors import DataError, DissensusError
from dissensus.suites._finder import Finder, MissingError, Source, no_labels
from dissensus.suites._recipe import UNLABELLED, Recipe, SetRecipe

REQUIRED = ("train", "id")  # roles without which a suite cannot be used


@dataclass(frozen=True)
class Status:
    """What was found of one set of a recipe."""

    name: str
    role: str
    place: str
    state: Literal["found", "missing", "unusable"] = "found"
    text: str = ""  # what is wrong or left out, and what to do about it
    images: int = 0  # of the first set where there are several
    classes: int = 0
    sets: int = 1  # one per corruption and severity


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
            sources[s.name], statuses[s.name] = _look_for(s, recipe, finder, thorough)
            continue
        statuses[s.name] = replace(statuses[s.of], name=s.name, role=s.role)
        sources[s.name] = [
            replace(source, name=s.name, role=s.role, family=s.family, of=s.of) for source in sources[s.of]
        ]
        if s.role not in UNLABELLED and any(source.images.labels is None for source in sources[s.name]):
            statuses[s.name] = replace(statuses[s.name], state="unusable", text=no_labels(s.role, s.of))
    return [source for name in recipe.sets for source in sources[name]], [statuses[name] for name in recipe.sets]


def _look_for(s: SetRecipe, recipe: Recipe, finder: Finder, thorough: bool) -> tuple[list[Source], Status]:
    get = s.get or recipe.get or "put it there"
    variants = list(s.variants())
    places = {variant.name: place for variant in variants if (place := _place(variant, finder.root)) is not None}
    missing = Status(s.name, s.role, " or ".join(s.images), "missing", get)
    if not places:
        return [], missing
    present = [variant for variant in variants if variant.name in places]
    try:
        sources = [finder.source(variant, places[variant.name]) for variant in (present if thorough else present[:1])]
    except MissingError as error:
        return [], replace(missing, text=f"{error}: {get}")
    except DataError as error:
        return [], replace(missing, state="unusable", text=str(error))
    absent = [variant.name for variant in variants if variant.name not in places]
    notes = [f"{len(absent)} of {len(variants)} missing, such as {absent[0]}: {get}"] if absent else []
    notes += [finder.notes[name] for name in places if name in finder.notes][:1]
    images, place = sources[0].images, places[present[0].name]
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
    """The first path of a set that exists; `*` stands for any name."""
    for place in s.images:
        if (root / place).exists():
            return root / place
        pattern = place.lstrip("/") if Path(place).is_absolute() else place
        matches = sorted((Path("/") if Path(place).is_absolute() else root).glob(pattern)) if "*" in place else []
        if matches:
            return matches[0]
    return None
