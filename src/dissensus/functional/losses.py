"""What members are trained for: fit the labels, disagree where it is hard.

Every function here is the readable definition, differentiable by autograd; `fused` holds the closed form of
cross-entropy plus A2D that training uses, equal to the definitions up to rounding.

`REGULARISERS` holds the disagreement terms by name, and your own joins them with the same decorator:

>>> @register
... def overlap(logits):
...     '''Product of all members' probabilities, summed over classes: (M, B, C) -> (B,).'''
...     return logits.softmax(-1).prod(0).sum(-1)
>>> value, grad = REGULARISERS["overlap"].value_and_grad(torch.zeros(2, 3, 4), torch.full((3,), 1 / 3))
>>> value
tensor(0.2500)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError
from dissensus._core.registry import Registry
from dissensus.functional.checks import check_labels, check_logits
from dissensus.functional.fused import Fused, cross_entropy_a2d
from dissensus.functional.scores import log_one_right

# Joint probabilities held at once by divdis: 2**24 float32 are 64 MB.
BLOCK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Regulariser:
    """A disagreement term: small where members disagree.

    Attributes:
        function: Logits (M, B, C) -> (B,), one value per sample; or, for a quantity of the batch as a whole,
            logits (M, B, C) and weights (B,) -> ().
        whole_batch: Which of the two `function` is.
        fused: Cross-entropy and this term in one pass without autograd, with the signature of
            `fused.cross_entropy_a2d`; None: the term is differentiated by autograd.
    """

    function: Callable[..., Tensor]
    whole_batch: bool = False
    fused: Callable[..., Fused] | None = None

    def __call__(self, logits: Tensor, weights: Tensor) -> Tensor:
        """The weighted mean over samples: (M, B, C) and weights (B,) that sum to one -> ()."""
        value = self.function(logits, weights) if self.whole_batch else self.function(logits)
        expected = () if self.whole_batch else tuple(logits.shape[1:2])
        if value.shape != expected:
            raise ShapeError(
                f"regulariser {self.function.__name__} must return {expected} for logits {tuple(logits.shape)}; "
                f"got {tuple(value.shape)}: see losses.Regulariser"
            )
        return value if self.whole_batch else (weights * value).sum()

    def value_and_grad(self, logits: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted mean and its gradient with respect to the logits: (), (M, B, C), both detached."""
        if self.fused is not None:
            fused = self.fused(logits, None, weights=weights, total=1)
            return fused.loss, fused.grad
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            value = self(leaf, weights)
            if not value.requires_grad:
                raise DissensusError(
                    f"regulariser {self.function.__name__} must be differentiable; it returned no gradient: "
                    "use torch functions of the logits"
                )
            (grad,) = torch.autograd.grad(value, leaf)
        return value.detach(), grad


REGULARISERS: Registry[Regulariser] = Registry("regulariser")
"""Every registered regulariser by name."""

_F = TypeVar("_F", bound=Callable[..., Tensor])


@overload
def register(function: _F) -> _F: ...
@overload
def register(*, whole_batch: bool = ..., fused: Callable[..., Fused] | None = ...) -> Callable[[_F], _F]: ...
def register(
    function: _F | None = None, *, whole_batch: bool = False, fused: Callable[..., Fused] | None = None
) -> _F | Callable[[_F], _F]:
    """Add the decorated function to `REGULARISERS` under its name, with dashes for underscores.

    Args:
        function: Logits (M, B, C) -> (B,), differentiable; with `whole_batch`, logits and weights (B,) -> ().
        whole_batch: Whether the function needs the batch as a whole.
        fused: A closed form, see `Regulariser`.

    Returns:
        The function, unchanged.
    """

    def add(function: _F) -> _F:
        REGULARISERS.add(function.__name__.replace("_", "-"), Regulariser(function, whole_batch, fused))
        return function

    return add if function is None else add(function)


@register(fused=cross_entropy_a2d)
def a2d(logits: Tensor) -> Tensor:
    """Agree to Disagree over all pairs of members: small where they name different classes.

    (M, B, C) -> (B,), >= 0. Eq. 2 of the paper, averaged over the M(M-1)/2 pairs l < m:
    -log(p^m_y (1 - p^l_y) + p^l_y (1 - p^m_y)) with y = argmax p^m.
    Computed from logarithms, so it stays finite where both members are certain of the same class.
    """
    check_logits(logits, members=2)
    ell, m = torch.triu_indices(len(logits), len(logits), offset=1, device=logits.device)
    return -log_one_right(logits)[ell, :, m].mean(0)


@register(whole_batch=True)
def divdis(logits: Tensor, weights: Tensor | None = None) -> Tensor:
    """DivDis: mean mutual information between the predictions of each pair of members over the batch.

    (M, B, C) -> (), >= 0; zero where members' predictions are statistically independent. `weights` (B,) are
    the samples' weights, normalised to sum to one (uniform when None). Differentiable; computed by blocks of
    the (M*C, B) @ (B, M*C) product, so memory stays bounded for any M and C.
    """
    check_logits(logits, members=2)
    value: Tensor = _MutualInformation.apply(logits, weights)
    return value


