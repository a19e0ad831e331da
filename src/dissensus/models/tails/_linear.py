"""The linear tail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dissensus.models.norms import NORMS
from dissensus.models.stacked import Saved, Scratch, product, weight_grad
from dissensus.models.tails._layers import init_linear
from dissensus.models.tails._registry import register


@register("linear", axes={1: 0})
class Linear(nn.Linear):
    """One layer on normalised features: (B, D) -> logits (B, C)."""

    def __init__(self, features: int, classes: int, norm: str = "l2") -> None:
        super().__init__(features, classes)
        NORMS.check(norm)
        self.norm = norm

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"features": self.in_features, "classes": self.out_features, "norm": self.norm}

    def reset_parameters(self) -> None:
        """Draw the weight from a truncated normal (0.02) as ViT heads do; bias zero."""
        init_linear(self)

    last = ""  # the path of the last layer

    def embed(self, x: Tensor) -> Tensor:
        """The input of the last layer: (B, D) -> (B, D)."""
        return NORMS[self.norm](x)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        return super().forward(self.embed(x))

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """All members in one matrix product, (B, D) @ (D, M*C), where they share x."""
        weight, bias, x = params["weight"], params["bias"], NORMS[self.norm](x)
        M, C, D = weight.shape
        if x.ndim == 3:
            return product("logits", x, weight, bias, scratch), (x,)
        logits = scratch("logits", (len(x), M * C), x)
        torch.mm(x, weight.view(M * C, D).t(), out=logits)
        logits.add_(bias.view(M * C))  # addmm would first expand the bias in memory, which costs another pass
        return logits.view(len(x), M, C).transpose(0, 1), (x,)

    def backward_stacked(
        self, params: Mapping[str, Tensor], saved: Saved, grad: Tensor, scratch: Scratch
    ) -> dict[str, Tensor]:
        """One matrix product again, (M*C, B) @ (B, D)."""
        (x,), shape = saved, params["weight"].shape
        if x.ndim == 3:
            return {"weight": weight_grad("weight", grad, x, scratch), "bias": grad.sum(1)}
        flat = grad.transpose(0, 1).reshape(len(x), -1)
        weight = scratch("weight", tuple(shape), x)
        torch.mm(flat.t(), x, out=weight.view(-1, shape[-1]))
        return {"weight": weight, "bias": flat.sum(0).view(shape[:2])}
