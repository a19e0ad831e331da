"""From images with roles to a suite of features: what a folder has already is kept, the rest is extracted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dissensus.backbones import Backbone
from dissensus.errors import DataError
from dissensus.evaluate import Suite, SuiteSet
from dissensus.extract import extract
from dissensus.features import FeatureSet
from dissensus.files import cache_folder
from dissensus.images import ImageSet


@dataclass(frozen=True)
class Source:
    """One set of a suite as images, with what is to be done to them.

    With `of` its features are those of the set of that name, and `images` are not looked at.
    """

    name: str
    role: str
    images: ImageSet
    family: str = ""
    subset: tuple[int, ...] | None = None
    corruption: tuple[str, int] | None = None
    of: str | None = None


def gather(
    name: str,
    summary: str,
    sources: Sequence[Source],
    backbone: Backbone,
    features: Path | None,
    *,
    seed: int = 0,
    augment: int = 0,
    **options: Any,
) -> Suite:
    """Extract every source, into `features` or else the user's cache, and give the suite; see `extract` for options."""
    train = next(source for source in sources if source.role == "train")
    for source in sources:
        _check_classes(source, train.images)
    label = f"{backbone.name}-{backbone.transform.size}px" + (
        "" if backbone.layers == 1 else f"-{backbone.layers}layers"
    )
    root = (features or cache_folder() / "features") / name / label
    made: dict[str, FeatureSet] = {}
    for source in sorted(sources, key=lambda source: source.of is not None):
        if source.of is not None:
            made[source.name] = made[source.of]
            continue
        passes = augment if source.role == "train" else 0
        # the user's cache serves many roots and backbones: what is in it must never be in the way
        folder = source.name if features is not None else f"{source.name}-{_key(source, backbone, passes, seed)}"
        corruption, severity = source.corruption or (None, 1)
        made[source.name] = extract(
            source.images,
            backbone,
            root / folder,
            augment=passes,
            corruption=corruption,
            severity=severity,
            seed=seed,
            **options,
        )
    by_role = {source.role: made[source.name] for source in sources}
    return Suite(
        name=name,
        summary=summary,
        train=by_role["train"],
        sets=tuple(
            SuiteSet(source.name, source.role, made[source.name], family=source.family, subset=source.subset)  # type: ignore[arg-type]
            for source in sources
            if source.role in ("id", "shift", "ood", "groups")
        ),
        held_out=by_role.get("held-out"),
        disagreement=by_role.get("disagreement"),
    )


def _key(source: Source, backbone: Backbone, augment: int, seed: int) -> str:
    facts = [backbone.fingerprint, source.images.fingerprint, source.corruption, augment, seed]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]


def _check_classes(source: Source, train: ImageSet) -> None:
    """Refuse labels that do not mean what they mean in training; images are labelled in its order already."""
    if source.role in ("ood", "disagreement"):
        return
    if source.images.labels is None:
        raise DataError(
            f"sets of role {source.role} need labels, such as class folders; {source.name} has none: sort its images "
            "into folders, or give it role ood"
        )
    if len(train.classes) < 2:
        raise DataError(
            f"training needs at least two classes; {source.name} has {', '.join(train.classes) or 'none'}: add a "
            "folder for another class"
        )
