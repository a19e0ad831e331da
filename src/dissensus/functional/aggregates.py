"""From the members to one answer: logits (M, B, C) to log-probabilities (B, C), and which members to keep.

An answer's class is its argmax, the lowest class where several tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError
from dissensus.functional.checks import check_logits, full_precision

__all__ = [
    "AGGREGATES",
    "OF_WEIGHTS",
    "authors_vote",
    "greedy_soup",
    "oracle",
    "prediction",
    "probability",
    "restrict",
    "vote",
]


def prediction(logits: Tensor) -> Tensor:
    """Prediction ensemble: log softmax of the mean logits, (M, B, C) -> (B, C)."""
    check_logits(logits)
    return full_precision(logits).mean(dim=0).log_softmax(dim=-1)


def probability(logits: Tensor) -> Tensor:
    """Probability ensemble: log of the mean probability, (M, B, C) -> (B, C).

    Finite however sure the members are.
    """
    check_logits(logits)
    return full_precision(logits).log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))


def vote(logits: Tensor) -> Tensor:
    """Plurality vote: log of the share of members that predict each class, (M, B, C) -> (B, C).

    -inf where nobody does. A member whose classes tie votes for the lowest of them.
    """
    check_logits(logits)
    M, B, C = logits.shape
    ballots = logits.argmax(dim=-1).T
    dtype = torch.promote_types(logits.dtype, torch.float32)
    votes = torch.zeros(B, C, dtype=dtype, device=logits.device)
    votes.scatter_add_(1, ballots, torch.ones_like(ballots, dtype=dtype))
    return (votes / M).log()


AGGREGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "prediction": prediction,
    "probability": probability,
    "vote": vote,
}
"""Every aggregate of logits by its name."""

OF_WEIGHTS: dict[str, str] = {
    "soup": "Uniform soup: one model with the mean of all members' weights.",
    "greedy-soup": "Greedy soup: the mean of the members that help on held-out data.",
    "oracle": "Oracle selection: the member that is best on the test set itself.",
}
"""What is made of whole members instead of their logits, and a line about each."""


def restrict(logits: Tensor, subset: Tensor | Sequence[int]) -> Tensor:
    """Only these classes, in this order: (..., C) -> (..., len(subset)).

    The usual protocol for a test set that has a part of the classes: restrict first, then aggregate. Labels
    are then positions in `subset`.
    """
    return logits[..., torch.as_tensor(subset, device=logits.device)]


def authors_vote(logits: Tensor, subset: Tensor | Sequence[int]) -> Tensor:
    """Vote over all classes, then keep these: (M, B, C) -> (B, len(subset)), log of shares of M.

    What the code released with the paper does on ImageNet-A and -R. Votes for other classes are lost, so
    shares may sum to less than 1; a sample that loses them all is -inf throughout, and its argmax is 0.
    """
    return restrict(vote(logits), subset)


def greedy_soup(order: Sequence[int], accuracy: Callable[[list[int]], float]) -> list[int]:
    """Members whose weights to average, by the greedy recipe of Wortsman et al. (2022).

    `order` names members from best to worst on held-out data; `accuracy` gives the held-out accuracy of the
    soup of the members it is given. Starts with the best and adds each next one unless accuracy falls.
    """
    if not order:
        raise DissensusError("a greedy soup needs a member; got an empty order: list members, best first")
    kept = [order[0]]
    best = accuracy(list(kept))
    for member in order[1:]:
        trial = accuracy([*kept, member])
        if trial >= best:
            kept.append(member)
            best = trial
    return kept


def oracle(member_accuracy: Tensor) -> int:
    """The member that is best on the test set itself: (M,) -> its index, the lowest where several tie."""
    if member_accuracy.ndim != 1 or len(member_accuracy) == 0:
        raise ShapeError(
            f"member accuracies must be (M,) with M >= 1; got {tuple(member_accuracy.shape)}: give one number a member"
        )
    return int(member_accuracy.argmax())
