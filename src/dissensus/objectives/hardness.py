"""Which samples to disagree on: those that the ensemble itself finds hard."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dissensus.layout import check_labels, check_logits


def ensemble_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the mean logits: (M, B, C), (B,) -> (B,)."""
    check_logits(logits)
    check_labels(logits, labels)
    return F.cross_entropy(logits.mean(0), labels, reduction="none")


@torch.no_grad()
def hardness(logits: Tensor, labels: Tensor, *, batch_mean: Tensor | None = None) -> Tensor:
    """Per-sample weight alpha_n = CE_n / mean(CE)^2 of the ensemble's mean logits, Eq. 4 of the paper.

    (M, B, C), (B,) -> (B,), >= 0, without gradient. Proportional to the sample's loss, and larger overall the
    better the ensemble fits: its batch mean is 1 / mean(CE). Where the batch is fitted perfectly (mean CE = 0
    in the logits' precision) there is nothing to weigh and the hardness is zero. `batch_mean` replaces the
    mean over B when the batch is spread over several processes.
    """
    # detached: hardness weighs samples, it is not trained
    loss = ensemble_cross_entropy(logits, labels)
    mean = loss.mean() if batch_mean is None else batch_mean
    return torch.where(mean > 0, loss / mean / mean, 0.0)
