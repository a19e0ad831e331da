"""The numbers behind the charts, from plain arrays: thresholds, shares, curves and bins. Scores: higher = more OOD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BINS = 30
POINTS = 120  # of a ROC curve, at most
CALIBRATION_BINS = 15  # as metrics.ece


def above(scores: Array, limit: float) -> float:
    """The share of samples that score above the limit."""
    return float((scores > limit).mean())


@dataclass(frozen=True)
class Histogram:
    """Shares of samples between edges; the outermost bins include the samples beyond."""

    edges: Array  # (B + 1,)
    shares: Mapping[str, Array]  # (B,) each, summing to 1


def histogram(groups: Mapping[str, Array], bins: int = BINS) -> Histogram:
    """Common bins for all groups: one per whole number, else equal ones between the 0.1% and 99.9% quantiles."""
    pooled = np.concatenate(list(groups.values()))
    low, high = float(pooled.min()), float(pooled.max())
    if high - low <= bins and bool((pooled == np.round(pooled)).all()):
        edges = np.arange(low, high + 2) - 0.5
    else:
        low, high = (float(q) for q in np.quantile(pooled, (0.001, 0.999)))
        if not high - low > 1e-9 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        edges = np.linspace(low, high, bins + 1)
    shares = {
        name: np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / len(values)
        for name, values in groups.items()
    }
    return Histogram(edges, shares)


@dataclass(frozen=True)
class Roc:
    """Share of OOD samples caught against share of ID samples flagged, from (0, 0) to (1, 1)."""

    flagged: Array
    caught: Array

    @property
    def area(self) -> float:
        """AUROC: ties are straight lines, so that they count half."""
        return float(np.trapezoid(self.caught, self.flagged))

    def at(self, flagged: float) -> float:
        """The share caught at a share of false alarms, interpolated."""
        return float(np.interp(flagged, self.flagged, self.caught))

    def thinned(self, points: int = POINTS) -> Roc:
        """At most `points` points, evenly along the line: enough to draw it."""
        way = self.flagged + self.caught
        if len(way) <= points:
            return self
        kept = np.unique(np.searchsorted(way, np.linspace(0, way[-1], points)))
        kept[-1] = len(way) - 1
        return Roc(self.flagged[kept], self.caught[kept])


def roc(inside: Array, outside: Array) -> Roc:
    """The curve over all thresholds."""
    values, place = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    flagged, caught = (
        np.concatenate([[0.0], np.cumsum(np.bincount(where, minlength=len(values))[::-1]) / len(where)])
        for where in (place[: len(inside)], place[len(inside) :])
    )
    return Roc(flagged, caught)


@dataclass(frozen=True)
class Reliability:
    """Accuracy by confidence; `error` is the expected calibration error, within [0, 1]."""

    confidence: Array  # mean of each bin that holds samples
    accuracy: Array
    count: Array
    error: float


def reliability(confidence: Array, correct: Array, bins: int = CALIBRATION_BINS) -> Reliability:
    """Equal bins over [0, 1]; the error is the mean gap between confidence and accuracy, weighted by samples."""
    place = np.clip((confidence * bins).astype(int), 0, bins - 1)
    count = np.bincount(place, minlength=bins).astype(float)
    there = count > 0
    mean = np.bincount(place, confidence, bins)[there] / count[there]
    right = np.bincount(place, correct, bins)[there] / count[there]
    gap = float((np.abs(mean - right) * count[there]).sum() / len(confidence))
    return Reliability(mean, right, count[there], gap)


def agreement(votes: NDArray[np.int64]) -> Array:
    """Votes (M, N) -> (M, M): the share of samples on which two members predict the same class."""
    return np.stack([(votes == member).mean(axis=1, dtype=float) for member in votes])


def chance(share: float, count: int) -> float:
    """Two standard errors of a share measured on `count` samples: a smaller difference may be luck."""
    return 2 * math.sqrt(max(share * (1 - share), 1 / (4 * count)) / count) if count else 1.0
