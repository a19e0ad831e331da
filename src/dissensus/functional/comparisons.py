"""Comparisons of scores, answers and members: placements, whose mean is the AUROC, accuracy gaps, disagreement."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def placements(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """The share of OOD samples above each ID sample, and of ID samples below each OOD one; ties count half.

    (n,), (m,) -> (n,), (m,) float64; the mean of either is the AUROC.

    >>> placements(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0]))
    (tensor([1.0000, 0.2500], dtype=torch.float64), tensor([0.5000, 0.7500], dtype=torch.float64))
    """
    return 1 - _below(outside, inside), _below(inside, outside)


def _below(others: Tensor, scores: Tensor) -> Tensor:
    """The share of `others` (m,) below each score (n,), ties counted half."""
    ordered, scores = others.sort().values, scores.contiguous()
    low = torch.searchsorted(ordered, scores).double()
    return (low + torch.searchsorted(ordered, scores, right=True)) / (2 * len(others))


def accuracy_gap(correct: Tensor, best: Tensor) -> tuple[float, float]:
    """How much less accurate answers are than the best ones on the same samples, and the standard error: 0/1 (n,)."""
    difference = best.double() - correct.double()
    return float(difference.mean()), float(difference.std(correction=0)) / math.sqrt(len(difference))


def disagreement(votes: Tensor) -> Tensor:
    """The share of pairs of members that predict different classes: (M, B) -> (B,) float32; of one member 0.

    >>> disagreement(torch.tensor([[0, 1], [0, 1], [0, 2]]))
    tensor([0.0000, 0.6667])
    """
    members = len(votes)
    if members == 1:
        return torch.zeros(votes.shape[1:])
    agreeing = torch.stack([(votes == vote).sum(0) for vote in votes]).sum(0) - members  # each pair twice
    return 1 - agreeing.float() / (members * (members - 1))
