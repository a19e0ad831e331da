"""Cases on the training step: against the matrix products it needs, and against itself at other sizes.

A step is what `fit` does once a batch is in memory: draw the active members, gather their weights, forward, loss,
backward, AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import torch
from lightning_fabric import Fabric
from torch import Tensor

from benchmarks.measure import Bar, Comparison, Side, Sizes, compare
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training.options import Task, TrainOptions
from dissensus.training.step import Batch, Stepper

DIVERSITY = 0.5  # of every case: enough for the disagreement term to matter


def floor(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare a step with all members active with its two matrix products."""
    M = sizes.members
    step = Side(f"sed-a2d step, M=active={M}", partial(our_step, sizes, M, M))
    products = Side("its two matrix products", partial(matrix_products, sizes))
    return [compare("floor", step, products, Bar("<=", 1.3), repeats)]


def scaling(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare a step of a large ensemble with one of a small ensemble, with the same number of active members."""
    many, few = (
        Side(f"sed-a2d step, M={members}, active={sizes.active}", partial(our_step, sizes, members, sizes.active))
        for members in (sizes.many, sizes.members)
    )
    return [compare("scaling", many, few, Bar("<=", 1.1), repeats)]


def pairs(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare a step in which all pairs of a large ensemble disagree with a step without disagreement."""
    M = sizes.many
    with_pairs, without = (
        Side(f"sed-a2d step, M=active={M}, diversity={value:g}", partial(our_step, sizes, M, M, diversity=value))
        for value in (DIVERSITY, 0.0)
    )
    return [compare("pairs", with_pairs, without, Bar("<=", 1.15), repeats)]


def matrix_products(sizes: Sizes) -> Callable[[], None]:
    """Return a function that computes (B, D) @ (D, M*C) and (M*C, B) @ (B, D), which every step of linear tails needs.

    The outputs are allocated once, so that only the products are timed.
    """
    B, D, MC = sizes.batch, sizes.features, sizes.members * sizes.classes
    x, weight, grad = torch.randn(B, D), torch.randn(MC, D), torch.randn(B, MC)
    logits, weight_grad = torch.empty(B, MC), torch.empty(MC, D)

    def products() -> None:
        torch.mm(x, weight.t(), out=logits)
        torch.mm(grad.t(), x, out=weight_grad)

    return products


def our_step(
    sizes: Sizes, members: int, active: int, diversity: float = DIVERSITY, tail: str = "linear"
) -> Callable[[], Tensor]:
    """Return a function that takes our training step on one random batch."""
    return step_function(stepper(sizes, members, active, diversity, tail), random_batch(sizes))


def random_batch(sizes: Sizes) -> Batch:
    """Return normal features (B, D) and uniform labels (B,)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes.batch, sizes.features, generator=generator)
    return Batch(x, torch.randint(sizes.classes, (sizes.batch,), generator=generator), sizes.batch)


def stepper(sizes: Sizes, members: int, active: int, diversity: float = DIVERSITY, tail: str = "linear") -> Stepper:
    """Return the trainer's stepper for sed-a2d; with diversity=0 it trains a deep ensemble on shared batches."""
    options = TrainOptions(diversity=diversity, active=active, epochs=1, batch_size=sizes.batch, schedule="constant")
    settings = options.resolve("sed-a2d", members, Task(sizes.batch))
    ensemble = Ensemble(tails.create(tail, sizes.features, sizes.classes), members=members)
    return Stepper(ensemble, settings, cpu_fabric())


def step_function(stepper: Stepper, batch: Batch) -> Callable[[], Tensor]:
    """Return a function that takes the next step on `batch` and returns its statistics."""
    numbers = count()

    def step() -> Tensor:
        return stepper(batch, stepper.draw(next(numbers)), 1.0)

    return step


def cpu_fabric() -> Fabric:
    """Return a Fabric of one CPU process, which all cases use."""
    return Fabric(accelerator="cpu", devices=1)
