"""The same losses in closed form: value and gradient with respect to the logits, without an autograd graph.

Cross-entropy plus weighted A2D over all pairs has, for each member, a gradient of one form:
`row_scalar * softmax(z)` plus a few scattered entries (at the label and at members' argmaxes). One softmax, a
gather of (members, B, members), one in-place row scaling and two scatters replace the graph, so all pairs cost
O(B M C + B M^2).

Exact while the dtype can hold 1 - p (a gap between logits below 87 in float32, 708 in float64). Beyond that the
disagreement saturates: its value stops growing and both stay finite.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dissensus.layout import full_precision


class Fused(NamedTuple):
    """Value, gradient and what the trainer reports; everything detached."""

    loss: Tensor  # ()
    grad: Tensor  # (M, B, C), d loss / d logits
    cross_entropy: Tensor  # (M, B)
    disagreement: Tensor  # (B,) unweighted a2d; zeros when there are no pairs
    top: Tensor  # (M, B) each member's argmax


class _Pairs(NamedTuple):
    """Gradient of the weighted a2d, in the parts that the closed form needs (R members of the pairs)."""

    value: Tensor  # (B,) a2d
    own: Tensor  # (R, B) row scalar from pairs judged at the member's own argmax
    other: Tensor  # (R, B) row scalar from pairs judged at another class
    at_top: Tensor  # (R, B) gradient at the member's own argmax from the `own` pairs, free of cancellation
    spread: Tensor  # (R, B, R) gradient at the other members' argmaxes


@torch.no_grad()
def cross_entropy_a2d(
    logits: Tensor,
    labels: Tensor | None,
    *,
    weights: Tensor | None = None,
    label_smoothing: float | Tensor = 0.0,
    pairs: Tensor | None = None,
    total: int | None = None,
) -> Fused:
    """mean CE + sum_n weights_n * a2d_n / total, with its gradient.

    logits (M, B, C); labels (B,), or (M, B) when every member has its own batch, or None for the disagreement
    alone. `weights` (B,) of the
    disagreement (None: no disagreement): for SED diversity/2 * hardness. `label_smoothing` is one number or one
    a member (M,). `pairs` (R,) are the members that disagree (None: all). `total` is the number of samples the
    loss is averaged over: B, or more when the batch is spread over processes.
    """
    z = full_precision(logits)
    M, B, C = z.shape
    total = total or B
    share = 0.0 if labels is None else 1 / (M * total)
    smoothing = torch.as_tensor(label_smoothing, dtype=z.dtype, device=z.device).expand(M)[:, None]
    smooth = isinstance(label_smoothing, Tensor) or label_smoothing > 0

    z_top, top = z.max(-1)
    grad = _softmax(z)
    p_top = grad.gather(-1, top[..., None]).squeeze(-1)
    # From here on the entry at the argmax is set by hand: as p * scalar it would cancel where p is near 1.
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
    loss = losses.sum() * share

    if weights is None:
        disagreement = z.new_zeros(B)
        grad.mul_(share)
        at_top = p_top * share
    else:
        who = slice(None) if pairs is None else pairs
        part = _a2d(z[who], top[who], lse[who], log_p_top[who], rest[who], weights / total)
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
            grad.sub_((smoothing * (share / C))[..., None])
    return Fused(loss, grad, losses, disagreement, top)


def _embed(values: Tensor, members: Tensor | None, count: int) -> Tensor:
    """(R, ...) of some members -> (M, ...), zero for the others."""
    if members is None:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, members, values)


def _softmax(z: Tensor) -> Tensor:
    """A fresh softmax in the memory layout of z: (M, B, C), or (B, M, C) seen from the side."""
    if z.is_contiguous():
        return z.softmax(-1)
    return z.transpose(0, 1).softmax(-1).transpose(0, 1)


def _a2d(z: Tensor, top: Tensor, lse: Tensor, log_p_top: Tensor, rest: Tensor, weights: Tensor) -> _Pairs:
    """Closed form of the weighted a2d over all pairs l < m, on a grid indexed [l, sample, m].

    With p = p^m_y, q = p^l_y, s = p(1-q) + q(1-p), u = p(1-q)/s, v = q(1-p)/s, the gradient of -log s is
    (delta_cy - p_c) (pq/s - u) for member m and (delta_cy - q_c) (pq/s - v) for member l.
    """
    R = len(z)
    floor = torch.finfo(z.dtype).tiny
    log_rest = rest.clamp_min(floor).log()
    tops = top.T.expand(R, -1, -1)
    same = top[..., None] == tops
    log_q = z.gather(-1, tops) - lse[..., None]
    log_1q = torch.where(same, log_rest[..., None], torch.log1p(-log_q.exp().clamp_max(0.5)))
    log_p, log_1p = log_p_top.T, log_rest.T  # (B, R), broadcast over l

    first, second = log_p + log_1q, log_q + log_1p
    log_s = torch.logaddexp(first, second)
    upper = torch.ones(R, R, dtype=z.dtype, device=z.device).triu(1)[:, None]  # l < m
    value = -(log_s * upper).sum((0, 2)) / upper.sum()

    scale = upper * (weights / upper.sum())[:, None]
    u, v = (first - log_s).exp(), (second - log_s).exp()
    # pq/s outgrows the dtype only where the softmax it multiplies has long underflowed to zero.
    both = (log_p + log_q - log_s).clamp_max(-math.log(floor) - 1).exp()
    k_m, k_l = (both - u) * scale, (both - v) * scale
    t_m = (v * log_p.exp() - u * log_1p.exp()) * scale
    t_l = (u * log_q.exp() - v * log_1q.exp()) * scale
    own_l = k_l * same
    other_l = k_l - own_l
    return _Pairs(
        value=value,
        own=k_m.sum(0).T + own_l.sum(2),
        other=other_l.sum(2),
        at_top=t_m.sum(0).T + (t_l * same).sum(2),
        spread=other_l,
    )
