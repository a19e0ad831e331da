"""What the built-in tails share."""

from __future__ import annotations

from typing import Any

from torch import nn


def sizes(hidden: nn.Linear, head: nn.Linear) -> dict[str, Any]:
    """Arguments that tails with a hidden layer share."""
    return {"features": hidden.in_features, "classes": head.out_features, "hidden": hidden.out_features}


def init_linear(layer: nn.Linear) -> None:
    """Draw the weight from a truncated normal (0.02) as ViT heads do; bias zero."""
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
