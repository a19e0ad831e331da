"""OODness of a sample, read from the logits of the members: higher = more OOD, always.

Every score takes finite logits (M, B, C) and returns (B,). p^m is the softmax of member m; "the paper" is
Scalable Ensemble Diversification. Half precision is computed in float32, float64 stays float64. `SCORES`
holds them by name, and your own joins them with the same decorator:

>>> @register
... def spread(logits):
...     return logits.std(dim=0).mean(dim=-1)
>>> SCORES["spread"](torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]]))
tensor([1.4142])
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError
from dissensus._core.registry import Registry
from dissensus.functional.checks import check_logits, full_precision
from dissensus.functional.fitted import FittedScore

Score = Callable[..., Tensor]
"""Logits (M, B, C), and options by keyword, to (B,); higher = more OOD."""

SCORES: Registry[Score | type[FittedScore]] = Registry("score")
"""Every registered score by its name: functions of logits, and classes of scores that are fitted to features."""

# 4 MB of float32: entropies run 2x faster than with chunks of 2**23, which no cache holds.
CHUNK_ELEMENTS = 2**20

_S = TypeVar("_S", bound=Callable[..., Tensor])
_F = TypeVar("_F", bound=type[FittedScore])


@overload
def register(score: _F) -> _F: ...


@overload
def register(score: _S) -> _S: ...


def register(score: Any) -> Any:
    """Add a function of logits to `SCORES` under its own name, or a `FittedScore` under its `name`.

    A function is returned checked, upcast and chunked. It is called with float32 or float64 logits (M, b, C), a part of
    the batch at a time, and must treat samples independently: (b,) out. Temporaries stay bounded however large the
    logits, which may be memory-mapped.

    Raises:
        DissensusError: If the name is taken.
    """
    if isinstance(score, type) and issubclass(score, FittedScore):
        SCORES.add(score.name, score)
        return score
    name = score.__name__

    @functools.wraps(score)
    def chunked(logits: Tensor, *args: Any, **options: Any) -> Tensor:
        check_logits(logits)
        M, B, C = logits.shape
        rows = max(1, CHUNK_ELEMENTS // (M * max(M, C)))  # a table of member pairs is (M, b, M)
        parts = []
        for start in range(0, max(B, 1), rows):
            chunk = full_precision(logits[:, start : start + rows])
            part = score(chunk, *args, **options)
            if part.shape != chunk.shape[1:2]:
                raise ShapeError(
                    f"score {name!r} must return (B,); got {tuple(part.shape)} for logits "
                    f"{tuple(chunk.shape)}: reduce members and classes, keep samples"
                )
            parts.append(part)
        return torch.cat(parts)

    SCORES.add(name, chunked)
    return chunked


def is_fitted(name: str) -> bool:
    """Whether a score is one of features, to be fitted first."""
    return isinstance(SCORES[name], type)


def of_logits() -> dict[str, Score]:
    """The scores that are functions of logits, by name."""
    return {name: score for name, score in SCORES.items() if not isinstance(score, type)}


def of_features() -> dict[str, type[FittedScore]]:
    """The scores that are fitted to features, by name."""
    return {name: score for name, score in SCORES.items() if isinstance(score, type)}


def compute(name: str, logits: Tensor, features: Tensor | None, fitted: Mapping[str, FittedScore]) -> Tensor:
    """Return any score of samples: logits (M, B, C) and features (B, ...) -> (B,), on the device of the logits.

    Args:
        name: A name in `SCORES`.
        logits: The members' logits.
        features: What they were computed from; scores of logits do without.
        fitted: The fitted scores at hand, by name; moved to the device of the logits.

    Raises:
        DissensusError: If the score is unknown, or has not been fitted.
    """
    score = SCORES[name]
    if not isinstance(score, type):
        return score(logits)
    if name not in fitted or features is None:
        raise DissensusError(
            f"score {name!r} must be fitted to training features; this ensemble has {', '.join(fitted) or 'none'}: "
            "train it again, or use a score of logits such as pds"
        )
    return fitted[name].to(logits.device)(features.to(logits.device), logits)


@register
def pds(logits: Tensor, *, normalize: bool = False) -> Tensor:
    """Predictive Diversity Score: how many classes the members name between them.

    sum_c max_m p^m_c: (M, B, C) -> (B,), within [1, min(M, C)]; where members are certain, the number of
    distinct predictions. `normalize` divides by C, as in Eq. 8 of the paper; its tables print the sum.
    """
    M, _, C = logits.shape
    total = logits.softmax(dim=-1).amax(dim=0).sum(dim=-1).clamp(1, min(M, C))
    return total / C if normalize else total


@register
def bma(logits: Tensor) -> Tensor:
    """Bayesian model average: how unsure the mean prediction is.

    1 - max_c mean_m p^m_c: (M, B, C) -> (B,), within [0, 1 - 1/C]. Eq. 7 of the paper, turned so that higher
    is more OOD.
    """
    probs = logits.softmax(dim=-1).mean(dim=0)
    # the sum of the other classes, not 1 - max, which is 0 for every sample surer than 1 - 6e-8
    return probs.scatter_(-1, probs.argmax(dim=-1, keepdim=True), 0).sum(dim=-1)


@register
def a2d(logits: Tensor) -> Tensor:
    """A2D score: how strongly pairs of members disagree.

    Mean over ordered pairs m != l of log(p^m_y (1 - p^l_y) + p^l_y (1 - p^m_y)), y = argmax p^m, which is
    minus A2D, Eq. 2 of the paper: (M, B, C) -> (B,), within (-inf, 0]. Computed from logarithms, so it is
    exact and finite however sure the members are. A lone member is paired with itself, as two identical
    members would be: log(2 p (1 - p)) with p its largest probability.
    """
    M = len(logits)
    one_right = log_one_right(logits)
    if M == 1:
        return one_right.flatten()
    itself = torch.eye(M, dtype=torch.bool, device=logits.device).unsqueeze(1)
    return one_right.masked_fill(itself, 0).sum(dim=(0, 2)) / (M * (M - 1))


@register
def average_energy(logits: Tensor) -> Tensor:
    """Free energy, averaged over members (Liu et al., 2020): -mean_m log sum_c exp z^m_c.

    (M, B, C) -> (B,), any real number.
    """
    return -logits.logsumexp(dim=-1).mean(dim=0)


@register
def average_entropy(logits: Tensor) -> Tensor:
    """How unsure the members are, on average: mean_m H(p^m).

    (M, B, C) -> (B,), within [0, log C]; blind to disagreement between members that are sure.
    """
    return _member_entropy(logits.log_softmax(dim=-1)).mean(dim=0)


@register
def average_max_prob(logits: Tensor) -> Tensor:
    """How unsure the members' predictions are: 1 - mean_m max_c p^m_c.

    (M, B, C) -> (B,), within [0, 1 - 1/C]; blind to disagreement between members that are sure.
    """
    return _odds_against_top(logits)[2].sigmoid().mean(dim=0)


@register
def single_max_prob(logits: Tensor) -> Tensor:
    """How unsure the first member is: 1 - max_c p^1_c, the baseline of a single model with maximum softmax.

    (M, B, C) -> (B,), within [0, 1 - 1/C].
    """
    return _odds_against_top(logits[:1])[2].sigmoid().squeeze(0)


@register
def average_max_logit(logits: Tensor) -> Tensor:
    """Largest logit, averaged over members and negated: -mean_m max_c z^m_c.

    (M, B, C) -> (B,), any real number.
    """
    return -logits.amax(dim=-1).mean(dim=0)


@register
def ensemble_entropy(logits: Tensor) -> Tensor:
    """How unsure the mean prediction is: H(mean_m p^m).

    (M, B, C) -> (B,), within [0, log C]; average_entropy + mutual_information.
    """
    probs = logits.softmax(dim=-1).mean(dim=0)
    return -torch.xlogy(probs, probs).sum(dim=-1)


@register
def gen(logits: Tensor, *, gamma: float = 0.1, top: int = 100) -> Tensor:
    """Generalised entropy of the mean prediction (Liu et al., 2023): sum_c p_c^gamma (1 - p_c)^gamma, p = mean_m p^m.

    (M, B, C) -> (B,), within [0, C 4^-gamma]; over the `top` most probable classes. Computed from logarithms, so it
    still tells samples apart whose p rounds to 1.
    """
    log_probs = logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))
    y = log_probs.argmax(dim=-1, keepdim=True)
    others = log_probs.scatter(-1, y, -torch.inf)
    log_rest = torch.log1p(-others.exp()).scatter(-1, y, others.logsumexp(dim=-1, keepdim=True))
    kept = log_probs.topk(min(top, log_probs.shape[-1]), dim=-1).indices
    return (gamma * (log_probs + log_rest).gather(-1, kept)).exp().sum(dim=-1)


@register
def mutual_information(logits: Tensor) -> Tensor:
    """What the members' disagreement adds to their uncertainty: H(mean_m p^m) - mean_m H(p^m).

    (M, B, C) -> (B,), within [0, log min(M, C)]. Both entropies are the sample's own; the code released with
    the paper subtracts the batch mean of the second.
    """
    log_probs = logits.log_softmax(dim=-1)
    probs = log_probs.exp().mean(dim=0)
    together = -torch.xlogy(probs, probs).sum(dim=-1)
    return (together - _member_entropy(log_probs).mean(dim=0)).clamp(min=0)


@register
def unique(logits: Tensor) -> Tensor:
    """Number of distinct classes that the members predict (the paper's #unique).

    (M, B, C) -> (B,) int64, within [1, min(M, C)]. A member's tied classes count as its lowest.
    """
    predicted = logits.argmax(dim=-1).sort(dim=0).values
    return (predicted[1:] != predicted[:-1]).sum(dim=0) + 1


def log_one_right(logits: Tensor) -> Tensor:
    """log(p^m_y (1 - p^l_y) + p^l_y (1 - p^m_y)) at y = argmax p^m for all pairs: (M, B, C) -> (M, B, M), [l, b, m].

    The logarithm of the probability that exactly one of two members is right, if y is the label. Differentiable.
    """
    top, y, against = _odds_against_top(logits)
    log_top, log_rest = F.logsigmoid(-against), F.logsigmoid(against)  # log p, log(1 - p) at the member's own argmax
    classes = y.T.expand(len(logits), -1, -1)
    log_p = logits.gather(-1, classes) - top.unsqueeze(-1) + log_top.unsqueeze(-1)
    # 1 - p cancels where p is near 1, which only happens at a member's own argmax
    same = classes == y.unsqueeze(-1)
    log_not_p = torch.where(same, log_rest.unsqueeze(-1), torch.log1p(-log_p.masked_fill(same, -1.0).exp()))
    return torch.logaddexp(log_p + log_rest.T, log_not_p + log_top.T)


def _member_entropy(log_probs: Tensor) -> Tensor:
    """(M, B, C) -> (M, B), within [0, log C]."""
    negative: Tensor = torch.linalg.vecdot(log_probs.exp(), log_probs)
    return -negative


def _odds_against_top(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest logit, its class, and log((1 - p) / p) of it: (M, B, C) -> three of (M, B).

    The odds come from the other classes' logits: 1 - p itself is 0 in floating point once p is near 1.
    """
    top, y = logits.max(dim=-1, keepdim=True)
    against = (logits - top).scatter_(-1, y, -torch.inf).logsumexp(dim=-1)
    return top.squeeze(-1), y.squeeze(-1), against
