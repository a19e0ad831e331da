"""Neighbours: the training images whose features are most similar to those of a sample, by cosine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.images import BadImage, ImageSet, thumbnail

VALUES = 2**26  # feature values in memory, 256 MB; larger sets are sampled


@dataclass(frozen=True)
class Neighbour:
    """A training image near a sample."""

    class_name: str  # empty if unknown
    similarity: float  # cosine between its features and the sample's
    name: str  # of the image, or its row number
    picture: str = ""  # a data URL; empty if unknown


class Neighbours:
    """Training features to search by cosine similarity, and the images that they were extracted from, if given."""

    def __init__(self, features: FeatureSet, images: ImageSet | None = None) -> None:
        samples = len(features) // features.passes  # later passes are the same images, augmented
        if images is not None:
            _check(features, images, samples)
        most = max(1, VALUES // features.width)
        rows = torch.randperm(samples, generator=torch.Generator().manual_seed(0))[:most].sort().values
        self.features, self.images, self.rows, self.total = features, images, rows, samples
        self._directions = F.normalize(features.rows(rows).flatten(1), dim=1)

    def nearest(self, features: Tensor, count: int = 5) -> tuple[Neighbour, ...]:
        """Return the training images nearest to the features (...) of one sample, nearest first."""
        cosines = self._directions @ F.normalize(features.flatten().float(), dim=0)
        top = cosines.topk(min(count, len(self.rows)))
        return tuple(self._neighbour(int(self.rows[i]), float(c)) for c, i in zip(*top, strict=True))

    def _neighbour(self, row: int, cosine: float) -> Neighbour:
        labels = self.features.labels
        class_name = "" if labels is None else self.features.classes[int(labels[row])]
        if self.images is None:
            return Neighbour(class_name, cosine, f"row {row:,}")
        try:
            picture = thumbnail(self.images.image(row))
        except BadImage:  # removed or damaged since the extraction
            picture = ""
        return Neighbour(class_name, cosine, self.images.names[row], picture)


def _check(features: FeatureSet, images: ImageSet, samples: int) -> None:
    source = features.images
    if source is not None and source not in (images.fingerprint, images.without_labels().fingerprint):
        raise DataError("--images must be the images that --train was extracted from; these are others: check the path")
    if len(images) != samples:
        raise DataError(
            f"--images must match --train row by row; got {len(images):,} images for {samples:,} rows: "
            "leave --images out, or extract again without the unreadable ones"
        )
