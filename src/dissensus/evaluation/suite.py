"""Suite: named data sets with roles, to train on and to evaluate on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.features.joined import JoinedFeatures
from dissensus.images import ImageSet

Role = Literal["id", "shift", "ood", "groups"]


@dataclass(frozen=True)
class SuiteSet:
    """One set to evaluate on.

    Attributes:
        name: unique within a suite.
        role: id (in distribution), shift (same classes, other conditions), ood (other classes) or groups.
        features: labelled unless the role is ood; with groups where the role is groups.
        family: the column of tables that several sets share, such as all corruptions of one severity; "": its own.
        subset: the classes that occur, where those are a part of the tail's; labels stay tail classes.
        images: row by row the images that the features are of, to look at.
        inside: of a shift set: it counts as in distribution where OOD sets are detected in the full spectrum.
    """

    name: str
    role: Role
    features: FeatureSet
    family: str = ""
    subset: tuple[int, ...] | None = None
    images: ImageSet | None = None
    inside: bool = False


@dataclass(frozen=True)
class Suite:
    """Data sets that belong together.

    Attributes:
        name: of the suite.
        summary: one line about it.
        title: what reports call the data; "": the name.
        train: labelled training set.
        sets: to evaluate on; exactly one has the role id.
        held_out: labelled, for choices made before the test: soups, thresholds.
        disagreement: unlabelled, for a2d and divdis.
        pool: unlabelled samples of the place where the model will be used.
        labels: the rows of `pool` with labels and groups: what a user would answer if asked. Only studies that simulate
            a user look at it.
        train_images: row by row the images that `train` was extracted from, where there are any.
    """

    name: str
    summary: str
    train: FeatureSet
    sets: tuple[SuiteSet, ...]
    held_out: FeatureSet | None = None
    disagreement: FeatureSet | None = None
    pool: FeatureSet | None = None
    labels: FeatureSet | None = None
    train_images: ImageSet | None = None
    title: str = ""

    @property
    def disagree_on(self) -> FeatureSet | None:
        """What a2d and divdis disagree on: `disagreement`, else `pool`."""
        return self.pool if self.disagreement is None else self.disagreement


def join_suites(suites: Sequence[Suite]) -> Suite:
    """Return one suite of the same images through several backbones, whose sets are `JoinedFeatures`; one as it is.

    What only training reads is that of the first suite: joined ensembles are trained one by one.

    Raises:
        DataError: If the suites do not have the same sets of the same images.
    """
    first = suites[0]
    if len(suites) == 1:
        return first
    for other in suites[1:]:
        names = [[s.name for s in suite.sets] for suite in (first, other)]
        if names[0] != names[1] or (first.held_out is None) != (other.held_out is None):
            raise DataError(f"suites to join must have the same sets; got {names[0]} and {names[1]}: use one suite")
    groups = zip(*(suite.sets for suite in suites), strict=True)
    held_out = [suite.held_out for suite in suites if suite.held_out is not None]
    return replace(
        first,
        sets=tuple(replace(group[0], features=_joined([s.features for s in group])) for group in groups),
        held_out=_joined(held_out) if held_out else None,
    )


def _joined(parts: Sequence[FeatureSet]) -> FeatureSet:
    """Join features; they are read like a `FeatureSet`, which is all that evaluation does."""
    return cast(FeatureSet, JoinedFeatures(parts))