class _MutualInformation(torch.autograd.Function):
    """The blockwise value; its gradient is computed in the same pass, so that the joint blocks are never kept."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weights: Tensor | None) -> Tensor:
        value, grad = _mutual_information(logits, weights)
        ctx.save_for_backward(grad)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = ctx.saved_tensors
        return grad * grad_outputs[0], None


def _mutual_information(logits: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """`divdis` and its gradient with respect to the logits: ((), (M, B, C)).

    I(m, l) = sum_ab J_ab log J_ab - sum_a q^m_a log q^m_a - sum_b q^l_b log q^l_b, where the joint is
    J = sum_n w_n p^m_n (x) p^l_n and q are its marginals. Hence dI/dp^m_n = w_n (p^l_n (log J)^T - log q^m),
    up to a constant that the softmax removes.
    """
    M, B, C = logits.shape
    p = logits.softmax(-1)
    w = torch.full((B,), 1 / B, dtype=p.dtype, device=p.device) if weights is None else _normalise(weights)
    flat = p.transpose(0, 1).reshape(B, M * C)
    weighted = flat * w[:, None]
    q = weighted.sum(0)
    log_q = _log(q)
    entropy = -(q * log_q).view(M, C).sum(-1)
    # The loop meets every pair twice, once from each side: averaging over ordered pairs halves the value.
    ordered = M * (M - 1)
    value = 2 * (M - 1) * entropy.sum() / ordered
    grad = -(2 * (M - 1) / ordered) * log_q.view(M, 1, C).expand(M, B, C).contiguous()

    rows = max(1, min(C, BLOCK_ELEMENTS // (M * C)))
    for m in range(M):
        for start in range(m * C, (m + 1) * C, rows):
            stop = min(start + rows, (m + 1) * C)
            joint = weighted[:, start:stop].T @ flat
            log_joint = _log(joint)
            log_joint[:, m * C : (m + 1) * C] = 0
            value = value + (joint * log_joint).sum() / ordered
            grad[m, :, start - m * C : stop - m * C].add_(flat @ log_joint.T, alpha=2 / ordered)
    grad.mul_(w[None, :, None])
    # Through the softmax: p * (g - <p, g>).
    grad.sub_((p * grad).sum(-1, keepdim=True)).mul_(p)
    return value, grad


def cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Each member's own loss on each sample: (M, B, C), (B,) -> (M, B)."""
    check_logits(logits)
    check_labels(logits, labels)
    M, B, C = logits.shape
    flat = F.cross_entropy(
        logits.reshape(M * B, C), labels.repeat(M), reduction="none", label_smoothing=label_smoothing
    )
    return flat.view(M, B)


def ensemble_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the mean logits: (M, B, C), (B,) -> (B,)."""
    check_logits(logits)
    check_labels(logits, labels)
    return F.cross_entropy(logits.mean(0), labels, reduction="none")


@torch.no_grad()
def hardness(logits: Tensor, labels: Tensor, sample_weight: Tensor | None = None) -> Tensor:
    """Per-sample weight alpha_n = CE_n / mean(CE)^2 of the ensemble's mean logits, Eq. 4 of the paper.

    (M, B, C), (B,) -> (B,), >= 0, without gradient: hardness weighs samples, it is not trained. Proportional to the
    sample's loss, and larger overall the better the ensemble fits: its batch mean is 1 / mean(CE). Zero where the batch
    is fitted perfectly (mean CE = 0 in the logits' precision). With `sample_weight` (B,) the mean is the weighted one;
    the sample's own weight is not part of its hardness.
    """
    values = ensemble_cross_entropy(logits, labels)
    return hardness_of(values, (values * _relative(logits, sample_weight)).mean())


def hardness_of(values: Tensor, mean: Tensor) -> Tensor:
    """Hardness from the ensemble's losses (B,) and their mean, which may be over more samples than these."""
    return torch.where(mean > 0, values / mean / mean, 0.0)


def sed(
    logits: Tensor,
    labels: Tensor,
    diversity: float,
    label_smoothing: float = 0.0,
    regulariser: str = "a2d",
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Scalable Ensemble Diversification: fit every sample, disagree on the hard ones. (M, B, C), (B,) -> ().

    Eq. 6 of the paper: mean CE + diversity/2 * mean_n(hardness_n * a2d_n). The half is the paper's: it sums over the
    M(M-1)/2 pairs and divides by M(M-1). Mutual information is a quantity of the batch, not of a sample; with
    `regulariser="divdis"` hardness weighs the samples inside it and its mean scales it:
    diversity/2 * mean(hardness) * divdis(logits, weights=hardness), which for equal hardness is the same form.

    Args:
        logits: (M, B, C).
        labels: (B,).
        diversity: Weight of the disagreement term, the paper's lambda.
        label_smoothing: Share of the label that is spread over all classes.
        regulariser: A name in `REGULARISERS`.
        sample_weight: (B,); every mean over samples becomes the weighted one. A sample of weight 2 counts as if it were
            there twice, one of weight 0 as if it were not; only ratios matter.
    """
    weight = _relative(logits, sample_weight)
    main = (weight * cross_entropy(logits, labels, label_smoothing)).mean()
    term = REGULARISERS[regulariser]
    if not diversity:
        return main
    alpha = weight * hardness(logits, labels, sample_weight)
    return main + diversity / 2 * alpha.mean() * term(logits, _normalise(alpha))


def _relative(logits: Tensor, sample_weight: Tensor | None) -> Tensor:
    """Sample weights (B,) over their mean; ones where there are none."""
    if sample_weight is None:
        return logits.new_ones(logits.shape[1])
    if sample_weight.shape != logits.shape[1:2]:
        raise ShapeError(
            f"sample_weight must be ({logits.shape[1]},), one per sample; got {tuple(sample_weight.shape)}"
        )
    return sample_weight.to(logits) / sample_weight.to(logits).mean()


def _normalise(weights: Tensor) -> Tensor:
    """Weights that sum to one; all zero, as for a batch that is fitted perfectly, they stay zero."""
    return weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()
