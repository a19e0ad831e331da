"""How much members agree: the two regularisers of the paper, both minimised where members disagree."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dissensus.functional.checks import check_logits

# Joint probabilities held at once by divdis: 2**24 float32 are 64 MB.
BLOCK_ELEMENTS = 2**24


def a2d(logits: Tensor) -> Tensor:
    """Agree to Disagree over all pairs of members: small where they name different classes.

    (M, B, C) -> (B,), >= 0. Eq. 2 of the paper, averaged over the M(M-1)/2 pairs l < m:
    -log(p^m_y (1 - p^l_y) + p^l_y (1 - p^m_y)) with y = argmax p^m.
    Computed from logarithms, so it stays finite where both members are certain of the same class.
    """
    check_logits(logits, members=2)
    top = logits.argmax(-1)
    log_p = logits.log_softmax(-1)
    # 1 - p cancels where p is near 1, which only happens at a member's own argmax: sum the others instead.
    others = logits.scatter(-1, top[..., None], -torch.inf)
    log_rest = others.logsumexp(-1) - logits.logsumexp(-1)

    ell, m = torch.triu_indices(len(logits), len(logits), offset=1, device=logits.device)
    y = top[m]
    samples = torch.arange(logits.shape[1], device=logits.device)
    log_pm, log_1pm = log_p[m[:, None], samples, y], log_rest[m]
    log_pl = log_p[ell[:, None], samples, y]
    same = top[ell] == y
    log_1pl = torch.where(same, log_rest[ell], torch.log1p(-log_pl.masked_fill(same, -1.0).exp()))
    return -torch.logaddexp(log_pm + log_1pl, log_pl + log_1pm).mean(0)


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
    """The blockwise value, with the gradient made on the way: the joint blocks are never kept."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, weights: Tensor | None) -> Tensor:
        value, grad = divdis_value_and_grad(logits, weights)
        ctx.save_for_backward(grad)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad,) = ctx.saved_tensors
        return grad * grad_outputs[0], None


@torch.no_grad()
def divdis_value_and_grad(logits: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`divdis` and its gradient with respect to the logits: ((), (M, B, C)).

    I(m, l) = sum_ab J_ab log J_ab - sum_a q^m_a log q^m_a - sum_b q^l_b log q^l_b, where the joint is
    J = sum_n w_n p^m_n (x) p^l_n and q are its marginals. Hence dI/dp^m_n = w_n (p^l_n (log J)^T - log q^m),
    up to a constant that the softmax removes.
    """
    M, B, C = logits.shape
    p = logits.softmax(-1)
    w = torch.full((B,), 1 / B, dtype=p.dtype, device=p.device) if weights is None else _normal(weights)
    flat = p.transpose(0, 1).reshape(B, M * C)
    weighted = flat * w[:, None]
    q = weighted.sum(0)
    log_q = _log(q)
    entropy = -(q * log_q).view(M, C).sum(-1)
    # Every pair is met twice, once from each side: the value is halved by averaging over ordered pairs.
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


def _normal(weights: Tensor) -> Tensor:
    """Weights that sum to one; all zero, as for a batch that is fitted perfectly, they stay zero."""
    return weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()
