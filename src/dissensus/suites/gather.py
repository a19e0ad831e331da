"""From images with roles to a suite of features: what a folder has already is kept, the rest is extracted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from PIL import Image

from dissensus._core.files import cache_folder
from dissensus._core.options import combine
from dissensus.backbones import Backbone
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.features import ExtractOptions, FeatureSet, extract
from dissensus.features._extract import plan_of, precision_of
from dissensus.features.extraction import bad_names, one_line
from dissensus.images import ImageSet, corruptions


@dataclass(frozen=True)
class Source:
    """One set of a suite as images, with what is to be done to them.

    With `of` its features are those of the set of that name, and `images` are not looked at. `seeded` says that its
    images, or what is done to them, depend on the seed.
    """

    name: str
    role: str
    images: ImageSet
    family: str = ""
    subset: tuple[int, ...] | None = None
    corruption: tuple[str, int] | None = None
    of: str | None = None
    seeded: bool = False


def gather(
    name: str,
    summary: str,
    sources: Sequence[Source],
    backbone: Backbone,
    features: Path | None,
    *,
    progress: bool = True,
    fabric: Fabric | None = None,
    **keywords: Any,
) -> Suite:
    """Extract every source, into `features` or else the user's cache, and return the suite.

    Args:
        name: the name of the suite.
        summary: what it holds, in one line.
        sources: its sets, as images.
        backbone: whose trunk to run.
        features: folder for the features; None: the user's cache.
        progress: show progress bars when stderr is a terminal.
        fabric: Lightning Fabric, for other devices or several processes.
        keywords: fields of `ExtractOptions`; `augment` is for the training set alone.
    """
    options = combine(ExtractOptions, None, keywords)
    if corruption := next((source.corruption for source in sources if source.corruption), None):
        corruptions.corrupt(Image.new("RGB", (32, 32)), *corruption, seed=0)  # fail before hours of work, not after
    label = f"{backbone.name}-{backbone.transform.size}px" + (
        "" if backbone.layers == 1 else f"-{backbone.layers}layers"
    )
    root = (features or cache_folder() / "features") / name / label
    made: dict[str, FeatureSet] = {}
    for source in sorted(sources, key=lambda source: source.of is not None):
        if source.of is not None:
            made[source.name] = made[source.of]
            continue
        kind, severity = source.corruption or (None, 1)
        passes = options.augment if source.role == "train" else 0
        mine = replace(options, augment=passes, corruption=kind, severity=severity)
        folder = _folder(source, passes, options.seed)
        if features is None:
            # the user's cache serves many roots and backbones: no two extractions may share a folder
            plan = plan_of(source.images, backbone, mine, precision_of(fabric)) | {"backbone": backbone.fingerprint}
            folder += "-" + hashlib.sha256(json.dumps(plan).encode()).hexdigest()[:10]
        made[source.name] = extract(source.images, backbone, root / folder, mine, progress=progress, fabric=fabric)
    by_role = {source.role: made[source.name] for source in sources}
    return Suite(
        name=name,
        summary=summary,
        train=by_role["train"],
        sets=tuple(
            SuiteSet(
                source.name,
                source.role,  # type: ignore[arg-type]
                made[source.name],
                family=source.family,
                subset=source.subset,
                images=_readable(source.images, made[source.name]),
            )
            for source in sources
            if source.role in ("id", "shift", "ood", "groups")
        ),
        held_out=by_role.get("held-out"),
        disagreement=by_role.get("disagreement"),
    )


def _readable(images: ImageSet, features: FeatureSet) -> ImageSet | None:
    """The images that the features are of, row by row: without those that could not be read."""
    if features.provenance["bad"]:
        assert features.folder is not None  # they have just been extracted
        gone = bad_names(features.folder)
        images = images.subset([i for i, name in enumerate(images.names) if one_line(name) not in gone])
    return images if len(images) == len(features) else None


def _folder(source: Source, augment: int, seed: int) -> str:
    """Where a set's features are; other seeds and augmentations are kept apart."""
    passes = f"-{augment}passes" if augment else ""
    return source.name + passes + (f"-seed{seed}" if seed and (source.seeded or augment) else "")
