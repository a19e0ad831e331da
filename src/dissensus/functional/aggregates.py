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

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError
from dissensus._core.registry import Registry
from dissensus.functional import soups
from dissensus.functional.checks import check_logits, full_precision
from dissensus.functional.soups import Loss

Kind = Literal["logits", "weights", "members"]
Mixture = list[int] | Tensor
"""A soup: the members whose weights to average, or the share of each, (M,); with a pretrained tail (M + 1,)."""
Accuracy = Callable[[Mixture], float]
"""Held-out accuracy of a soup."""
INPUTS = ("count", "accuracy", "loss", "labels")
ALPHAS = tuple(tenth / 10 for tenth in range(11))


@dataclass(frozen=True)
class Aggregate:
    """A way to get one answer from M members, and how tables show it.

    Attributes:
        name: Its key in `AGGREGATES`.
        heading: Its name in tables.
        kind: What `function` works on.
            logits: (M, B, C) -> log-probabilities (B, C).
            weights: what its parameters name -> a `Mixture`; `count` of members, and of the held-out set `accuracy`
                and `loss` of a soup and `labels` (N,), None where there is no such set.
            members: a metric of each member alone, (M,) -> ().
        function: The aggregate itself; calling the `Aggregate` calls it.
        held_out: Whether an aggregate of weights needs held-out data.
        pretrained: Whether it mixes the members with the backbone's own tail, and so is left out without one.
    """

    name: str
    heading: str
    kind: Kind
    function: Callable[..., Any]
    held_out: bool = False
    pretrained: bool = False

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call `function`."""
        return self.function(*args, **options)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the function's parameters."""
        return tuple(inspect.signature(self.function).parameters)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]


AGGREGATES: Registry[Aggregate] = Registry("aggregate")
"""Every registered aggregate by name, in the order of tables."""

_F = TypeVar("_F", bound=Callable[..., Any])


def register(heading: str, *, kind: Kind, held_out: bool = False, pretrained: bool = False) -> Callable[[_F], _F]:
    """Add the decorated function to `AGGREGATES` under its name, with dashes for underscores.

    Args:
        heading: Its name in tables.
        kind: What it works on, see `Aggregate`.
        held_out: Whether an aggregate of weights needs held-out data.
        pretrained: Whether it mixes the members with the backbone's own tail.
    """

    def add(function: _F) -> _F:
        name = function.__name__.replace("_", "-")
        entry = Aggregate(name, heading, kind, function, held_out, pretrained)
        if kind == "weights" and not set(entry.inputs) <= set(INPUTS):
            raise DissensusError(
                f"the parameters of an aggregate of weights must be among {', '.join(INPUTS)}; got "
                f"{', '.join(entry.inputs)}"
            )
        AGGREGATES.add(name, entry)
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
def soup(count: int) -> list[int]:
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


@register("learned soup", kind="weights", held_out=True)
def learned_soup(count: int, loss: Loss, accuracy: Accuracy, labels: Tensor) -> Tensor:
    """Learned soup: the weighted mean of the members' weights with the lowest cross-entropy on held-out data.

    The recipe of Wortsman et al. (2022), pulled towards the uniform soup where labels are few: see `soups`. On the
    held-out data its cross-entropy is at most that of the uniform soup, and at most log(M) / N above the greedy one's.
    Labels of one class cannot tell a good member from one that always predicts this class, so they give the uniform
    soup.

    Args:
        count: Number of members, M.
        loss: Mean held-out cross-entropy of a soup.
        accuracy: Held-out accuracy of a soup, for the greedy one, from which the search starts too.
        labels: Held-out labels (N,).

    Returns:
        The share of each member: (M,), at least 0, with sum 1.
    """
    if count < 1:
        raise DissensusError(f"a learned soup needs at least one member; got {count}")
    if count == 1 or _one_class(labels):
        return soups.uniform(count)
    return soups.learn(loss, count, len(labels), other=soups.shares(greedy_soup(count, accuracy), count))


@register("wise", kind="weights", pretrained=True)
def wise(count: int, accuracy: Accuracy | None = None, labels: Tensor | None = None) -> Tensor:
    """WiSE: the uniform soup mixed with the backbone's own tail, where that has the same classes.

    alpha * soup + (1 - alpha) * pretrained, as Wortsman et al. (2022) for robust fine-tuning. Of alpha = 0, 0.1 .. 1,
    the one with the highest held-out accuracy; of equals the one nearest to 0.5, then the smallest. Without held-out
    data, or with labels of one class only, alpha is 0.5, which the authors recommend where it cannot be chosen.

    Args:
        count: Number of members, M.
        accuracy: Held-out accuracy of a mixture, (M + 1,); None without held-out data.
        labels: Held-out labels (N,).

    Returns:
        The share of each member, and last of the backbone's tail: (M + 1,), at least 0, with sum 1.
    """

    def mixture(alpha: float) -> Tensor:
        return torch.cat([alpha * soups.uniform(count), torch.tensor([1 - alpha], dtype=torch.float64)])

    if accuracy is None or labels is None or _one_class(labels):
        return mixture(0.5)
    return mixture(max(ALPHAS, key=lambda alpha: (accuracy(mixture(alpha)), -abs(round(10 * alpha) - 5))))


@register("members alone", kind="members")
def members(values: Tensor) -> Tensor:
    """Single members: the mean of what each reaches alone, (M,) -> ()."""
    return _check_values(values).mean()


@register("oracle", kind="members")
def oracle(values: Tensor) -> Tensor:
    """Oracle selection: the member that is best on the test set itself, (M,) -> ()."""
    return _check_values(values).max()


def _one_class(labels: Tensor) -> bool:
    return bool((labels == labels[0]).all())


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
