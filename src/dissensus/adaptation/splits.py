"""Splits: which training samples calibrate, which train a trial, which play ID and OOD in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError
from dissensus._core.random import mix
from dissensus.features import FeatureSet

HELD_OUT = 0.2  # share of what is not calibrated on that a fold holds out
FOLDS = 3  # of a set of at most SMALL samples; of a larger one, the first fold is enough
SMALL = 5000
FIT_ROWS = 50_000  # samples that a trial is trained on, at most
ID_ROWS = 4000  # held-out samples of a fold, at most
LEFT_OUT = 0.2  # share of the classes that a trial does not see
CLASSES = 3  # the fewest from which one can be left out

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Fold:
    """One way to divide the samples of a trial.

    Attributes:
        fit: rows to train on, of the classes that are kept.
        inside: held-out rows of the kept classes, the ID samples.
        outside: held-out rows of the classes left out, which play OOD; may be empty.
        kept: the classes that the trial is trained on.
    """

    fit: Rows
    inside: Rows
    outside: Rows
    kept: Rows

    def relabelled(self, features: FeatureSet, rows: Rows) -> FeatureSet:
        """Return rows of the kept classes, with labels counted among these."""
        part = features.subset(rows)
        assert part.labels is not None
        number = np.full(len(features.classes), -1)
        number[self.kept] = np.arange(len(self.kept))
        names = tuple(features.classes[c] for c in self.kept)
        return part.relabelled(number[part.labels.numpy()], names)


def divide(labels: Rows, calibration: float, seed: int) -> tuple[Rows, Rows]:
    """Return the rows that calibrate, about this share of every class, and the others; a class keeps one at least."""
    place = _places(labels, seed)
    last = np.zeros(len(labels), bool)
    last[_last_of_class(labels, place)] = True
    held = (place < calibration) & ~last
    return np.flatnonzero(held), np.flatnonzero(~held)


def folds(labels: Rows, rows: Rows, seed: int) -> list[Fold]:
    """Divide rows of a set with these labels (N,): held-out parts do not overlap.

    Raises:
        DataError: If no class has a sample to hold out.
    """
    classes, y = np.unique(labels[rows], return_inverse=True)
    place = _places(y, mix(seed, 1))
    result = []
    for number in range(FOLDS if len(rows) <= SMALL else 1):
        held = (place >= number * HELD_OUT) & (place < (number + 1) * HELD_OUT)
        held &= _others(y, held)
        left = _left_out(len(classes), mix(seed, 2, number))
        kept = np.setdiff1d(np.arange(len(classes)), left)
        inside, outside = held & np.isin(y, kept), held & np.isin(y, left)
        if inside.sum() < 2:
            continue
        result.append(
            Fold(
                _draw(rows[~held & np.isin(y, kept)], FIT_ROWS, mix(seed, 3, number)),
                _draw(rows[inside], ID_ROWS, mix(seed, 4, number)),
                _draw(rows[outside], ID_ROWS, mix(seed, 5, number)),
                classes[kept],
            )
        )
    if not result:
        raise DataError(
            f"tune holds out a part of the samples of every class; got {len(rows)} samples of {len(classes)} classes: "
            "add samples, or train without it"
        )
    return result


def _places(labels: Rows, seed: int) -> NDArray[np.float64]:
    """A place within [0, 1) for each row, such that an interval has about its share of every class."""
    random = np.random.default_rng(seed)
    place = np.empty(len(labels))
    for c in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == c))
        place[rows] = (np.arange(len(rows)) + random.random()) / len(rows)
    return place


def _last_of_class(labels: Rows, place: NDArray[np.float64]) -> Rows:
    order = np.lexsort((place, labels))
    last: Rows = order[np.append(np.flatnonzero(np.diff(labels[order])), len(order) - 1)]
    return last


def _others(labels: Rows, held: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a class has a sample that is not held out, for each row."""
    others = np.bincount(labels[~held], minlength=int(labels.max()) + 1) > 0
    return others[labels]


def _left_out(classes: int, seed: int) -> Rows:
    """About a fifth of the classes, at least one; none if there are too few."""
    count = max(1, math.floor(LEFT_OUT * classes + 0.5)) if classes >= CLASSES else 0
    return np.sort(np.random.default_rng(seed).permutation(classes)[:count])


def _draw(rows: Rows, most: int, seed: int) -> Rows:
    """At most so many of the rows, in their order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(seed).permutation(rows)[:most])
