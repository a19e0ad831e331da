"""Weighted means of members' parameters: what a soup is made of, as functions of stacked tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError

TOLERANCE = 1e-4  # of the sum of weights, which may have been rounded or computed in float32


def mean(
    stacked: Mapping[str, Tensor], weights: Tensor, pretrained: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Weighted mean of the members' tensors by name, differentiable in `weights`; the tensors are constants.

    Tensors that do not hold floating-point numbers are those of the member with the largest weight.

    Args:
        stacked: Name -> (M, ...).
        weights: (M,), or with `pretrained` (M + 1,).
        pretrained: Name -> (...), the tensors of one more model, whose weight is the last.
    """
    members = weights[: len(weights) - (pretrained is not None)]
    largest = int(members.detach().argmax())
    mixed = {}
    for name, value in stacked.items():
        constant = value.detach()
        if not constant.is_floating_point():
            mixed[name] = constant[largest]
            continue
        mixed[name] = torch.tensordot(members.to(constant), constant, dims=1)
        if pretrained is not None:
            mixed[name] = mixed[name] + weights[-1].to(constant) * pretrained[name].detach().to(constant)
    return mixed


def check(weights: Tensor, count: int) -> None:
    """Raise if `weights` are not the shares of `count` models in a mean: (count,), at least 0, with sum 1."""
    if weights.shape != (count,):
        raise ShapeError(f"soup weights must be ({count},); got {tuple(weights.shape)}: give one per model")
    if not (bool((weights >= 0).all()) and abs(float(weights.sum()) - 1) <= TOLERANCE):
        values = ", ".join(f"{value:.4g}" for value in weights.tolist())
        raise DissensusError(f"soup weights must be at least 0 and sum to 1; got {values}: divide them by their sum")
