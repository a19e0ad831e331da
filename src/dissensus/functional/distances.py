"""Distances in feature space as scores: how far a sample lies from the training samples.

Covariances are shrunk towards a multiple of the identity by OAS (Chen et al., 2010), so they are invertible whatever
the features: fewer samples than dimensions, constant features, duplicates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dissensus.functional.fitted import FittedScore, Rows, check_classes, log_norm, unit
from dissensus.functional.moments import Moments
from dissensus.functional.scores import register

VARIANCE = 1e-12  # the least variance of a direction; directions of features have length 1
DEVIATION = 1e-3  # the least standard deviation of log |x|
LENGTH_PART = 6.0  # what the length is divided by beside the direction
SCALE_ROWS = 4096  # training samples whose distances give the scale of all


@register
class Mahalanobis(FittedScore):
    """Squared Mahalanobis distance to the nearest class mean, of L2-normalised features (MDS++, 2505.18032).

    min_c (u - mu_c)^T S^-1 (u - mu_c) with u = x / |x|: (B, D) -> (B,), at least 0. S is the covariance within classes,
    shared by all and shrunk.
    """

    name = "mahalanobis"
    mean: Tensor  # (D,)
    whiten: Tensor  # (D, D): (u - mean) @ whiten has covariance I within classes
    centres: Tensor  # (K, D), the whitened means of the classes that occur

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Fit means and covariance from sums over the training features."""
        mean, means, within, _, _ = _gaussian(features.moments)
        values, vectors = torch.linalg.eigh(within)
        whiten = vectors * values.rsqrt()
        state = {"mean": mean, "whiten": whiten, "centres": (means - mean) @ whiten}
        return {key: value.to(features.dtype) for key, value in state.items()}

    @property
    def width(self) -> int:
        """D."""
        return len(self.mean)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        return _nearest((unit(features) - self.mean.to(features)) @ self.whiten.to(features), self.centres)


@register
class RelativeMahalanobis(FittedScore):
    """Mahalanobis distance to the nearest class, less that to all training samples (Ren et al., 2021).

    min_c MD_c(u) - MD_0(u) with u = x / |x|: (B, D) -> (B,), any real number. MD_0 uses the mean and the covariance of
    all training samples, shrunk like the covariance within classes. What is unusual for any class cancels; what is
    unusual for the nearest class remains.
    """

    name = "relative_mahalanobis"
    mean: Tensor  # (D,)
    whiten: Tensor  # (D, D): (u - mean) @ whiten has covariance I within classes and diag(variance) in all
    centres: Tensor  # (K, D), the whitened means of the classes that occur
    variance: Tensor  # (D,)

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Fit means and both covariances, made diagonal by the same transform."""
        mean, means, within, total, _ = _gaussian(features.moments)
        values, vectors = torch.linalg.eigh(within)
        whiten = vectors * values.rsqrt()
        variance, rotation = torch.linalg.eigh(whiten.T @ total @ whiten)
        whiten = whiten @ rotation
        state = {"mean": mean, "whiten": whiten, "centres": (means - mean) @ whiten, "variance": variance}
        return {key: value.to(features.dtype) for key, value in state.items()}

    @property
    def width(self) -> int:
        """D."""
        return len(self.mean)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        z = (unit(features) - self.mean.to(features)) @ self.whiten.to(features)
        return _nearest(z, self.centres) - (z.square() / self.variance.to(z)).sum(1)


@register
class FeatureNorm(FittedScore):
    """How unusual the length of a feature vector is for its direction, be it too long or too short.

    ((log |x| - m - b.(u - mu)) / s)^2 with u = x / |x|: (B, D) -> (B,), at least 0. m, mu are means and s the standard
    deviation of log |x| in training; b is the regression of log |x| on u, with the shrunk covariance. Scores of
    L2-normalised features cannot see lengths: a wrong scale of the inputs, an empty image. Knowing the direction, the
    length of photographs' features varies half as much, which makes a doubled one stand out.
    """

    name = "feature_norm"
    mean: Tensor  # (D,), of u
    slope: Tensor  # (D,)
    centre: Tensor  # (), of log |x|
    deviation: Tensor  # ()

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Fit the regression to training features that are not zero."""
        lengths = features.moments.lengths
        n = max(lengths.n, 1)
        mean = lengths.directions / n
        total, _ = shrink(features.moments.products / n - torch.outer(mean, mean), n - 1)
        state = {
            "mean": mean,
            "slope": torch.linalg.solve(total, lengths.products / n - lengths.mean * mean),
            "centre": torch.tensor(lengths.mean, dtype=torch.float64),
            "deviation": torch.tensor(max(lengths.deviation, DEVIATION), dtype=torch.float64),
        }
        return {key: value.to(features.dtype) for key, value in state.items()}

    @property
    def width(self) -> int:
        """D."""
        return len(self.mean)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        return _length(features, unit(features), self.mean, self.slope, self.centre, self.deviation)


