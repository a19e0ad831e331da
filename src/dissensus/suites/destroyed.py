"""Label-destroying views of training images: a disagreement set that needs no data of the user's.

    views = destroyed_views(features, ImageSet.find("photos"))
    fit(ensemble, features, "a2d", disagreement=views, diversity=1)

`--disagreement self` of the commands train, run and study is this.
"""

from __future__ import annotations

import os
from typing import Any

from lightning_fabric import Fabric

from dissensus import backbones
from dissensus._core.files import cache_folder
from dissensus._core.options import combine
from dissensus._core.places import place
from dissensus.adaptation.stand_ins import check_images
from dissensus.features import ExtractOptions, FeatureSet, extract
from dissensus.features._extract import plan_of, precision_of
from dissensus.images import ImageSet
from dissensus.images.standins import DESTROYING


def destroyed_views(
    features: FeatureSet,
    images: ImageSet,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: bool = True,
    fabric: Fabric | None = None,
    **keywords: Any,
) -> FeatureSet:
    """Extract a view of every training image that leaves nothing of the label, through the backbone of the features.

    The view is `standins.DESTROYING`, a jigsaw. What a folder holds already is not extracted again.

    Args:
        features: The training features, one row per image, as `extract` made them.
        images: The images that they were extracted from.
        out: Folder for the views; None: FEATURES-jigsaw beside the features, or the user's cache for features in memory
            and subsets.
        progress: Show a progress bar when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices or several processes.
        keywords: Options of `extract`; engine and type of the values are by default those of the features.

    Returns:
        The views without labels and groups, (N, ...).

    Raises:
        DataError: If the images are not those of the features, or the features name no backbone.
    """
    source = check_images(features, images).without_labels()
    backbone = backbones.restore(features.provenance["backbone"])
    about = features.provenance
    usual: dict[str, Any] = {name: about[name] for name in ("engine", "dtype") if name in about}
    options = combine(ExtractOptions, None, {**usual, **keywords, "view": DESTROYING})
    if out is None and features.folder is not None and features.images is not None:
        out = features.folder.parent / f"{features.folder.name}-{DESTROYING}"
    elif out is None:
        key = plan_of(source, backbone, options, precision_of(fabric)).key
        out = cache_folder() / "features" / "views" / f"{DESTROYING}-{key}"
    return extract(source, backbone, place(out), options, progress=progress, fabric=fabric).unlabelled()
