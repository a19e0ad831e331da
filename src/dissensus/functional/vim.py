"""Virtual-logit matching: the part of a feature vector outside the principal subspace of the training features."""

from __future__ import annotations

import torch
from torch import Tensor

from dissensus._core.errors import DissensusError
from dissensus.functional.fitted import FittedScore, Head, Rows, unit
from dissensus.functional.scores import register


@register
class ViM(FittedScore):
    """Virtual-logit matching (Wang et al., 2022), of L2-normalised features.

    a |R^T (u - o)| - log sum_c exp z_c with u = x / |x| and z the mean logits: (B, D), (M, B, C) -> (B,), any real
    number. R spans the orthogonal complement of the principal subspace of the training features about o, the point
    where the logits of a linear head are 0, else the mean. a makes the first term as large as the largest logit, on
    average in training.
    """

    name = "vim"
    origin: Tensor  # (D,)
    residual: Tensor  # (D, D - d)
    alpha: Tensor  # ()

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Fit the principal space to sums over the training features, and a to logits of a sample of them."""
        if features.logits is None:
            raise DissensusError("score 'vim' is fitted to logits too; got features alone: give Rows logits=")
        moments, sample = features.moments, features.sample
        N, sums = int(moments.counts.sum()), moments.sums.sum(0)
        origin = sums / N if features.head is None else _zero(features.head)
        cross = torch.outer(sums, origin)
        scatter = moments.products - cross - cross.T + N * torch.outer(origin, origin)
        values, vectors = torch.linalg.eigh(scatter / N)
        residual = vectors[:, : len(values) - _principal(values)]
        total = torch.zeros((), dtype=torch.float64)
        for rows in torch.split(sample.peak_rows, 4096):
            total += ((unit(sample.features[rows].double()) - origin) @ residual).norm(dim=1).sum()
        norm, peak = float(total) / len(sample.peak_rows), float(sample.peaks.double().mean())
        alpha = max(0.0, peak / norm) if norm > 1e-9 else 0.0  # nothing beside the principal space: the energy alone
        state = {"origin": origin, "residual": residual.contiguous(), "alpha": torch.tensor(alpha, dtype=torch.float64)}
        return {key: value.to(features.dtype) for key, value in state.items()}

    @property
    def width(self) -> int:
        """D."""
        return len(self.origin)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        beside: Tensor = ((unit(features) - self.origin.to(features)) @ self.residual.to(features)).norm(dim=1)
        return self.alpha.to(features) * beside - logits.to(features).mean(0).logsumexp(1)


def _zero(head: Head) -> Tensor:
    """The point of least length whose logits are 0, in units of L2-normalised features: (D,)."""
    weight, bias = head.weight.detach().cpu().double(), head.bias.detach().cpu().double()
    zero: Tensor = -(torch.linalg.pinv(weight) @ bias) / weight.shape[1] ** 0.5
    return zero


def _principal(values: Tensor) -> int:
    """Number of principal directions, given the variances (D,): the paper's, at most half of those that vary."""
    D = len(values)
    rank = int((values > D * torch.finfo(values.dtype).eps * values[-1]).sum())
    return min(1000 if D > 1500 else 512, rank // 2)
