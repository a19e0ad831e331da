"""Cases on Dissensus' own training step: against the matrix products it cannot do without, and against itself.

A step is what `fit` does with a batch at hand: draw members, gather them, forward, loss, backward, AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmarks.measure import Bar, Comparison, Side, Sizes, compare
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training.options import DIVERSITY, resolve
from dissensus.training.step import Batch, Stepper


def floor(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """a whole step, all members active, over its two matrix products alone"""
    M = sizes.members
    step = Side(f"sed-a2d step, M=active={M}", partial(own_step, sizes, M, M))
    products = Side("the two matrix products", partial(matrix_products, sizes))
    return [compare("floor", step, products, Bar("<=", 1.3), repeats)]


def scaling(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """a step of a large ensemble over one of a small ensemble, with the same number of active members"""
    many, few = (
        Side(f"sed-a2d step, M={members}, active={sizes.active}", partial(own_step, sizes, members, sizes.active))
        for members in (sizes.many, sizes.members)
    )
    return [compare("scaling", many, few, Bar("<=", 1.1), repeats)]


def pairs(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """a step in which all pairs of a large ensemble disagree over the same without disagreement"""
    M = sizes.many
    with_pairs, without = (
        Side(f"sed-a2d step, M=active={M}, diversity={value:g}", partial(own_step, sizes, M, M, diversity=value))
        for value in (DIVERSITY, 0.0)
    )
    return [compare("pairs", with_pairs, without, Bar("<=", 1.15), repeats)]


def matrix_products(sizes: Sizes) -> Callable[[], None]:
    """(B, D) @ (D, M*C) and (M*C, B) @ (B, D): what no training step of linear tails can do without."""
    B, D, MC = sizes.batch, sizes.features, sizes.members * sizes.classes
    x, weight, grad = torch.randn(B, D), torch.randn(MC, D), torch.randn(B, MC)
    # Into memory that is there already: nothing but the products is timed.
    logits, weight_grad = torch.empty(B, MC), torch.empty(MC, D)

    def products() -> None:
        torch.mm(x, weight.t(), out=logits)
        torch.mm(grad.t(), x, out=weight_grad)

    return products


def own_step(
    sizes: Sizes, members: int, active: int, diversity: float = DIVERSITY, tail: str = "linear"
) -> Callable[[], Tensor]:
    """Our step on one batch."""
    return stepping(stepper(sizes, members, active, diversity, tail), random_batch(sizes))


def random_batch(sizes: Sizes) -> Batch:
    """Normal features (B, D) and labels (B,)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes.batch, sizes.features, generator=generator)
    return Batch(x, torch.randint(sizes.classes, (sizes.batch,), generator=generator), sizes.batch)


def stepper(sizes: Sizes, members: int, active: int, diversity: float = DIVERSITY, tail: str = "linear") -> Stepper:
    """The trainer's stepper by sed-a2d on the processor; with diversity=0 it is a deep ensemble on shared batches."""
    settings = resolve(
        "sed-a2d", members, diversity=diversity, active=active, main="active", hardness="active", epochs=1, lr=1e-3,
        batch_size=sizes.batch, weight_decay=0.01, label_smoothing=0.0, optimizer="adamw", schedule="constant",
        clip=None, confidence=0.2, seed=0, precision="32-true",
    )  # fmt: skip
    ensemble = Ensemble(tails.create(tail, sizes.features, sizes.classes), members=members)
    return Stepper(ensemble, settings, fabric())


def stepping(stepper: Stepper, batch: Batch) -> Callable[[], Tensor]:
    """A function that makes the next step on `batch` and gives its statistics."""
    numbers = count()

    def step() -> Tensor:
        return stepper(batch, stepper.draw(next(numbers)), 1.0)

    return step


def fabric() -> Fabric:
    """One process on the processor, where all sides of every case run."""
    return Fabric(accelerator="cpu", devices=1)
