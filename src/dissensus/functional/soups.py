"""Mixing weights of soups: shares w of M models in the mean of their parameters, chosen on labelled samples.

The learned soup of Wortsman et al. (2022), "Model soups", with a pull towards the uniform soup:

    w = softmax(a),  minimise over a:  CE(w) + PULL / N * KL(w || uniform),  KL = sum_m w_m log(M w_m)

CE(w) is the mean cross-entropy of the mixed model on N labelled samples. A move away from uniform has to gain as many
nats on all samples together as it costs in KL, at most log M: one label hardly moves the weights, many labels decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

PULL = 1.0
STEPS = 50  # iterations of L-BFGS; M weights need 5 to 20

Loss = Callable[[Tensor], Tensor]
"""Mean cross-entropy on labelled samples of the model mixed with these weights, (M,) -> (), differentiable."""


def uniform(count: int) -> Tensor:
    """Equal shares, (count,) float64."""
    return torch.full((count,), 1 / count, dtype=torch.float64)


def shares(members: Sequence[int], count: int) -> Tensor:
    """Equal shares of these members, 0 of the others: (count,) float64.

    >>> shares([0, 2], count=3)
    tensor([0.5000, 0.0000, 0.5000], dtype=torch.float64)
    """
    weights = torch.zeros(count, dtype=torch.float64)
    weights[list(members)] = 1 / len(members)
    return weights


def objective(loss: Loss, weights: Tensor, samples: int) -> Tensor:
    """CE(w) + PULL / N * KL(w || uniform): (M,) -> (), the same as CE for uniform weights."""
    divergence: Tensor = math.log(len(weights)) - torch.special.entr(weights).sum()
    return loss(weights).double() + PULL / samples * divergence


def learn(loss: Loss, count: int, samples: int, other: Tensor | None = None) -> Tensor:
    """Weights that minimise the objective: L-BFGS from the uniform soup, and from another soup if one is given.

    Deterministic. The objective of the result is at most that of the uniform soup and of `other`, so its CE is at most
    that of the uniform soup, and at most PULL * log(M) / N above that of `other`.

    Args:
        loss: Mean cross-entropy of a mixture.
        count: Number of models, M.
        samples: Number of samples, N.
        other: Weights (M,) of a soup to start from too: with nonlinear tails there may be several minima.

    Returns:
        (M,) float64, at least 0, with sum 1; uniform if its own loss is not finite.

    >>> target = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    >>> learn(lambda w: (w - target).square().sum(), count=3, samples=10**6).round(decimals=3)
    tensor([0.2000, 0.3000, 0.5000], dtype=torch.float64)
    """
    best, lowest = uniform(count), _value(loss, uniform(count), samples)
    if count == 1 or not math.isfinite(lowest):
        return best
    trials = [_descend(loss, best, samples)]
    if other is not None and not torch.allclose(other, best):
        # all shares positive: at a share of 0 the softmax has no gradient
        trials += [other, _descend(loss, 0.9 * other + 0.1 * best, samples)]
    for trial in trials:
        value = _value(loss, trial, samples)
        if value < lowest - 1e-7:  # below that, runs differ by rounding
            best, lowest = trial, value
    return best


def _value(loss: Loss, weights: Tensor, samples: int) -> float:
    with torch.no_grad():
        return float(objective(loss, weights, samples))


def _descend(loss: Loss, start: Tensor, samples: int) -> Tensor:
    """The best weights that L-BFGS meets on its way from `start`."""
    logits = start.log().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=STEPS, line_search_fn="strong_wolfe", tolerance_grad=1e-6)
    best, lowest = start, math.inf

    def closure() -> Tensor:
        nonlocal best, lowest
        weights = logits.softmax(0)
        value = objective(loss, weights, samples)
        (logits.grad,) = torch.autograd.grad(value, [logits])
        value = value.detach()
        if float(value) < lowest:
            best, lowest = weights.detach().clone(), float(value)
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return best
