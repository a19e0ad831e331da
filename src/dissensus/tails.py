"""Built-in tails, the last layers that every member owns a copy of, and their stacked forms.

A tail is any `nn.Module` from features (B, ...) to logits (B, C). One that also defines
`stacked(params, x) -> (M, B, C)`, where every parameter has a leading member axis and x is (B, ...) shared by
the members or (M, B, ...) one batch a member, is run that way; all others are vectorised with `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus.errors import UnknownNameError


class Linear(nn.Linear):
    """One layer: features (B, D) -> logits (B, C)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)

    def reset_parameters(self) -> None:
        """Draw the weight from a truncated normal (0.02) as ViT heads do; bias zero."""
        _init_linear(self)

    def stacked(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """All members in one matrix product, (B, D) @ (D, M*C)."""
        weight, bias = params["weight"], params["bias"]
        if x.ndim == 3:
            return stacked_linear(x, weight, bias)
        M, C, D = weight.shape
        logits = torch.addmm(bias.reshape(M * C), x, weight.reshape(M * C, D).t())
        return logits.view(len(x), M, C).transpose(0, 1)


class MLP(nn.Module):
    """The paper's last two layers: x + gamma * mlp(norm(x)), norm, linear. (B, D) -> (B, C).

    With D=768, hidden=4D and C=1000 these are the 5,495,272 parameters that it trains of DeiT3-B. Gamma starts
    at 1e-4, so members begin as norm + linear.
    """

    def __init__(self, features: int, classes: int, hidden: int | None = None, gamma: float = 1e-4) -> None:
        super().__init__()
        self.initial_gamma = gamma
        hidden = hidden or 4 * features
        self.norm1 = nn.LayerNorm(features, eps=1e-6)
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, features)
        self.gamma = nn.Parameter(torch.empty(features))
        self.norm2 = nn.LayerNorm(features, eps=1e-6)
        self.head = nn.Linear(features, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw linear weights from a truncated normal (0.02), biases zero, norms one, gamma small."""
        for layer in (self.fc1, self.fc2, self.head):
            _init_linear(layer)
        self.norm1.reset_parameters()
        self.norm2.reset_parameters()
        nn.init.constant_(self.gamma, self.initial_gamma)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, C)."""
        x = x + self.gamma * self.fc2(F.gelu(self.fc1(self.norm1(x))))
        logits: Tensor = self.head(self.norm2(x))
        return logits

    def stacked(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The same over members by batched matrix products; the first normalisation is done once for all."""
        width = (x.shape[-1],)
        scale, shift = params["norm1.weight"], params["norm1.bias"]
        h = _NormedLinear.apply(
            F.layer_norm(x, width, eps=self.norm1.eps), scale, shift, params["fc1.weight"], params["fc1.bias"]
        )
        h = stacked_linear(F.gelu(h), params["fc2.weight"], params["fc2.bias"])
        h = torch.addcmul(x, params["gamma"][:, None], h)
        h = F.layer_norm(h, width, eps=self.norm2.eps)
        h = torch.addcmul(params["norm2.bias"][:, None], h, params["norm2.weight"][:, None])
        return stacked_linear(h, params["head.weight"], params["head.bias"])


def _init_linear(layer: nn.Linear) -> None:
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(M, B, D) or shared (B, D), weight (M, C, D), bias (M, C) -> (M, B, C)."""
    out: Tensor = _StackedLinear.apply(x, weight, bias)
    return out


class _StackedLinear(torch.autograd.Function):
    """baddbmm whose weight gradient comes out contiguous, as the optimiser reads it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight, bias = _autocast(x, weight, bias)
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, None], _expand(x, len(weight)), weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        (x, weight), (grad,) = ctx.saved_tensors, grad_outputs
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.bmm(grad, weight)
            grad_x = grad_x if x.ndim == 3 else grad_x.sum(0)
        grad_weight = torch.bmm(grad.transpose(1, 2), _expand(x, len(weight)))
        return grad_x, grad_weight, grad.sum(1)


class _NormedLinear(torch.autograd.Function):
    """linear(x * scale + shift), made for inputs that need no gradient, as features do not.

    The gradients of scale and shift follow from that of the weight, which saves the product with the weight
    that autograd would do to reach them: one of the nine large products of the MLP tail.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, scale, shift, weight, bias = _autocast(x, scale, shift, weight, bias)
        ctx.save_for_backward(x, scale, shift, weight)
        return torch.baddbmm(bias[:, None], torch.addcmul(shift[:, None], x, scale[:, None]), weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor, Tensor]:
        (x, scale, shift, weight), (grad,) = ctx.saved_tensors, grad_outputs
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.bmm(grad, weight) * scale[:, None]
            grad_x = grad_x if x.ndim == 3 else grad_x.sum(0)
        plain = torch.bmm(grad.transpose(1, 2), _expand(x, len(weight)))
        grad_bias = grad.sum(1)
        grad_scale = torch.linalg.vecdot(plain, weight, dim=1)
        grad_shift = torch.bmm(grad_bias[:, None], weight).squeeze(1)
        grad_weight = plain.mul_(scale[:, None]).baddbmm_(grad_bias[..., None], shift[:, None])
        return grad_x, grad_scale, grad_shift, grad_weight, grad_bias


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """What autocast would do to the inputs of a matrix product, so that forward and backward agree on it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]


def _expand(x: Tensor, members: int) -> Tensor:
    return x if x.ndim == 3 else x.expand(members, *x.shape)


TAILS: dict[str, Callable[..., nn.Module]] = {"linear": Linear, "mlp": MLP}


def create(name: str, features: int, classes: int) -> nn.Module:
    """Build the built-in tail `name` for features of that width and that many classes."""
    if name not in TAILS:
        raise UnknownNameError("tail", name, TAILS)
    return TAILS[name](features, classes)


def describe(tail: nn.Module) -> dict[str, Any] | None:
    """What `build` needs to make this tail again, or None for a module that is not built in."""
    if isinstance(tail, Linear):
        return {"name": "linear", "features": tail.in_features, "classes": tail.out_features}
    if isinstance(tail, MLP):
        fc1, head = tail.fc1, tail.head
        return {
            "name": "mlp",
            "features": fc1.in_features,
            "classes": head.out_features,
            "hidden": fc1.out_features,
            "gamma": tail.initial_gamma,
        }
    return None


def build(description: Mapping[str, Any]) -> nn.Module:
    """Make the tail that `describe` described."""
    arguments = dict(description)
    name = arguments.pop("name")
    if name not in TAILS:
        raise UnknownNameError("tail", name, TAILS)
    return TAILS[name](**arguments)
