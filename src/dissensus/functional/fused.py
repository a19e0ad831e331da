"""Cross-entropy plus A2D in closed form: value and gradient with respect to the logits, without an autograd graph.

Cross-entropy plus weighted A2D over all pairs has, for each member, a gradient of one form:
`row_scalar * softmax(z)` plus a few scattered entries (at the label and at members' argmaxes). One softmax, a
gather of (members, B, members), one in-place row scaling and two scatters replace the graph, so all pairs cost
O(B M C + B M^2).

Exact while the dtype can hold 1 - p (a gap between logits below 65 in float32, 530 in float64). Beyond that the
disagreement saturates: its value stops growing and both stay finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dissensus.functional.checks import full_precision


class Fused(NamedTuple):
    """Value, gradient and what training reports; everything detached."""

    loss: Tensor  # ()
    grad: Tensor  # (M, B, C), d loss / d logits
    cross_entropy: Tensor  # (M, B)
    disagreement: Tensor  # (B,) unweighted a2d; zeros when there are no pairs
    top: Tensor  # (M, B) each member's argmax


class _Pairs(NamedTuple):
    """Gradient of the weighted a2d, in the parts that the closed form needs (R members of the pairs)."""

    value: Tensor  # (B,) a2d
    own: Tensor  # (R, B) row scalar from pairs evaluated at the member's own argmax
    other: Tensor  # (R, B) row scalar from pairs evaluated at another class
    at_top: Tensor  # (R, B) gradient at the member's own argmax from the `own` pairs, free of cancellation
    spread: Tensor  # (R, B, R) gradient at the other members' argmaxes


@torch.no_grad()
def cross_entropy_a2d(
    logits: Tensor,
    labels: Tensor | None,
    *,
    weights: Tensor | None = None,
    sample_weight: Tensor | None = None,
    label_smoothing: float | Tensor = 0.0,
    pairs: Tensor | None = None,
    total: int | None = None,
    scratch: Callable[[str, tuple[int, ...], Tensor], Tensor] | None = None,
) -> Fused:
    """mean CE + sum_n weights_n * a2d_n / total, with its gradient.

    Args:
        logits: (M, B, C).
        labels: (B,), or (M, B) if each member has its own batch, or None for the disagreement alone.
        weights: (B,), weights of the disagreement, for SED diversity/2 * hardness; None: no disagreement.
        sample_weight: Weights of the cross-entropy alone, of the labels' shape and with mean one over the whole batch.
        label_smoothing: One number, or one per member (M,).
        pairs: (R,), the members that disagree; None: all.
        total: Number of samples that the loss is averaged over: B, or more if the batch is spread over processes.
        scratch: Called as scratch(name, shape, like), returns memory for the gradient, which the next call may reuse.
    """
    z = full_precision(logits)
    M, B, C = z.shape
    total = total or B
    mean = 0.0 if labels is None else 1 / (M * total)
    share = mean if sample_weight is None else mean * sample_weight
    smoothing = torch.as_tensor(label_smoothing, dtype=z.dtype, device=z.device).expand(M)[:, None]
    smooth = isinstance(label_smoothing, Tensor) or label_smoothing > 0

    z_top, top = z.max(-1)
    grad = _softmax(z, scratch)
    p_top = grad.gather(-1, top[..., None]).squeeze(-1)
    # From here on the entry at the argmax is computed separately: p * scalar would cancel where p is near 1.
    grad.scatter_(-1, top[..., None], 0.0)
    rest = grad.sum(-1)
    log_p_top = torch.where(rest < 0.5, torch.log1p(-rest), p_top.log())
    lse = z_top - log_p_top

    losses = torch.zeros_like(lse)
    if labels is not None:
        target = labels.expand(M, B)[..., None]
        losses = lse - (1 - smoothing) * z.gather(-1, target).squeeze(-1)
        if smooth:
            losses -= smoothing * z.mean(-1)
    loss = (losses if sample_weight is None else losses * sample_weight).sum() * mean

    if weights is None:
        disagreement = z.new_zeros(B)
        grad.mul_(share if isinstance(share, float) else share[..., None])
        at_top = p_top * share
    else:
        who = slice(None) if pairs is None else pairs
        part = _a2d(grad[who], top[who], p_top[who], rest[who], weights / total)
        disagreement = part.value
        loss = loss + (weights * part.value).sum() / total
        own, other, part_top, spread = (_embed(t, pairs, M) for t in part[1:])
        grad.mul_((share - own - other)[..., None])
        grad.scatter_add_(-1, top[who].T.expand(M, -1, -1), spread)
        at_top = part_top + (share - other) * p_top
    grad.scatter_add_(-1, top[..., None], at_top[..., None])
    if labels is not None:
        grad.scatter_add_(-1, target, ((smoothing - 1) * share).expand(M, B)[..., None])
        if smooth:
            even = mean / C if sample_weight is None else mean / C * sample_weight
            grad.sub_((smoothing * even)[..., None])
    return Fused(loss, grad, losses, disagreement, top)


def _embed(values: Tensor, members: Tensor | None, count: int) -> Tensor:
    """(R, ...) of some members -> (M, ...), zero for the others."""
    if members is None:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, members, values)


def _softmax(z: Tensor, scratch: Callable[[str, tuple[int, ...], Tensor], Tensor] | None) -> Tensor:
    """The softmax, in the memory layout of z: (M, B, C), or (B, M, C) transposed."""
    transposed = not z.is_contiguous()
    z = z.transpose(0, 1) if transposed else z
    out = torch.empty_like(z) if scratch is None else scratch("softmax", tuple(z.shape), z)
    torch.softmax(z, -1, out=out)
    return out.transpose(0, 1) if transposed else out


def _a2d(softmax: Tensor, top: Tensor, p_top: Tensor, rest: Tensor, weights: Tensor) -> _Pairs:
    """Closed form of the weighted a2d over all pairs l < m, each at y = top_m.

    With p = p^m_y, q = p^l_y, s = p(1-q) + q(1-p), u = p(1-q)/s, v = q(1-p)/s, the gradient of -log s is
    (delta_cy - p_c) (pq/s - u) for member m and (delta_cy - q_c) (pq/s - v) for member l.
    `softmax` has zeros at the argmaxes, whose probabilities are `p_top`; `rest` = 1 - p_top sums the others.
    """
    R, B, _ = softmax.shape
    ell, m = torch.triu_indices(R, R, offset=1, device=softmax.device)
    same = top[ell] == top[m]
    # (R, B, R): every member's probability of every member's argmax
    table = softmax.gather(-1, top.T.expand(R, -1, -1))
    q = torch.where(same, p_top[ell], table.transpose(1, 2)[ell, m])
    not_q = torch.where(same, rest[ell], 1 - q)
    p, not_p = p_top[m], rest[m]

    first, second = p * not_q, q * not_p
    least = torch.finfo(softmax.dtype).tiny ** 0.75  # its inverse, times any sensible weight, is still finite
    s = (first + second).clamp_min(least)
    value = -s.log().mean(0)

    scale = weights / len(s)
    u, v, both = first / s, second / s, p * q / s
    k_m, k_l = (both - u) * scale, (both - v) * scale
    own_l = k_l * same
    other_l = k_l - own_l
    t_m = (v * p - u * not_p) * scale
    t_l = (u * q - v * not_q) * scale * same
    zeros = softmax.new_zeros(R, B)
    table.zero_().transpose(1, 2)[ell, m] = other_l
    return _Pairs(
        value=value,
        own=zeros.index_add(0, m, k_m).index_add_(0, ell, own_l),
        other=zeros.index_add(0, ell, other_l),
        at_top=zeros.index_add(0, m, t_m).index_add_(0, ell, t_l),
        spread=table,
    )
