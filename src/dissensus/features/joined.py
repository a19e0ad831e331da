"""JoinedFeatures: the features of the same samples through several backbones, one row per sample.

    held_out = JoinedFeatures([FeatureSet.open("held-out-lite0"), FeatureSet.open("held-out-lite2")])
    held_out.rows([0, 1])                      # (2, D): the features of both, flattened, one after the other

Rows are read from every part when they are needed; nothing is copied.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dissensus._core.digests import digest
from dissensus._core.errors import DataError
from dissensus._core.places import as_text, is_url, place, storage_errors
from dissensus.backbones import joined
from dissensus.features._opening import holds_features
from dissensus.features._provenance import check_backbone
from dissensus.features.featureset import FeatureSet
from dissensus.functional.arrays import Values
from dissensus.images import LISTINGS, is_one_image


class JoinedFeatures:
    """Features of the same samples, in the same order, one set per backbone; it is read like a `FeatureSet`.

    Args:
        parts: The sets. Labels, groups and names are those of the first.

    Raises:
        DataError: If there are fewer than two sets, or they are known not to be of the same samples.
    """

    passes = 1
    folder = None

    def __init__(self, parts: Sequence[FeatureSet]) -> None:
        if len(parts) < 2:
            raise DataError(
                f"joined features are of two or more backbones; got {len(parts)} set: give one per backbone"
            )
        first = parts[0]
        for number, part in enumerate(parts[1:], start=2):
            if reason := _difference(first, part):
                raise DataError(
                    f"joined features must be of the same samples in the same order; set {number} {reason}: extract "
                    "the same images with every backbone"
                )
        if any(part.passes > 1 for part in parts):
            raise DataError("joined features are of each image once; these are augmented passes: leave out --augment")
        self.parts = tuple(parts)
        self.labels, self.groups = first.labels, first.groups
        self.classes, self.group_names = first.classes, first.group_names

    def __len__(self) -> int:
        return len(self.parts[0])

    def __repr__(self) -> str:
        return f"JoinedFeatures({', '.join(map(repr, self.parts))})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row: (D,)."""
        return (self.width,)

    @property
    def width(self) -> int:
        """The number of values per row."""
        return sum(part.width for part in self.parts)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Where the features come from: the backbones as one, if all are known."""
        backbones = [part.provenance.get("backbone") for part in self.parts]
        known = [backbone for backbone in backbones if backbone is not None]
        return {"backbone": joined.describe(known), "bad": 0} if len(known) == len(backbones) else {"bad": 0}

    @property
    def fingerprint(self) -> str:
        """A sha256 of the fingerprints of all parts."""
        return digest([part.fingerprint for part in self.parts])

    @property
    def images(self) -> str | None:
        """The fingerprint of the images that the rows come from; None if unknown."""
        return self.parts[0].images

    def rows(self, index: Values | slice) -> Tensor:
        """Return float32 features (..., D) of these rows in this order; see `FeatureSet.rows`."""
        each = [part.rows(index) for part in self.parts]
        return torch.cat([x.flatten(x.ndim - len(p.shape)) for x, p in zip(each, self.parts, strict=True)], dim=-1)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        """Yield all rows in order as (features (batch_size, D), slice); the last batch may be short."""
        for batches in zip(*(part.batches(batch_size) for part in self.parts), strict=True):
            yield torch.cat([x.flatten(1) for x, _ in batches], dim=1), batches[0][1]

    def unlabelled(self) -> JoinedFeatures:
        """Return the same rows without labels, classes and groups."""
        return JoinedFeatures([part.unlabelled() for part in self.parts])

    def arranged(self, about: Mapping[str, Any] | None) -> JoinedFeatures:
        """Return the same rows with the parts in the order of a joined description, where both are known."""
        wanted = [part["fingerprint"] for part in joined.parts_of(about)]
        given = [(part.provenance.get("backbone") or {}).get("fingerprint") for part in self.parts]
        if wanted == given or set(wanted) != set(given) or len(wanted) != len(given):
            return self
        return JoinedFeatures([self.parts[given.index(fingerprint)] for fingerprint in wanted])


Features = FeatureSet | JoinedFeatures


def _difference(first: FeatureSet, other: FeatureSet) -> str | None:
    """What shows that two sets are not of the same samples."""
    if len(first) != len(other):
        return f"has {len(other):,} rows, the first {len(first):,}"
    if first.images is not None and other.images is not None and first.images != other.images:
        return "is of other images"
    if first.classes != other.classes:
        return "has other classes"
    labels, others = first.labels, other.labels
    if labels is not None and others is not None and not torch.equal(labels, others):
        return "has other labels"
    return None


def matched(expected: Mapping[str, Any] | None, features: Features, name: str) -> Features:
    """Return features in the form that a run takes; raise if they come from other backbones, where these are known.

    Args:
        expected: The description of the run's backbone, or of several.
        features: The features.
        name: What the error calls them.

    Raises:
        DataError: If the backbones differ.
    """
    parts = joined.parts_of(expected)
    if parts and isinstance(features, FeatureSet):
        names = joined.part_names(parts)
        raise DataError(
            f"a joined run takes images, or features of {' and '.join(names)}; {name} is one set: name one per "
            f"backbone, as {','.join('FEATURES' for _ in parts)}"
        )
    if isinstance(features, FeatureSet):
        check_backbone(expected, features, name)
        return features
    if expected is not None and not parts:
        raise DataError(
            f"this run is on one backbone, {expected['name']}; {name} is features of {len(features.parts)}: give those "
            f"of {expected['name']} alone"
        )
    arranged = features.arranged(expected)
    if len(parts) not in (0, len(arranged.parts)):
        raise DataError(
            f"a joined run takes features of {' and '.join(joined.part_names(parts))}; {name} has "
            f"{len(arranged.parts)} sets: give one per backbone"
        )
    for about, part in zip(parts, arranged.parts, strict=False):
        check_backbone(about, part, name)
    return arranged


def open_features(where: str | os.PathLike[str]) -> Features:
    """Open a feature folder or an .npz file; several, with commas between them, are joined."""
    paths = several(as_text(where))
    return JoinedFeatures([FeatureSet.open(path) for path in paths]) if paths else FeatureSet.open(where)


def is_features(where: str | os.PathLike[str]) -> bool:
    """Whether `open_features` opens a path or URL: a feature folder or an .npz file, or several with commas between.

    A feature folder is one that `extract`, `save` or `FeatureWriter` finished, or one that clip-retrieval wrote.
    """
    path = as_text(where)
    if paths := several(path):
        return all(map(is_features, paths))
    if path.endswith(".npz"):
        return True
    if not is_url(path):
        return os.path.isdir(path) and holds_features(place(path))
    if is_one_image(path) or path.lower().endswith(LISTINGS):
        return False
    with storage_errors(path):
        return holds_features(place(where))


def several(path: str) -> list[str]:
    """Return the paths that commas separate; none if there is one only, such as a path with a comma in its name."""
    return path.split(",") if "," in path and not os.path.exists(path) else []
