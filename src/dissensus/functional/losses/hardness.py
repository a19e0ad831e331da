"""Which samples to disagree on: those that the ensemble itself finds hard."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dissensus._core.errors import ShapeError
from dissensus.functional.checks import check_labels, check_logits


def ensemble_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the mean logits: (M, B, C), (B,) -> (B,)."""
    check_logits(logits)
    check_labels(logits, labels)
    return F.cross_entropy(logits.mean(0), labels, reduction="none")


@torch.no_grad()
def hardness(logits: Tensor, labels: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Per-sample weight alpha_n = CE_n / mean(CE)^2 of the ensemble's mean logits, Eq. 4 of the paper.

    (M, B, C), (B,) -> (B,), >= 0, without gradient. Proportional to the sample's loss, and larger overall the
    better the ensemble fits: its batch mean is 1 / mean(CE). Where the batch is fitted perfectly (mean CE = 0
    in the logits' precision) there is nothing to weigh and the hardness is zero. With `sample_weight` (B,) the mean
    is the weighted one; the sample's own weight is not part of its hardness.
    """
    # detached: hardness weighs samples, it is not trained
    losses = ensemble_cross_entropy(logits, labels)
    return weigh(losses, (losses * relative(logits, sample_weight)).mean())


def relative(logits: Tensor, sample_weight: Tensor | None) -> Tensor:
    """What samples count for beside each other: weights (B,) over their mean; ones where there are none."""
    if sample_weight is None:
        return logits.new_ones(logits.shape[1])
    if sample_weight.shape != logits.shape[1:2]:
        raise ShapeError(f"sample_weight must be ({logits.shape[1]},), one a sample; got {tuple(sample_weight.shape)}")
    return sample_weight.to(logits) / sample_weight.to(logits).mean()


def weigh(losses: Tensor, mean: Tensor) -> Tensor:
    """Hardness from the ensemble's losses (B,) and their mean, which may be over more samples than are here."""
    return torch.where(mean > 0, losses / mean / mean, 0.0)
