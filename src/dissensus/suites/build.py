"""Suites out of recipes, and out of pixels: both through a frozen backbone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dissensus import backbones
from dissensus._core.errors import DissensusError
from dissensus.backbones import Backbone
from dissensus.evaluation.suite import Suite
from dissensus.features import FeatureSet
from dissensus.images import ImageSet
from dissensus.suites import places
from dissensus.suites.gather import Source, gather
from dissensus.suites.recipe import Recipe

PathLike = str | os.PathLike[str]


def _to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def from_recipe(
    recipe: Recipe,
    *,
    root: PathLike,
    seed: int = 0,
    features: PathLike | None = None,
    backbone: str | Backbone | None = None,
    weights: PathLike | None = None,
    size: int | None = None,
    crop: float | None = None,
    layers: int | None = None,
    tell: Callable[[str], None] = _to_stderr,
    **options: Any,
) -> Suite:
    """The recipe's sets under `root`, their features extracted; see `extract` for further options.

    Args:
        recipe: what there should be.
        root: where it is.
        seed: decides splits, corruptions and augmentations.
        features: folder for the features; None: the user's cache.
        backbone: a name or a backbone; None: the recipe's.
        weights: a local file; None: the pretrained ones.
        size: pixels a side; None: the recipe's, or else the backbone's own.
        crop: share of the shorter side that is seen; None: the same.
        layers: how much the tail holds, 1 or 2; None: the recipe's.
        tell: takes a line about each set that is missing and left out, wholly or in part.
        options: for `extract`: augment, engine, workers, batch_size, max_bad, ...
    """
    images, found = places.sources(recipe, Path(root), seed=seed)
    if not isinstance(backbone, Backbone):
        # a recipe's size and crop are meant for its own backbone or one like it: any backbone takes them
        backbone = backbones.create(
            backbone or recipe.backbone,
            weights,
            recipe.layers if layers is None else layers,
            size=recipe.size if size is None else size,
            crop=recipe.crop if crop is None else crop,
        )
    where = None if features is None else Path(features)
    if where is not None:
        _check_outside(where, [Path(root, f.place) for f in found])
    if recipe.note:
        counts = ", ".join(f"{f.name} {f.images:,}" for f in found if f.role in ("train", "id", "held-out"))
        tell(f"{recipe.name}: {recipe.note} ({counts})")
    for f in found:
        if f.state == "missing":
            tell(f"{recipe.name} goes on without {f.name} ({f.role}): missing: {f.text}")
        elif f.text:
            tell(f"{recipe.name}: {f.name} ({f.role}): {f.text}")
    return gather(recipe.name, recipe.summary, images, backbone, where, seed=seed, **options)


def _check_outside(features: Path, places: Sequence[Path]) -> None:
    """Raise if the features would be written among the images, where they would look like another class."""
    for place in places:
        if features.resolve().is_relative_to(place.resolve()):
            raise DissensusError(
                f"features must be kept outside of the images; {features} is inside {place}: choose another --out, "
                "or --features (in Python features=)"
            )


def from_pixels(suite: Suite, side: int, backbone: Backbone, features: PathLike | None, **options: Any) -> Suite:
    """A suite whose features are grey pixels within [0, 1], side x side, put through a backbone instead."""
    named: list[tuple[str, str, FeatureSet | None, str]] = [
        ("train", "train", suite.train, ""),
        ("held-out", "held-out", suite.held_out, ""),
        ("disagreement", "disagreement", suite.disagreement, ""),
        *((s.name, s.role, s.features, s.family) for s in suite.sets),
    ]
    found = [
        Source(name, role, _as_images(each, side), family=family, seeded=True)
        for name, role, each, family in named
        if each is not None
    ]
    where = None if features is None else Path(features)
    return gather(suite.name, suite.summary, found, backbone, where, **options)


def _as_images(features: FeatureSet, side: int) -> ImageSet:
    pixels = features.rows(slice(None)).numpy().reshape(-1, side, side)
    labels = None if features.labels is None else features.labels.numpy()
    return ImageSet.from_arrays(
        np.rint(pixels * 255).astype(np.uint8), labels, classes=None if labels is None else features.classes
    )