@register
class Gaussian(FittedScore):
    """How unusual direction and length of a feature vector are together: mahalanobis / d + feature_norm / 6.

    (B, D) -> (B,), at least 0. d is the standard deviation of the training samples' Mahalanobis distances, each to its
    class without itself. A weighted sum needs no calibration samples to rank its parts by, so this is the score for
    few of them. The weight makes the length count a quarter of the direction: feature_norm has a deviation of about
    sqrt(2).
    """

    name = "gaussian"
    mean: Tensor  # (D,), as of Mahalanobis
    whiten: Tensor  # (D, D), divided by sqrt(d)
    centres: Tensor  # (K, D), divided by sqrt(d)
    length_mean: Tensor  # (D,), as of FeatureNorm
    length_slope: Tensor  # (D,)
    length_centre: Tensor  # ()
    length_deviation: Tensor  # ()

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Fit both parts, and d to distances of at most 4096 training samples."""
        state = Mahalanobis.fit(features, labels)
        scale = _deviation(features, state["whiten"].double()) ** -0.5
        state |= {"whiten": scale * state["whiten"], "centres": scale * state["centres"]}
        return state | {f"length_{key}": value for key, value in FeatureNorm.fit(features, labels).items()}

    @property
    def width(self) -> int:
        """D."""
        return len(self.mean)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        u = unit(features)
        direction = _nearest((u - self.mean.to(u)) @ self.whiten.to(u), self.centres)
        length = _length(features, u, self.length_mean, self.length_slope, self.length_centre, self.length_deviation)
        return direction + length / LENGTH_PART


def shrink(covariance: Tensor, freedom: int) -> tuple[Tensor, float]:
    """Oracle approximating shrinkage of a covariance (D, D): (1 - r) S + r tr(S) / D I (Chen et al., 2010, Eq. 23).

    Also returns 1 - r.

    Args:
        covariance: S, of samples about their mean, or about the means of their classes.
        freedom: How many independent samples it comes from: N less the number of means.
    """
    D = len(covariance)
    mean, square = float(covariance.trace()) / D, float(covariance.square().sum())  # tr(S) / D, tr(S^2)
    excess = (freedom + 1 - 2 / D) * (square - D * mean**2)
    needed = (1 - 2 / D) * square + (D * mean) ** 2
    r = 1.0 if excess <= needed else max(0.0, needed / excess)
    identity = torch.eye(D, dtype=covariance.dtype)
    return (1 - r) * covariance + max(r * mean, VARIANCE) * identity, 1 - r


def _gaussian(moments: Moments) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Mean (D,), means of the K classes that occur (K, D), shrunk covariances within classes and in all (D, D), 1 - r.

    Both are shrunk alike, by what suits the one within classes: with few samples they would differ most where there are
    no data, and the difference of their distances would measure nothing else.
    """
    check_classes(moments)
    present = moments.counts > 0
    counts = moments.counts[present].double()
    N, K = int(counts.sum()), len(counts)
    means, mean = moments.sums[present] / counts[:, None], moments.sums.sum(0) / N
    between = (means - mean) * (counts / N).sqrt()[:, None]
    total = moments.products / N - torch.outer(mean, mean)
    scatter = between.T @ between
    within, kept = shrink(total - scatter, N - K)
    return mean, means, within, within + kept * scatter, kept


def _deviation(features: Rows, whiten: Tensor) -> float:
    """Standard deviation of the Mahalanobis distances of training samples to their classes without themselves.

    `whiten` (D, D) is that of all samples.

    Leaving a sample of a class of n out of N moves the mean away from it by 1 / (n - 1) of their difference e, and
    takes k e e^T from the covariance, k = (1 - r) n / ((n - 1) N), r the shrinkage: the distance q becomes
    (n / (n - 1))^2 q / (1 - k q) (Sherman and Morrison).
    """
    moments, sample = features.moments, features.sample
    kept = _gaussian(moments)[-1]
    labels = sample.labels
    several = (moments.counts[labels] > 1).nonzero().flatten()
    rows = several[torch.linspace(0, len(several) - 1, min(len(several), SCALE_ROWS)).long()]
    counts = moments.counts[labels[rows]].double()
    means = moments.sums[labels[rows]] / counts[:, None]
    q = ((unit(sample.features[rows].double()) - means) @ whiten).square().sum(1)
    grown = counts / (counts - 1)
    alone = grown.square() * q / (1 - kept * grown * q / float(moments.counts.sum())).clamp(min=1e-6)
    deviation = float(alone.std(correction=0))
    return deviation if deviation > 1e-6 * max(float(alone.mean()), 1.0) else 1.0


def _length(x: Tensor, u: Tensor, mean: Tensor, slope: Tensor, centre: Tensor, deviation: Tensor) -> Tensor:
    """Squared deviations of log |x| from what the direction u = x / |x| leads to expect: (B, D), (B, D) -> (B,)."""
    expected = centre.to(x) + (u - mean.to(x)) @ slope.to(x)
    return ((log_norm(x) - expected) / deviation.to(x)).square()


def _nearest(z: Tensor, centres: Tensor) -> Tensor:
    """Squared distance to the nearest of K centres: (B, D), (K, D) -> (B,).

    The nearest is found by one product; its distance is computed from the difference, where nothing cancels.
    """
    centres = centres.to(z)
    nearest = (centres.square().sum(1) / 2 - z @ centres.T).argmin(1)
    return (z - centres[nearest]).square().sum(1)
