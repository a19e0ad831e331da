"""Built-in tails, the last layers that every member owns a copy of, and their stacked forms.

A tail is any `nn.Module` from features (B, ...) to logits (B, C); `Ensemble` vectorises it with `torch.func`. A
`StackedTail` also knows its forward and backward pass over stacked members, which the trainer then uses instead of
autograd: no graph, and memory that is used again in every step instead of being asked of the system anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus._core.registry import Registry

Saved = tuple[Tensor, ...]


class Scratch:
    """Memory for large results, kept from step to step: fresh pages cost as much as the arithmetic on them."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of that shape; the same memory for the same name, as long as it fits."""
        kept = self._kept.get(name)
        if kept is None or kept.shape != shape or kept.dtype != like.dtype or kept.device != like.device:
            kept = self._kept[name] = like.new_empty(shape)
        return kept


@runtime_checkable
class StackedTail(Protocol):
    """A tail with a closed-form pass over stacked members; parameters are name -> (M, ...)."""

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """Logits (M, B, C), and what backward needs; x is (B, D), or (M, B, D) with a batch for every member."""

    def backward_stacked(
        self, params: Mapping[str, Tensor], saved: Saved, grad: Tensor, scratch: Scratch
    ) -> dict[str, Tensor]:
        """Gradients of the parameters from that of the logits (M, B, C)."""


