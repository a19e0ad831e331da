"""Threads of PyTorch for a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dissensus.models.ensemble import Ensemble
from dissensus.training.options import Settings

# Multiplications of a step below which threads wait for each other longer than they work. With other work on the cores,
# two threads then took 7 to 20 times longer than one: every operation waits for the slower of them.
SMALL = 1e8


@contextlib.contextmanager
def suited_threads(
    ensemble: Ensemble, shape: tuple[int, ...], settings: Settings, device: torch.device
) -> Iterator[None]:
    """Use one thread for small steps on CPUs. It depends on sizes only, so that a resumed run has as many.

    Args:
        ensemble: What is trained.
        shape: The shape of one row of features; steps on maps and tokens are never small.
        settings: Of training.
        device: Where it is trained.
    """
    before = torch.get_num_threads()
    forwarded = len(ensemble) if settings.main == "all" else settings.active
    weights = sum(value[0].numel() for value in ensemble.stacked().values())
    small = device.type == "cpu" and len(shape) == 1 and 2 * settings.batch_size * forwarded * weights < SMALL
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)
