"""Norms: what a tail does to features first, (..., D) -> (..., D), each row by itself and without parameters.

A linear tail on raw features reads their length, which differs between inputs for reasons that have nothing to do with
the class, and members then agree on inputs that they have never seen. `l2` and `layer` leave the direction only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from dissensus._core.registry import Registry
from dissensus.functional.fitted import unit

Norm = Callable[[Tensor], Tensor]


def l2(x: Tensor) -> Tensor:
    """Rows of length sqrt(D): x / |x| * sqrt(D); a row of zeros stays zero.

    Invariant to the scale of a row, however small or large.

    >>> import torch
    >>> l2(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.8485, 1.1314],
            [0.0000, 0.0000]])
    """
    return unit(x) * math.sqrt(x.shape[-1])


def layer(x: Tensor) -> Tensor:
    """Rows of mean 0 and variance 1, as layer norm without weights; a constant row becomes zeros."""
    # Subtract the first entry: this changes only rounding, which would otherwise be all that remains of a constant row.
    return F.layer_norm(x - x[..., :1], x.shape[-1:])


def none(x: Tensor) -> Tensor:
    """Features as they are."""
    return x


NORMS: Registry[Norm] = Registry("norm", {"l2": l2, "layer": layer, "none": none})
"""Every norm by name."""
