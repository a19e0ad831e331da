"""Tails over stacked members in closed form, which training uses instead of autograd where a tail has one.

Without a graph, and in memory that is reused from step to step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

Saved = tuple[Tensor, ...]


class Scratch:
    """Memory for large results, kept from step to step: fresh pages cost as much as the arithmetic on them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialised tensor of that shape; the same memory while name, shape and dtype are the same."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape or buffer.dtype != like.dtype or buffer.device != like.device:
            buffer = self._buffers[name] = like.new_empty(shape)
        return buffer


@runtime_checkable
class StackedTail(Protocol):
    """A tail with a closed-form pass over stacked members; parameters are name -> (M, ...)."""

    def forward_stacked(self, params: Mapping[str, Tensor], x: Tensor, scratch: Scratch) -> tuple[Tensor, Saved]:
        """Logits (M, B, C), and what backward needs; x is (B, D), or (M, B, D) where each member has its own batch."""

    def backward_stacked(
        self, params: Mapping[str, Tensor], saved: Saved, grad: Tensor, scratch: Scratch
    ) -> dict[str, Tensor]:
        """Gradients of the parameters from that of the logits (M, B, C)."""


def in_closed_form(tail: nn.Module) -> TypeGuard[StackedTail]:
    """Whether the stacked form is that of the tail's `forward`: not if a subclass overrides only the latter."""
    last = next(cls for cls in type(tail).__mro__ if {"forward", "forward_stacked"} & vars(cls).keys())
    return isinstance(tail, StackedTail) and "forward_stacked" in vars(last)


def product(name: str, x: Tensor, weight: Tensor, bias: Tensor, scratch: Scratch) -> Tensor:
    """Every member's linear layer: (M, B, D), weight (M, C, D), bias (M, C) -> (M, B, C)."""
    out = scratch(name, (len(weight), x.shape[-2], weight.shape[1]), x)
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2), out=out)


def weight_grad(name: str, grad: Tensor, x: Tensor, scratch: Scratch) -> Tensor:
    """(M, B, C) and the layer's input (M, B, D), or (B, D) if shared -> (M, C, D)."""
    x = x if x.ndim == 3 else x.expand(len(grad), *x.shape)
    out = scratch(name, (len(grad), grad.shape[-1], x.shape[-1]), x)
    return torch.bmm(grad.transpose(1, 2), x, out=out)
