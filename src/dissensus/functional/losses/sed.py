"""Scalable Ensemble Diversification: Eq. 6 of the paper, as it reads."""

from __future__ import annotations

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from dissensus._core.errors import UnknownNameError
from dissensus.functional.checks import check_labels, check_logits
from dissensus.functional.losses.disagreement import a2d, divdis
from dissensus.functional.losses.hardness import hardness, relative

Regulariser = Literal["a2d", "divdis"]
REGULARISERS: tuple[str, ...] = get_args(Regulariser)


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Every member's own loss on every sample: (M, B, C), (B,) -> (M, B)."""
    check_logits(logits)
    check_labels(logits, labels)
    M, B, C = logits.shape
    flat = F.cross_entropy(
        logits.reshape(M * B, C), labels.repeat(M), reduction="none", label_smoothing=label_smoothing
    )
    return flat.view(M, B)


def sed(
    logits: Tensor,
    labels: Tensor,
    diversity: float,
    label_smoothing: float = 0.0,
    regulariser: Regulariser = "a2d",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """The SED loss: fit every sample, disagree on the hard ones. (M, B, C), (B,) -> ().

    mean CE + diversity/2 * mean_n(hardness_n * a2d_n). The half is the paper's: it sums over the M(M-1)/2
    pairs and divides by M(M-1). Mutual information is a quantity of the batch, not of a sample; with
    `regulariser="divdis"` hardness weighs the samples inside it and its mean scales it:
    diversity/2 * mean(hardness) * divdis(logits, weights=hardness), which for equal hardness is the same form.
    With `sample_weight` (B,) every mean over samples is the weighted one: a sample of weight 2 counts as if it were
    there twice, one of weight 0 as if it were not; only the weights' ratios matter.
    """
    weight = relative(logits, sample_weight)
    main = (weight * cross_entropy(logits, labels, label_smoothing)).mean()
    if not diversity:
        return main
    alpha = weight * hardness(logits, labels, sample_weight)
    if regulariser == "a2d":
        return main + diversity / 2 * (alpha * a2d(logits)).mean()
    if regulariser == "divdis":
        return main + diversity / 2 * alpha.mean() * divdis(logits, alpha)
    raise UnknownNameError("regulariser", regulariser, REGULARISERS)