class Linear(nn.Linear):
    """One layer: features (B, D) -> logits (B, C)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)

    def reset_parameters(self) -> None:
        """Draw the weight from a truncated normal (0.02) as ViT heads do; bias zero."""
        _init_linear(self)

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """All members in one matrix product, (B, D) @ (D, M*C), where they share x."""
        weight, bias = params["weight"], params["bias"]
        M, C, D = weight.shape
        if x.ndim == 3:
            return _product("logits", x, weight, bias, scratch), (x,)
        logits = scratch("logits", (len(x), M * C), x)
        torch.mm(x, weight.view(M * C, D).t(), out=logits)
        logits.add_(bias.view(M * C))  # addmm would spread the bias over memory first: a pass more
        return logits.view(len(x), M, C).transpose(0, 1), (x,)

    def backward_stacked(
        self, params: Mapping[str, Tensor], saved: Saved, grad: Tensor, scratch: Scratch
    ) -> dict[str, Tensor]:
        """One matrix product again, (M*C, B) @ (B, D)."""
        (x,), shape = saved, params["weight"].shape
        if x.ndim == 3:
            return {"weight": _weight_grad("weight", grad, x, scratch), "bias": grad.sum(1)}
        flat = grad.transpose(0, 1).reshape(len(x), -1)
        weight = scratch("weight", tuple(shape), x)
        torch.mm(flat.t(), x, out=weight.view(-1, shape[-1]))
        return {"weight": weight, "bias": flat.sum(0).view(shape[:2])}


class MLP(nn.Module):
    """The paper's last two layers: x + gamma * mlp(norm(x)), norm, linear. (B, D) -> (B, C).

    With D=768, hidden=4D and C=1000 these are the 5,495,272 parameters that it trains of DeiT3-B. Gamma starts
    at 1e-4, so members begin as norm + linear; gamma=None leaves it out, as ViTs without layer scale do. Tokens
    (B, T, D) are averaged before the second norm.
    """

    def __init__(
        self, features: int, classes: int, hidden: int | None = None, gamma: float | None = 1e-4, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.initial_gamma = gamma
        hidden = hidden or 4 * features
        self.norm1 = nn.LayerNorm(features, eps=eps)
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, features)
        self.gamma = None if gamma is None else nn.Parameter(torch.empty(features))
        self.norm2 = nn.LayerNorm(features, eps=eps)
        self.head = nn.Linear(features, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw linear weights from a truncated normal (0.02), biases zero, norms one, gamma small."""
        for layer in (self.fc1, self.fc2, self.head):
            _init_linear(layer)
        self.norm1.reset_parameters()
        self.norm2.reset_parameters()
        if self.gamma is not None and self.initial_gamma is not None:
            nn.init.constant_(self.gamma, self.initial_gamma)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D), or (B, T, D) of tokens, -> (B, C)."""
        branch = self.fc2(F.gelu(self.fc1(self.norm1(x))))
        x = x + (branch if self.gamma is None else self.gamma * branch)
        logits: Tensor = self.head(self.norm2(x if x.ndim == 2 else x.mean(1)))
        return logits

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """The same over members by batched matrix products; the first normalisation is done once for all."""
        p, width = {name: value[:, None] for name, value in params.items() if value.ndim == 2}, (x.shape[-1],)
        normed = F.layer_norm(x, width, eps=self.norm1.eps)
        h = torch.addcmul(p["norm1.bias"], normed, p["norm1.weight"])
        before = _product("before", h, params["fc1.weight"], params["fc1.bias"], scratch)
        after = F.gelu(before)
        branch = _product("branch", after, params["fc2.weight"], params["fc2.bias"], scratch)
        residual = x + branch if self.gamma is None else torch.addcmul(x, p["gamma"], branch)
        final, mean, rstd = torch.native_layer_norm(residual, width, None, None, self.norm2.eps)
        head = torch.addcmul(p["norm2.bias"], final, p["norm2.weight"])
        logits = _product("logits", head, params["head.weight"], params["head.bias"], scratch)
        return logits, (normed, before, after, branch, residual, final, mean, rstd, head)

    def backward_stacked(
        self, params: Mapping[str, Tensor], saved: Saved, grad: Tensor, scratch: Scratch
    ) -> dict[str, Tensor]:
        """Back through the layers, as autograd would, but for the first product.

        Features need no gradient, and those of norm1 follow from that of fc1's weight: d scale = sum_h dW' * W with
        dW' the gradient for the normalised input. That saves one of the nine large products.
        """
        normed, before, after, branch, residual, final, mean, rstd, head = saved
        p, width = {name: value[:, None] for name, value in params.items() if value.ndim == 2}, [residual.shape[-1]]
        made = {"head.weight": _weight_grad("head.weight", grad, head, scratch), "head.bias": grad.sum(1)}
        d_head = torch.bmm(grad, params["head.weight"])
        made |= {"norm2.weight": (d_head * final).sum(1), "norm2.bias": d_head.sum(1)}
        d_residual = torch.ops.aten.native_layer_norm_backward(
            d_head.mul_(p["norm2.weight"]), residual, width, mean, rstd, None, None, [True, False, False]
        )[0]
        d_branch = d_residual
        if self.gamma is not None:
            made["gamma"] = (d_residual * branch).sum(1)
            d_branch = d_residual.mul_(p["gamma"])
        made |= {"fc2.weight": _weight_grad("fc2.weight", d_branch, after, scratch), "fc2.bias": d_branch.sum(1)}
        d_after = torch.bmm(d_branch, params["fc2.weight"], out=scratch("after", tuple(after.shape), after))
        d_before = torch.ops.aten.gelu_backward(d_after, before)
        plain, d_bias = _weight_grad("fc1.weight", d_before, normed, scratch), d_before.sum(1)
        weight = params["fc1.weight"]
        both = torch.mul(plain, weight, out=scratch("fc1.product", tuple(weight.shape), weight))
        made |= {"norm1.weight": both.sum(1), "norm1.bias": torch.bmm(d_bias[:, None], weight).squeeze(1)}
        made |= {"fc1.weight": plain.mul_(p["norm1.weight"]).baddbmm_(d_bias[..., None], p["norm1.bias"])}
        made |= {"fc1.bias": d_bias}
        return {name: made[name] for name in params}


class Conv(nn.Module):
    """The last 1x1 stage of a convolutional net: a hidden layer at every place, their mean, linear.

    Maps (B, D, H, W), or vectors (B, D) of nets that pool first, -> (B, C).
    """

    def __init__(self, features: int, classes: int, hidden: int | None = None, activation: str = "relu6") -> None:
        super().__init__()
        ACTIVATIONS.check(activation)
        self.activation = activation
        self.conv = nn.Linear(features, hidden or 4 * features)
        self.head = nn.Linear(self.conv.out_features, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the hidden layer for a steady variance through rectifiers, the head as ViT heads; biases zero."""
        nn.init.kaiming_normal_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)
        _init_linear(self.head)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) or (B, D) -> (B, C)."""
        places = x[:, None] if x.ndim == 2 else x.flatten(2).transpose(1, 2)  # (B, H*W, D)
        hidden = ACTIVATIONS[self.activation](self.conv(places)).mean(1)
        logits: Tensor = self.head(hidden)
        return logits


ACTIVATIONS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "activation",
    {
        "relu": F.relu,
        "relu6": F.relu6,
        "silu": F.silu,
        "hardswish": F.hardswish,
        "gelu": F.gelu,
    },
)


def _init_linear(layer: nn.Linear) -> None:
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)


def _product(name: str, x: Tensor, weight: Tensor, bias: Tensor, scratch: Scratch) -> Tensor:
    """Every member's linear layer: (M, B, D), weight (M, C, D), bias (M, C) -> (M, B, C)."""
    out = scratch(name, (len(weight), x.shape[-2], weight.shape[1]), x)
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2), out=out)


