"""Build suites of features: the images of a recipe, or pixels, through a frozen backbone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning_fabric import Fabric
from PIL import Image

from dissensus import backbones
from dissensus._core.errors import DissensusError
from dissensus._core.files import cache_folder
from dissensus._core.options import combine
from dissensus._core.places import is_remote, place
from dissensus._core.terminal import printable, say
from dissensus.backbones import Backbone, engines
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.features import ExtractOptions, FeatureSet, extract
from dissensus.features._extract import plan_of, precision_of
from dissensus.features.extraction import bad_names
from dissensus.images import ImageSet, corruptions
from dissensus.suites._locate import Source, locate
from dissensus.suites._recipe import Recipe

PathLike = str | os.PathLike[str]


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
    notify: Callable[[str], None] = say,
    **options: Any,
) -> Suite:
    """Find the sets of a recipe and extract their features.

    Args:
        recipe: The sets and where they may be.
        root: The folder that they are in.
        seed: Decides splits, corruptions and augmentations.
        features: Folder for the features; None: the user's cache.
        backbone: A name or a backbone; None: the recipe's.
        weights: A local file; None: the pretrained weights.
        size: Pixels per side; None: the recipe's, or else the backbone's own.
        crop: Share of the shorter side that is seen; None: as for `size`.
        layers: How many layers each member owns, 1 or 2; None: the recipe's.
        notify: Called with one line for each set that is missing or incomplete.
        options: Further options of `extract`: augment, engine, workers, batch_size, max_bad, ...

    Raises:
        DataError: If a set cannot be used, or the training set or the id set is missing.
    """
    extraction = {name: value for name, value in options.items() if name not in ("progress", "fabric")}
    engines.ENGINES.check(combine(ExtractOptions, None, extraction).engine)  # before the images are listed
    sources, statuses = locate(recipe, Path(root), seed=seed)
    if not isinstance(backbone, Backbone):
        # a recipe's size and crop are meant for its own backbone or one like it: any backbone takes them
        backbone = backbones.create(
            backbone or recipe.backbone,
            weights,
            recipe.layers if layers is None else layers,
            size=recipe.size if size is None else size,
            crop=recipe.crop if crop is None else crop,
        )
    if features is not None:
        check_outside(place(features), [Path(root, status.place) for status in statuses])
    if recipe.note:
        counts = ", ".join(f"{s.name} {s.images:,}" for s in statuses if s.role in ("train", "id", "held-out"))
        notify(f"{recipe.name}: {recipe.note} ({counts})")
    for status in statuses:
        if status.state == "missing":
            notify(f"{recipe.name} goes on without {status.name} ({status.role}): missing: {status.text}")
        elif status.text:
            notify(f"{recipe.name}: {status.name} ({status.role}): {status.text}")
    suite = _build(recipe.name, recipe.summary, sources, backbone, features, seed=seed, **options)
    return replace(suite, title=recipe.title)


def from_pixels(suite: Suite, side: int, backbone: Backbone, features: PathLike | None, **options: Any) -> Suite:
    """Put a suite whose features are grey pixels within [0, 1], `side` x `side`, through a backbone."""
    parts = {"train": suite.train, "held-out": suite.held_out, "disagreement": suite.disagreement}
    sources = [Source(role, role, _as_images(x, side), seeded=True) for role, x in parts.items() if x is not None]
    sources += [Source(s.name, s.role, _as_images(s.features, side), s.family, seeded=True) for s in suite.sets]
    return _build(suite.name, suite.summary, sources, backbone, features, **options)


def _as_images(features: FeatureSet, side: int) -> ImageSet:
    pixels = features.rows(slice(None)).numpy().reshape(-1, side, side)
    labels = None if features.labels is None else features.labels.numpy()
    return ImageSet.from_arrays(
        np.rint(pixels * 255).astype(np.uint8), labels, classes=None if labels is None else features.classes
    )


def check_outside(features: Path, places: Sequence[Path]) -> None:
    """Raise if the features would be written among the images, where they would look like another class."""
    if is_remote(features):
        return
    for folder in places:
        if features.resolve().is_relative_to(folder.resolve()):
            raise DissensusError(
                f"features must be kept outside of the images; {features} is inside {folder}: choose another --out, "
                "or --features (in Python features=)"
            )


def extract_sources(
    name: str,
    sources: Sequence[Source],
    backbone: Backbone,
    features: PathLike | None,
    *,
    progress: bool = True,
    fabric: Fabric | None = None,
    **keywords: Any,
) -> dict[str, FeatureSet]:
    """Extract every source, into `features` or the user's cache. `augment` is for the training set alone."""
    options = combine(ExtractOptions, None, keywords)
    if corruption := next((source.corruption for source in sources if source.corruption), None):
        corruptions.corrupt(Image.new("RGB", (32, 32)), *corruption, seed=0)  # fail before hours of work, not after
    label = f"{backbone.name}-{backbone.transform.size}px"
    label += "" if backbone.layers == 1 else f"-{backbone.layers}layers"
    folder = (cache_folder() / "features" if features is None else place(features)) / name / label
    extracted: dict[str, FeatureSet] = {}
    for source in sorted(sources, key=lambda source: source.of is not None):
        if source.of is not None:
            extracted[source.name] = extracted[source.of]
            continue
        kind, severity = source.corruption or (None, 1)
        passes = options.augment if source.role == "train" else 0
        set_options = replace(options, augment=passes, corruption=kind, severity=severity)
        # other seeds and augmentations are kept apart
        key = source.name + (f"-{passes}passes" if passes else "")
        key += f"-seed{options.seed}" if options.seed and (source.seeded or passes) else ""
        if features is None:
            # the user's cache serves many roots and backbones: no two extractions may share a folder
            key += "-" + plan_of(source.images, backbone, set_options, precision_of(fabric)).key
        extracted[source.name] = extract(
            source.images, backbone, folder / key, set_options, progress=progress, fabric=fabric
        )
    return extracted


def _build(
    name: str, summary: str, sources: Sequence[Source], backbone: Backbone, features: PathLike | None, **options: Any
) -> Suite:
    """Extract every source and give it its role; `options` are those of `extract_sources`."""
    extracted = extract_sources(name, sources, backbone, features, **options)
    by_role = {source.role: extracted[source.name] for source in sources}
    return Suite(
        name=name,
        summary=summary,
        train=by_role["train"],
        sets=tuple(
            SuiteSet(
                source.name,
                source.role,  # type: ignore[arg-type]
                extracted[source.name],
                family=source.family,
                subset=source.subset,
                images=_aligned(source.images, extracted[source.name]),
                inside=source.inside,
            )
            for source in sources
            if source.role in ("id", "shift", "ood", "groups")
        ),
        held_out=by_role.get("held-out"),
        disagreement=by_role.get("disagreement"),
        pool=by_role["labels"].unlabelled() if "labels" in by_role else by_role.get("pool"),
        labels=by_role.get("labels"),
        train_images=_aligned(next(s.images for s in sources if s.role == "train"), by_role["train"]),
    )


def readable(images: ImageSet, features: FeatureSet) -> ImageSet:
    """Return the images of the features, row by row: without those that could not be read."""
    if features.provenance["bad"]:
        assert features.folder is not None  # just extracted
        bad = bad_names(features.folder)
        images = images.subset([i for i, name in enumerate(images.names) if printable(name) not in bad])
    return images


def _aligned(images: ImageSet, features: FeatureSet) -> ImageSet | None:
    """The images of the features, row by row; None if rows are passes of augmented images."""
    images = readable(images, features)
    return images if len(images) == len(features) else None
