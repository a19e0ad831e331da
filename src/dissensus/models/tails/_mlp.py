"""The mlp tail, the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus.models.norms import NORMS
from dissensus.models.stacked import Saved, Scratch, product, weight_grad
from dissensus.models.tails._layers import init_linear, sizes
from dissensus.models.tails._registry import register


@register("mlp", axes={1: 0, 2: -1})
class MLP(nn.Module):
    """The paper's last two layers: x + gamma * mlp(norm(x)), norm, linear. (B, D) -> (B, C).

    With D=768, hidden=4D and C=1000 these are the 5,495,272 parameters that it trains of DeiT3-B. Gamma starts
    at 1e-4, so members begin as norm + linear; gamma=None leaves it out, as ViTs without layer scale do. Tokens
    (B, T, D) are averaged before the second norm. `norm` comes before all this, by default none: there is one already.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        hidden: int | None = None,
        gamma: float | None = 1e-4,
        eps: float = 1e-6,
        norm: str = "none",
    ) -> None:
        super().__init__()
        NORMS.check(norm)
        self.initial_gamma, self.norm = gamma, norm
        hidden = hidden or 4 * features
        self.norm1 = nn.LayerNorm(features, eps=eps)
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, features)
        self.gamma = None if gamma is None else nn.Parameter(torch.empty(features))
        self.norm2 = nn.LayerNorm(features, eps=eps)
        self.head = nn.Linear(features, classes)
        self.reset_parameters()

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        options = {"gamma": self.initial_gamma, "eps": self.norm1.eps, "norm": self.norm}
        return sizes(self.fc1, self.head) | options

    def reset_parameters(self) -> None:
        """Draw linear weights from a truncated normal (0.02), biases zero, norms one, gamma small."""
        for layer in (self.fc1, self.fc2, self.head):
            init_linear(layer)
        self.norm1.reset_parameters()
        self.norm2.reset_parameters()
        if self.gamma is not None and self.initial_gamma is not None:
            nn.init.constant_(self.gamma, self.initial_gamma)

    last = "head"  # the path of the last layer

    def embed(self, x: Tensor) -> Tensor:
        """The input of the last layer: (B, D), or (B, T, D) of tokens, -> (B, D)."""
        x = NORMS[self.norm](x)
        branch = self.fc2(F.gelu(self.fc1(self.norm1(x))))
        x = x + (branch if self.gamma is None else self.gamma * branch)
        embedded: Tensor = self.norm2(x if x.ndim == 2 else x.mean(1))
        return embedded

    def forward(self, x: Tensor) -> Tensor:
        """(B, D), or (B, T, D) of tokens, -> (B, C)."""
        logits: Tensor = self.head(self.embed(x))
        return logits

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """`forward` for all members by batched matrix products; the first normalisation is shared."""
        p, width = {name: value[:, None] for name, value in params.items() if value.ndim == 2}, (x.shape[-1],)
        x = NORMS[self.norm](x)
        normed = F.layer_norm(x, width, eps=self.norm1.eps)
        h = torch.addcmul(p["norm1.bias"], normed, p["norm1.weight"])
        before = product("before", h, params["fc1.weight"], params["fc1.bias"], scratch)
        after = F.gelu(before)
        branch = product("branch", after, params["fc2.weight"], params["fc2.bias"], scratch)
        residual = x + branch if self.gamma is None else torch.addcmul(x, p["gamma"], branch)
        final, mean, rstd = torch.native_layer_norm(residual, width, None, None, self.norm2.eps)
        head = torch.addcmul(p["norm2.bias"], final, p["norm2.weight"])
        logits = product("logits", head, params["head.weight"], params["head.bias"], scratch)
        return logits, (normed, before, after, branch, residual, final, mean, rstd, head)

    def backward_stacked(
        self, params: Mapping[str, Tensor], saved: Saved, grad: Tensor, scratch: Scratch
    ) -> dict[str, Tensor]:
        """Backward through the layers, as autograd would, except for the first product.

        Features need no gradient, and the gradients of norm1 follow from that of fc1's weight: d scale = sum_h dW' * W
        with dW' the gradient for the normalised input. That saves one of the nine large products.
        """
        normed, before, after, branch, residual, final, mean, rstd, head = saved
        p, width = {name: value[:, None] for name, value in params.items() if value.ndim == 2}, [residual.shape[-1]]
        grads = {"head.weight": weight_grad("head.weight", grad, head, scratch), "head.bias": grad.sum(1)}
        d_head = torch.bmm(grad, params["head.weight"])
        grads |= {"norm2.weight": (d_head * final).sum(1), "norm2.bias": d_head.sum(1)}
        d_residual = torch.ops.aten.native_layer_norm_backward(
            d_head.mul_(p["norm2.weight"]), residual, width, mean, rstd, None, None, [True, False, False]
        )[0]
        d_branch = d_residual
        if self.gamma is not None:
            grads["gamma"] = (d_residual * branch).sum(1)
            d_branch = d_residual.mul_(p["gamma"])
        grads |= {"fc2.weight": weight_grad("fc2.weight", d_branch, after, scratch), "fc2.bias": d_branch.sum(1)}
        d_after = torch.bmm(d_branch, params["fc2.weight"], out=scratch("after", tuple(after.shape), after))
        d_before = torch.ops.aten.gelu_backward(d_after, before)
        plain, d_bias = weight_grad("fc1.weight", d_before, normed, scratch), d_before.sum(1)
        weight = params["fc1.weight"]
        both = torch.mul(plain, weight, out=scratch("fc1.product", tuple(weight.shape), weight))
        grads |= {"norm1.weight": both.sum(1), "norm1.bias": torch.bmm(d_bias[:, None], weight).squeeze(1)}
        grads |= {"fc1.weight": plain.mul_(p["norm1.weight"]).baddbmm_(d_bias[..., None], p["norm1.bias"])}
        grads |= {"fc1.bias": d_bias}
        return {name: grads[name] for name in params}
