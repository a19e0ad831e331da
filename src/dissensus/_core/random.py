"""Seeds that depend on several numbers: everything random is drawn from one, so that it can be drawn again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def mix(*numbers: int) -> int:
    """One seed from several numbers, far apart for neighbours (splitmix64 over the sequence)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF


def seed_torch(seed: int, device: torch.device | None = None) -> None:
    """Seed PyTorch's generator for a device; None: for CPUs.

    On CPUs, `torch.manual_seed` takes longer than a small training step: it formats a stack trace for each kind of
    accelerator that is not in use.
    """
    import torch

    if device is None or device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