def _weight_grad(name: str, grad: Tensor, x: Tensor, scratch: Scratch) -> Tensor:
    """(M, B, C) and the layer's input (M, B, D), or (B, D) if shared -> (M, C, D)."""
    x = x if x.ndim == 3 else x.expand(len(grad), *x.shape)
    out = scratch(name, (len(grad), grad.shape[-1], x.shape[-1]), x)
    return torch.bmm(grad.transpose(1, 2), x, out=out)


TAILS: Registry[Callable[..., nn.Module]] = Registry("tail", {"linear": Linear, "mlp": MLP, "conv": Conv})
# How many axes the features of each have: vectors; vectors or tokens; vectors or maps.
AXES = {"linear": (1,), "mlp": (1, 2), "conv": (1, 3)}


def in_closed_form(tail: nn.Module) -> TypeGuard[StackedTail]:
    """Whether the tail's stacked form speaks for its `forward`: not where a subclass has changed only the latter."""
    order = type(tail).__mro__
    where = {
        name: next((i for i, cls in enumerate(order) if name in vars(cls)), None)
        for name in ("forward_stacked", "forward")
    }
    stacked, plain = where["forward_stacked"], where["forward"]
    return isinstance(tail, StackedTail) and stacked is not None and plain is not None and stacked <= plain


def create(name: str, features: int, classes: int) -> nn.Module:
    """Build the built-in tail `name` for features of that width and that many classes."""
    return TAILS[name](features, classes)


def describe(tail: nn.Module) -> dict[str, Any] | None:
    """What `build` needs to make this tail again, or None for a module that is not built in."""
    if type(tail) is Linear:
        return {"name": "linear", "features": tail.in_features, "classes": tail.out_features}
    if type(tail) is MLP:
        about = _about("mlp", tail.fc1, tail.head) | {"gamma": tail.initial_gamma}
        return about if tail.norm1.eps == 1e-6 else about | {"eps": tail.norm1.eps}
    if type(tail) is Conv:
        return _about("conv", tail.conv, tail.head) | {"activation": tail.activation}
    return None


def _about(name: str, hidden: nn.Linear, head: nn.Linear) -> dict[str, Any]:
    sizes = {"features": hidden.in_features, "classes": head.out_features, "hidden": hidden.out_features}
    return {"name": name, **sizes}


def build(description: Mapping[str, Any]) -> nn.Module:
    """Make the tail that `describe` described."""
    arguments = dict(description)
    name = arguments.pop("name")
    return TAILS[name](**arguments)


def fits(description: Mapping[str, Any] | None, shape: Sequence[int]) -> bool:
    """Whether rows of features of that shape go into the tail so described; True for one that is not built in."""
    if description is None:
        return True
    width = shape[-1] if description["name"] == "mlp" else shape[0]
    return len(shape) in AXES[description["name"]] and width == description["features"]
