"""Linear heads from few labels: a correction of given logits by a Gaussian process with a linear kernel.

    logits(x) = offset(x) + W (x - centre) / scale,     W ~ N(0, strength)

W is the maximum a posteriori. With a small strength the offset decides, with a large one the labels. Where x is
unlike every labelled sample the correction vanishes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize
from torch import Tensor


class Space(NamedTuple):
    """The units of features x (B, D): scale^2 is the mean of |x - centre|^2 over the training samples."""

    centre: Tensor  # (D,) float64
    scale: float

    @classmethod
    def of(cls, features: Tensor) -> Space:
        """The space of training features (N, D)."""
        x = features.double()
        centre = x.mean(0)
        return cls(centre, float((x - centre).square().sum(1).mean().sqrt()) or 1.0)

    def __call__(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, D) float64."""
        return (features.double() - self.centre) / self.scale


class Correction(NamedTuple):
    """What is added to logits: x weight^T + bias."""

    weight: Tensor  # (C, D) float64
    bias: Tensor  # (C,)

    def __call__(self, features: Tensor) -> Tensor:
        """(B, D) -> (B, C) float64."""
        return features.double() @ self.weight.T + self.bias


def fit_correction(
    features: Tensor,
    labels: Tensor,
    offset: Tensor,
    space: Space,
    strength: float,
    sample_weight: Tensor | None = None,
) -> Correction:
    """Fit the correction of logits to labelled samples.

    argmin_W  -sum_b w_b log softmax(offset_b + W z_b)_{y_b} + |W|^2 / (2 strength),  z = (x - centre) / scale

    Args:
        features: (B, D).
        labels: (B,) within 0..C - 1.
        offset: (B, C), the logits to correct; zeros for a new head.
        space: The units of the features.
        strength: Prior variance of W, > 0.
        sample_weight: (B,), w; None: 1.

    Returns:
        The correction in terms of the features themselves.
    """
    z, (B, C) = space(features), offset.shape
    basis = None
    if z.shape[1] > B:  # W lies in the span of the samples: optimise over B numbers per class instead of D
        basis, triangle = torch.linalg.qr(z.T)
        z = triangle.T
    x, base, one_hot = z.numpy(), offset.cpu().double().numpy(), np.eye(C)[labels.cpu().numpy()]
    weight = np.ones(B) if sample_weight is None else sample_weight.cpu().double().numpy()

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        W = flat.reshape(C, -1)
        logits = base + x @ W.T
        log_probs = logits - _logsumexp(logits)
        value = -float(weight @ (one_hot * log_probs).sum(1)) + float((W * W).sum()) / (2 * strength)
        gradient = ((np.exp(log_probs) - one_hot) * weight[:, None]).T @ x + W / strength
        return value, gradient.ravel()

    W = torch.from_numpy(minimise(loss, C * x.shape[1]).reshape(C, -1))
    W = (W if basis is None else W @ basis.T) / space.scale
    return Correction(W, -W @ space.centre)


def fit_weights(logits: Tensor, labels: Tensor, start: float, pull: float = 1.0) -> Tensor:
    """Fit weights of members to labelled samples: logits (M, B, C) and labels (B,) -> (M,) float64, none negative.

    argmin_a  -sum_b log softmax(sum_m a_m z^m_b)_{y_b} + pull / 2 |a - start|^2

    Args:
        logits: Of the members.
        labels: Within 0..C - 1.
        start: The weight of every member without labels.
        pull: How strongly weights are drawn to it.
    """
    z = logits.cpu().double().numpy()
    one_hot = np.eye(z.shape[-1])[labels.cpu().numpy()]

    def loss(a: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        summed = np.einsum("m,mbc->bc", a, z)
        log_probs = summed - _logsumexp(summed)
        value = -float((one_hot * log_probs).sum()) + pull / 2 * float(((a - start) ** 2).sum())
        return value, np.einsum("bc,mbc->m", np.exp(log_probs) - one_hot, z) + pull * (a - start)

    return torch.from_numpy(minimise(loss, len(z), start, lowest=0.0))


Loss = Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]]


def minimise(loss: Loss, size: int, start: float = 0.0, lowest: float | None = None) -> NDArray[np.float64]:
    """Minimise a convex loss, which returns value and gradient, by L-BFGS: -> (size,)."""
    result = optimize.minimize(
        loss, np.full(size, start), jac=True, method="L-BFGS-B", bounds=[(lowest, None)] * size,
        options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-5},
    )  # fmt: skip
    found: NDArray[np.float64] = result.x
    return found


def _logsumexp(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, C) -> (B, 1)."""
    largest = logits.max(1, keepdims=True)
    total: NDArray[np.float64] = largest + np.log(np.exp(logits - largest).sum(1, keepdims=True))
    return total
