"""Neighbours: the training images whose features are most similar to those of a sample, found by the score knn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.functional.fitted import vectors
from dissensus.functional.neighbours import KNN
from dissensus.images import BadImage, ImageSet, thumbnail

USUAL = 256  # samples whose nearest other ones say what similarity is usual
VALUES = 2**26  # feature values of an index that is made here; larger sets are sampled


@dataclass(frozen=True)
class Neighbour:
    """A training image near a sample."""

    class_name: str  # empty if unknown
    similarity: float  # cosine between its features and the sample's
    name: str  # of the image, or its row number
    picture: str = ""  # a data URL; empty if unknown


class Neighbours:
    """An index of training features to search, and the images that they were extracted from, if given.

    Args:
        index: The fitted score knn.
        classes: Names of the classes; empty if the labels of the index mean nothing.
        complete: Whether the index holds every training sample, or a random part.
        images: The training images, row by row.

    Attributes:
        usual: The 5% and 95% quantiles of the similarity between a training sample and its nearest other one; None with
            fewer than two samples.
    """

    def __init__(self, index: KNN, classes: Sequence[str], *, complete: bool, images: ImageSet | None = None) -> None:
        self.index, self.classes, self.complete, self.images = index, classes, complete, images
        self.usual = _usual(index)

    @classmethod
    def of(
        cls, detector: Detector, train: FeatureSet | None = None, images: ImageSet | None = None
    ) -> Neighbours | None:
        """Return the neighbours that a detector's score knn knows; without it, those among training features.

        Args:
            detector: The detector.
            train: Its training features. Needed if it has no score knn.
            images: The training images.

        Returns:
            The neighbours; None if there is neither the score nor `train`.

        Raises:
            DataError: If features or images are not those that the detector was trained on.
        """
        index = detector.ensemble.fitted.get("knn")
        samples = None if train is None else len(train) // train.passes  # later passes are the same images, augmented
        if index is None:
            if train is None or samples is None:
                return None
            index, classes = _index(train, samples), train.classes if train.labels is not None else ()
            source = train.images
        else:
            if train is not None and not detector.was_trained_on(train):
                raise DataError(
                    "--train must be the features that the run was trained on; these are others: leave it out, the "
                    "run's score knn has them"
                )
            classes, source = detector.classes, detector.trained_on.get("images")
        assert isinstance(index, KNN)
        samples = _everything(index) if samples is None else samples
        if images is not None:
            _check(images, source, samples)
        return cls(index, classes, complete=samples == len(index.rows), images=images)

    def nearest(self, features: Tensor, count: int = 5) -> tuple[Neighbour, ...]:
        """Return the training images nearest to the features (...) of one sample, nearest first."""
        index = self.index
        cosines, rows = index.nearest(vectors(features[None].to(index.rows.device)), count)
        labels = index.labels[torch.searchsorted(index.rows, rows)]
        found = zip(rows[0].tolist(), labels[0].tolist(), cosines[0].tolist(), strict=True)
        return tuple(self._neighbour(*one) for one in found)

    def _neighbour(self, row: int, label: int, cosine: float) -> Neighbour:
        class_name = self.classes[label] if self.classes else ""
        if self.images is None:
            return Neighbour(class_name, cosine, f"row {row:,}")
        try:
            picture = thumbnail(self.images.image(row))
        except BadImage:  # removed or damaged since the extraction
            picture = ""
        return Neighbour(class_name, cosine, self.images.names[row], picture)


def _index(train: FeatureSet, samples: int) -> KNN:
    """An index of training features, or of a random part of many."""
    most = max(1, VALUES // train.width)
    rows = torch.randperm(samples, generator=torch.Generator().manual_seed(0))[:most].sort().values
    labels = torch.zeros(samples, dtype=torch.int64) if train.labels is None else train.labels
    return KNN({"bank": vectors(train.rows(rows)), "rows": rows, "labels": labels[rows]})


def _usual(index: KNN) -> tuple[float, float] | None:
    """Quantiles over some rows of the index; the nearest row to each is itself."""
    if len(index.rows) < 2:
        return None
    some = torch.randperm(len(index.rows), generator=torch.Generator().manual_seed(0))[:USUAL]
    cosines = index.nearest(index.bank[some].float(), 2)[0][:, 1]
    low, high = torch.quantile(cosines.double(), torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    return low, high


def _everything(index: KNN) -> int | None:
    """How many training samples there are, if the index holds them all; a random part never ends like that."""
    return len(index.rows) if int(index.rows[-1]) == len(index.rows) - 1 else None


def _check(images: ImageSet, source: str | None, samples: int | None) -> None:
    """Raise if images are not those of the training rows, by fingerprint and count."""
    if source is not None and source not in (images.fingerprint, images.without_labels().fingerprint):
        raise DataError("--images must be the images that the run was trained on; these are others: check the path")
    if samples is None:
        raise DataError("--images must match the training rows, and this run keeps a part of them: give --train too")
    if len(images) != samples:
        raise DataError(
            f"--images must match the training rows one by one; got {len(images):,} images for {samples:,} rows: "
            "leave --images out, or extract and train again without the unreadable ones"
        )
