"""Built-in tails: the last layers, of which every member owns a copy.

A tail is any `nn.Module` from features (B, ...) to logits (B, C); `Ensemble` vectorises it with `torch.func`. `TAILS`
holds the kinds that a run can save and load by name, and your own joins them with `@tails.register`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus._core.errors import DissensusError
from dissensus._core.registry import Registry
from dissensus.models.stacked import Saved, Scratch, product, weight_grad


@dataclass(frozen=True)
class TailType:
    """A registered kind of tail.

    Attributes:
        module: The class; its constructor takes `features` and `classes`, and its method `arguments()` returns what the
            constructor needs to build the same tail again.
        axes: How many axes a row of features may have -> which of them is `features` wide.
    """

    module: Callable[..., nn.Module]
    axes: Mapping[int, int]


TAILS: Registry[TailType] = Registry("tail")
"""Every registered kind of tail by name."""

_T = TypeVar("_T", bound=type[nn.Module])


def register(name: str, *, axes: Mapping[int, int]) -> Callable[[_T], _T]:
    """Add the decorated class to `TAILS`; see `TailType` for what it must provide."""

    def add(module: _T) -> _T:
        TAILS.add(name, TailType(module, axes))
        return module

    return add


def create(name: str, features: int, classes: int) -> nn.Module:
    """Build the tail `name` for features of that width and that many classes."""
    return TAILS[name].module(features, classes)


def describe(tail: nn.Module) -> dict[str, Any] | None:
    """What `build` needs to build this tail again: its name and arguments; None if its class is not registered."""
    for name, kind in TAILS.items():
        if type(tail) is kind.module:
            return {"name": name, **tail.arguments()}  # type: ignore[operator]
    return None


def build(description: Mapping[str, Any]) -> nn.Module:
    """Build the tail that `describe` described.

    Raises:
        DissensusError: If there is no such tail, or it does not take these arguments.
    """
    arguments = dict(description)
    module = TAILS[arguments.pop("name")].module
    try:
        return module(**arguments)
    except DissensusError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # sizes below zero, or too large
        reason = str(error).partition("\n")[0][:160]  # PyTorch appends a stack trace
        raise DissensusError(f"tail {description['name']} cannot be built from {arguments}: {reason}") from error


def width(name: str, shape: Sequence[int]) -> int | None:
    """The width that the tail `name` needs for rows of that shape; None if it does not take such rows."""
    axis = TAILS[name].axes.get(len(shape))
    return None if axis is None else shape[axis]


def fits(description: Mapping[str, Any], shape: Sequence[int]) -> bool:
    """Whether the tail that `describe` described takes rows of features of that shape."""
    return bool(width(description["name"], shape) == description["features"])


@register("linear", axes={1: 0})
class Linear(nn.Linear):
    """One layer: features (B, D) -> logits (B, C)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"features": self.in_features, "classes": self.out_features}

    def reset_parameters(self) -> None:
        """Draw the weight from a truncated normal (0.02) as ViT heads do; bias zero."""
        _init_linear(self)

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """All members in one matrix product, (B, D) @ (D, M*C), where they share x."""
        weight, bias = params["weight"], params["bias"]
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


@register("mlp", axes={1: 0, 2: -1})
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

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return _sizes(self.fc1, self.head) | {"gamma": self.initial_gamma, "eps": self.norm1.eps}

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
        """`forward` for all members by batched matrix products; the first normalisation is shared."""
        p, width = {name: value[:, None] for name, value in params.items() if value.ndim == 2}, (x.shape[-1],)
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


@register("conv", axes={1: 0, 3: 0})
class Conv(nn.Module):
    """The last 1x1 stage of a convolutional net: a hidden layer at every position, their mean, linear.

    Maps (B, D, H, W), or vectors (B, D) from nets that pool first, -> (B, C).
    """

    def __init__(self, features: int, classes: int, hidden: int | None = None, activation: str = "relu6") -> None:
        super().__init__()
        ACTIVATIONS.check(activation)
        self.activation = activation
        self.conv = nn.Linear(features, hidden or 4 * features)
        self.head = nn.Linear(self.conv.out_features, classes)
        self.reset_parameters()

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return _sizes(self.conv, self.head) | {"activation": self.activation}

    def reset_parameters(self) -> None:
        """Draw the hidden layer as He et al. (2015), the head as ViT heads; biases zero."""
        nn.init.kaiming_normal_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)
        _init_linear(self.head)

    def forward(self, x: Tensor) -> Tensor:
        """(B, D, H, W) or (B, D) -> (B, C)."""
        positions = x[:, None] if x.ndim == 2 else x.flatten(2).transpose(1, 2)  # (B, H*W, D)
        hidden = ACTIVATIONS[self.activation](self.conv(positions)).mean(1)
        logits: Tensor = self.head(hidden)
        return logits


ACTIVATIONS: Registry[Callable[[Tensor], Tensor]] = Registry(
    "activation", {name: getattr(F, name) for name in ("relu", "relu6", "silu", "hardswish", "gelu")}
)


def _sizes(hidden: nn.Linear, head: nn.Linear) -> dict[str, Any]:
    return {"features": hidden.in_features, "classes": head.out_features, "hidden": hidden.out_features}


def _init_linear(layer: nn.Linear) -> None:
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
