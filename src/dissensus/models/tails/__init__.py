"""Built-in tails: the last layers, of which every member owns a copy.

A tail is any `nn.Module` from features (B, ...) to logits (B, C); `Ensemble` vectorises it with `torch.func`. `TAILS`
holds the kinds that a run can save and load by name, and your own joins them with `@tails.register`. The built-in ones
normalise features first, as their argument `norm` says: a name in `NORMS`.
"""

from dissensus.models.norms import NORMS
from dissensus.models.tails._linear import Linear
from dissensus.models.tails._mlp import MLP

# isort: split
# in this order, which is that of `dissensus list tails`
from dissensus.models.tails._conv import ACTIVATIONS, Conv
from dissensus.models.tails._registry import (
    TAILS,
    TailType,
    alike,
    build,
    check_norm,
    create,
    default_norm,
    describe,
    fits,
    register,
    width,
)

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "NORMS",
    "TAILS",
    "Conv",
    "Linear",
    "TailType",
    "alike",
    "build",
    "check_norm",
    "create",
    "default_norm",
    "describe",
    "fits",
    "register",
    "width",
]
