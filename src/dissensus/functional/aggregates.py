"""From M members to one answer: of their logits, of their weights, or of how good each is alone.

The predicted class is the argmax of an answer, the lowest class where several tie. `AGGREGATES` holds every aggregate;
evaluation, tables and report list what it holds, and your own joins it with the same decorator:

>>> @register("median", kind="logits")
... def median(logits):
...     return logits.median(dim=0).values.log_softmax(dim=-1)
>>> AGGREGATES["median"](torch.zeros(3, 1, 2))
tensor([[-0.6931, -0.6931]])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError
from dissensus._core.registry import Registry
from dissensus.functional.checks import check_logits, full_precision

Kind = Literal["logits", "weights", "members"]
Accuracy = Callable[[list[int]], float]
"""Held-out accuracy of the model whose weights are the mean of these members'."""


@dataclass(frozen=True)
class Aggregate:
    """A way to get one answer from M members, and how tables show it.

    Attributes:
        name: Its key in `AGGREGATES`.
        heading: Its name in tables.
        kind: What `function` works on.
            logits: (M, B, C) -> log-probabilities (B, C).
            weights: number of members and `Accuracy` -> list of the members whose weights to average.
            members: a metric of each member alone, (M,) -> ().
        function: The aggregate itself; calling the `Aggregate` calls it.
        held_out: Whether an aggregate of weights needs held-out data for its `Accuracy`.
    """

    name: str
    heading: str
    kind: Kind
    function: Callable[..., Any]
    held_out: bool = False

    def __call__(self, *args: Any) -> Any:
        """Call `function`."""
        return self.function(*args)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]


AGGREGATES: Registry[Aggregate] = Registry("aggregate")
"""Every registered aggregate by name, in the order of tables."""

_F = TypeVar("_F", bound=Callable[..., Any])


def register(heading: str, *, kind: Kind, held_out: bool = False) -> Callable[[_F], _F]:
    """Add the decorated function to `AGGREGATES` under its name, with dashes for underscores.

    Args:
        heading: Its name in tables.
        kind: What it works on, see `Aggregate`.
        held_out: Whether an aggregate of weights needs held-out data.
    """

    def add(function: _F) -> _F:
        name = function.__name__.replace("_", "-")
        AGGREGATES.add(name, Aggregate(name, heading, kind, function, held_out))
        return function

    return add


def of_kind(kind: Kind) -> Registry[Aggregate]:
    """The aggregates of one kind, by name."""
    return Registry("aggregate", {name: entry for name, entry in AGGREGATES.items() if entry.kind == kind})


@register("ensemble", kind="logits")
def prediction(logits: Tensor) -> Tensor:
    """Prediction ensemble: log softmax of the mean logits, (M, B, C) -> (B, C)."""
    check_logits(logits)
    return full_precision(logits).mean(dim=0).log_softmax(dim=-1)


@register("mean probability", kind="logits")
def probability(logits: Tensor) -> Tensor:
    """Probability ensemble: log of the mean probability, (M, B, C) -> (B, C).

    Finite however sure the members are.
    """
    check_logits(logits)
    return full_precision(logits).log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))


@register("vote", kind="logits")
def vote(logits: Tensor) -> Tensor:
    """Plurality vote: log of the share of members that predict each class, (M, B, C) -> (B, C).

    -inf for a class that no member predicts. A member whose classes tie votes for the lowest of them.
    """
    check_logits(logits)
    M, B, C = logits.shape
    ballots = logits.argmax(dim=-1).T
    dtype = torch.promote_types(logits.dtype, torch.float32)
    votes = torch.zeros(B, C, dtype=dtype, device=logits.device)
    votes.scatter_add_(1, ballots, torch.ones_like(ballots, dtype=dtype))
    return (votes / M).log()


@register("uniform soup", kind="weights")
def soup(count: int, accuracy: Accuracy | None = None) -> list[int]:
    """Uniform soup: one model with the mean of all members' weights."""
    return list(range(count))


@register("greedy soup", kind="weights", held_out=True)
def greedy_soup(count: int, accuracy: Accuracy) -> list[int]:
    """Greedy soup: the mean weights of the members that help on held-out data.

    The recipe of Wortsman et al. (2022): start with the best member and add the others, from best to worst, unless the
    held-out accuracy falls.

    Args:
        count: Number of members.
        accuracy: Held-out accuracy of the soup of the members it is given.

    Returns:
        The members whose weights to average.
    """
    if count < 1:
        raise DissensusError(f"a greedy soup needs at least one member; got {count}")
    alone = [accuracy([i]) for i in range(count)]
    first, *others = sorted(range(count), key=lambda i: -alone[i])
    chosen, best = [first], alone[first]
    for member in others:
        trial = accuracy([*chosen, member])
        if trial >= best:
            chosen.append(member)
            best = trial
    return chosen


@register("members alone", kind="members")
def members(values: Tensor) -> Tensor:
    """Single members: the mean of what each reaches alone, (M,) -> ()."""
    return _check_values(values).mean()


@register("oracle", kind="members")
def oracle(values: Tensor) -> Tensor:
    """Oracle selection: the member that is best on the test set itself, (M,) -> ()."""
    return _check_values(values).max()


def _check_values(values: Tensor) -> Tensor:
    if values.ndim != 1 or len(values) == 0:
        raise ShapeError(f"members' values must be (M,) with M >= 1; got {tuple(values.shape)}: give one per member")
    return values


def restrict(logits: Tensor, subset: Tensor | Sequence[int]) -> Tensor:
    """Keep only these classes, in this order: (..., C) -> (..., len(subset)).

    The usual protocol for a test set that has some of the classes: restrict first, then aggregate. Labels are then
    positions in `subset`.
    """
    return logits[..., torch.as_tensor(subset, device=logits.device)]


def authors_vote(logits: Tensor, subset: Tensor | Sequence[int]) -> Tensor:
    """Vote over all classes, then keep these: (M, B, C) -> (B, len(subset)), log of shares of M.

    What the code released with the paper does on ImageNet-A and -R. Votes for other classes are lost, so
    shares may sum to less than 1; a sample that loses them all is -inf throughout, and its argmax is 0.
    """
    return restrict(vote(logits), subset)
