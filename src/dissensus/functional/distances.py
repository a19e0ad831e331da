"""Distances in feature space as scores: how far a sample lies from the training samples."""

from __future__ import annotations

import torch
from torch import Tensor

from dissensus.functional.fitted import FittedScore, Rows, check_classes, unit
from dissensus.functional.scores import register


@register
class Mahalanobis(FittedScore):
    """Squared Mahalanobis distance to the nearest class mean, of L2-normalised features (MDS++, 2505.18032).

    min_c (u - mu_c)^T S^-1 (u - mu_c) with u = x / |x|: (B, D) -> (B,), at least 0. S is the covariance within classes,
    shared by all, shrunk towards a multiple of the identity by OAS (Chen et al., 2010).
    """

    name = "mahalanobis"
    mean: Tensor  # (D,)
    whiten: Tensor  # (D, D): (u - mean) @ whiten has covariance I within classes
    centres: Tensor  # (K, D), the whitened means of the classes that occur

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Fit means and covariance from sums over the training features."""
        moments = features.moments
        check_classes(moments)
        present = moments.counts > 0
        counts = moments.counts[present].double()
        means, mean = moments.sums[present] / counts[:, None], moments.sums.sum(0) / counts.sum()
        within = (moments.products - (means * counts[:, None]).T @ means) / counts.sum()
        values, vectors = torch.linalg.eigh(within)
        whiten = vectors * values.clamp(min=1e-12).rsqrt()
        return {"mean": mean, "whiten": whiten, "centres": (means - mean) @ whiten}

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        z = (unit(features) - self.mean.to(features)) @ self.whiten.to(features)
        return torch.cdist(z, self.centres.to(features)).square().amin(1)
