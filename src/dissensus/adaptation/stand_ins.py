"""Stand-ins made of images: views of held-out training images, through the backbone of the training features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from dissensus import backbones
from dissensus._core.errors import DataError
from dissensus._core.terminal import printable
from dissensus.adaptation.splits import Fold, Rows
from dissensus.features import FeatureSet, extract
from dissensus.features.extraction import bad_names
from dissensus.features.store import Store
from dissensus.images import ImageSet
from dissensus.images.standins import STAND_INS

IMAGES = 400  # of which each view is made, over all folds


def check_images(features: FeatureSet, images: ImageSet) -> ImageSet:
    """Return the images of the features, row by row: without those that could not be read.

    Raises:
        DataError: If they are not the images that the features were extracted from, or no backbone is known.
    """
    if features.provenance.get("backbone") is None:
        raise DataError(
            "stand-ins of images need the backbone of the features; these name none: leave the images out, or extract "
            "the features with dissensus extract"
        )
    source, bad = features.images, int(features.provenance.get("bad", 0))
    same = source is None or source in (images.fingerprint, images.without_labels().fingerprint)
    if not same and not (bad and len(images) == len(features)):  # the unreadable ones may be left out already
        raise DataError("images must be those that the features were extracted from; these are others: check the path")
    if bad and len(images) != len(features) and features.folder is not None:
        unread = bad_names(features.folder)
        images = images.subset([i for i, name in enumerate(images.names) if printable(name) not in unread])
    if len(images) != len(features):
        raise DataError(
            f"images must match the features row by row; got {len(images):,} images for {len(features):,} rows: "
            "leave the images out, or extract the features again"
        )
    if images.labels is not None and features.labels is not None:
        names = np.array(images.classes)[images.labels], np.array(features.classes)[features.labels.numpy()]
        if len(differing := np.flatnonzero(names[0] != names[1])):
            at = int(differing[0])
            raise DataError(
                f"images must have the labels of the features; row {at} is {str(names[0][at])!r} in the images and "
                f"{str(names[1][at])!r} in the features: check the path"
            )
    return images


def view_rows(folds: Sequence[Fold]) -> list[Rows]:
    """The ID rows of each fold that views are made of, evenly spread over the classes; positions in `inside`."""
    each = IMAGES // len(folds)
    return [np.unique(np.linspace(0, len(fold.inside) - 1, min(each, len(fold.inside))).astype(int)) for fold in folds]


def extract_views(
    features: FeatureSet,
    images: ImageSet,
    rows: Rows,
    folder: Path,
    *,
    seed: int,
    progress: bool,
    notify: Callable[[str], None],
    has_time: Callable[[], bool] = lambda: True,
) -> dict[str, FeatureSet]:
    """Extract every view of these rows, or as many as there is time for; what a folder holds already is kept.

    Raises:
        DissensusError: If the backbone is not available, or an image cannot be read.
    """
    backbone = backbones.restore(features.provenance["backbone"])
    engine, views = str(features.provenance.get("engine", "eager")), {}
    for view in STAND_INS:
        if not Store(folder / view).finished:
            if not has_time():
                break
            notify(f"stand-in {view}: {len(rows)} images")
        # strict: every view must have the same rows
        views[view] = extract(
            images.subset(rows), backbone, folder / view,
            view=view, seed=seed, engine=engine, dtype="float32", strict=True, progress=progress,
        )  # fmt: skip
    return views
