"""The conv tail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dissensus._core.registry import Registry
from dissensus.models.norms import NORMS
from dissensus.models.tails._layers import init_linear, sizes
from dissensus.models.tails._registry import register

ACTIVATIONS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "activation", {name: getattr(F, name) for name in ("relu", "relu6", "silu", "hardswish", "gelu")}
)
"""Activations that a `Conv` tail may have, by name."""


@register("conv", axes={1: 0, 3: 0})
class Conv(nn.Module):
    """The last 1x1 stage of a convolutional net: a hidden layer at every position, their mean, linear.

    Maps (B, D, H, W), or vectors (B, D) from nets that pool first, -> (B, C). `norm` is over D, at each position; by
    default none, as in the nets.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        hidden: int | None = None,
        activation: str = "relu6",
        norm: str = "none",
    ) -> None:
        super().__init__()
        ACTIVATIONS.check(activation)
        NORMS.check(norm)
        self.activation, self.norm = activation, norm
        self.conv = nn.Linear(features, hidden or 4 * features)
        self.head = nn.Linear(self.conv.out_features, classes)
        self.reset_parameters()

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return sizes(self.conv, self.head) | {"activation": self.activation, "norm": self.norm}

    def reset_parameters(self) -> None:
        """Draw the hidden layer as He et al. (2015), the head as ViT heads; biases zero."""
        nn.init.kaiming_normal_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)
        init_linear(self.head)

    last = "head"  # the path of the last layer

    def embed(self, x: Tensor) -> Tensor:
        """The input of the last layer: (B, D, H, W) or (B, D) -> (B, hidden)."""
        positions = x[:, None] if x.ndim == 2 else x.flatten(2).transpose(1, 2)  # (B, H*W, D)
        return ACTIVATIONS[self.activation](self.conv(NORMS[self.norm](positions))).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) or (B, D) -> (B, C)."""
        logits: Tensor = self.head(self.embed(x))
        return logits
