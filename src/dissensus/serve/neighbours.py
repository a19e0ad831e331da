"""Neighbours: the training images whose features point the same way as those of a sample."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.images import BadImage, ImageSet
from dissensus.images.thumbnails import thumbnail

VALUES = 2**26  # features kept, 256 MB; of more rows than that a random part


@dataclass(frozen=True)
class Neighbour:
    """A training image: its class, if known, the cosine between its features and the sample's, a picture if any."""

    class_name: str
    similarity: float
    picture: str = ""
    name: str = ""


class Neighbours:
    """Training features, and the images they are of, to be searched by cosine.

    Images, where they are given, must be those the features were extracted from, in the same order.
    """

    def __init__(self, features: FeatureSet, images: ImageSet | None = None) -> None:
        samples = len(features) // features.passes  # each once: later passes are the same images, augmented
        if images is not None:
            _check(features, images, samples)
        most = max(1, VALUES // features.width)
        rows = torch.arange(samples)
        if samples > most:
            rows = torch.randperm(samples, generator=torch.Generator().manual_seed(0))[:most].sort().values
        self.features, self.images, self.rows, self.total = features, images, rows, samples
        self._directions = F.normalize(features.rows(rows).flatten(1), dim=1)

    def nearest(self, features: Tensor, count: int = 5) -> tuple[Neighbour, ...]:
        """The nearest training images to features (...), nearest first."""
        cosines = self._directions @ F.normalize(features.flatten().float(), dim=0)
        found = cosines.topk(min(count, len(self.rows)))
        return tuple(self._neighbour(int(self.rows[i]), float(c)) for c, i in zip(*found, strict=True))

    def _neighbour(self, row: int, cosine: float) -> Neighbour:
        labels = self.features.labels
        class_name = "" if labels is None else self.features.classes[int(labels[row])]
        if self.images is None:
            return Neighbour(class_name, cosine, name=f"row {row:,}")
        try:
            picture = thumbnail(self.images.image(row))
        except BadImage:  # it was there when the features were made
            picture = ""
        return Neighbour(class_name, cosine, picture, self.images.names[row])


def _check(features: FeatureSet, images: ImageSet, samples: int) -> None:
    made_of = features.images
    if made_of is not None and made_of not in (images.fingerprint, images.without_labels().fingerprint):
        raise DataError("--images must be the images that --train was extracted from; these are others: check the path")
    if len(images) != samples:
        raise DataError(
            f"--images must match --train row by row; got {len(images):,} images for {samples:,} rows: "
            "leave --images out, or extract again without the unreadable ones"
        )
