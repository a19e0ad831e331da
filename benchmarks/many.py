"""The case `many`: large ensembles, where a step whose cost does not depend on the number of members pays.

- many-members: a deep ensemble trained as other libraries do it, one member after the other through autograd, each with
  its own `torch.optim.AdamW`. Ours is a step of sed-a2d with 2 active members of as many.
- many-pairs: the loss of sed-a2d over all pairs of all members, written out pair by pair for autograd. Ours is the same
  step in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Bar, Comparison, Side, Sizes, compare
from benchmarks.peers import LR
from benchmarks.steps import DIVERSITY, our_step, random_batch
from dissensus.models import tails
from dissensus.training.step import Batch

LOOPS = 10  # the most repeats: a loop over 50 members takes half a second

Step = Callable[[], Tensor]


def many(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare large ensembles: training every member in a loop, and all pairs by autograd, with our step."""
    M, active = sizes.many, sizes.active
    whole = compare(
        "many-members",
        Side(f"loop over all members, deep ensemble, M={M}", partial(_step, deep_ensemble_step, sizes), burst=1),
        Side(f"our step, sed-a2d, M={M}, active={active}", partial(our_step, sizes, M, active), burst=1),
        Bar(">=", 10.0),
        min(repeats, LOOPS),
    )
    pairs = compare(
        "many-pairs",
        Side(
            f"sed-a2d by autograd, {M * (M - 1) // 2} pairs, M=active={M}",
            partial(_step, all_pairs_step, sizes),
            burst=1,
        ),
        Side(f"our step, M=active={M}", partial(our_step, sizes, M, M), burst=1),
        Bar(">=", 2.0),
        min(repeats, LOOPS),
        warm_up=1,
    )
    return [whole, pairs]


def _step(make: Callable[[Sequence[nn.Module], Batch], Step], sizes: Sizes) -> Step:
    members = [tails.create("linear", sizes.features, sizes.classes) for _ in range(sizes.many)]
    return make(members, random_batch(sizes))


def deep_ensemble_step(members: Sequence[nn.Module], batch: Batch) -> Step:
    """Return a function that takes a step of every member, one after the other, and returns their mean loss."""
    optimisers = [torch.optim.AdamW(member.parameters(), lr=LR) for member in members]

    def step() -> Tensor:
        losses = []
        for member, optimiser in zip(members, optimisers, strict=True):
            optimiser.zero_grad()
            loss = F.cross_entropy(member(batch.x), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    return step


def all_pairs_step(members: Sequence[nn.Module], batch: Batch) -> Step:
    """Return a function that takes a step of sed-a2d over all pairs of all members by autograd and returns its loss."""
    optimiser = torch.optim.AdamW([p for member in members for p in member.parameters()], lr=LR)

    def step() -> Tensor:
        optimiser.zero_grad()
        logits = [member(batch.x) for member in members]
        main = torch.stack([F.cross_entropy(z, batch.labels) for z in logits]).mean()
        with torch.no_grad():
            losses = F.cross_entropy(torch.stack(logits).mean(0), batch.labels, reduction="none")
            hardness = losses / losses.mean() ** 2
        probs = [z.softmax(-1) for z in logits]
        tops = [p.argmax(-1, keepdim=True) for p in probs]
        terms = []
        for m, top in enumerate(tops):
            p = probs[m].gather(-1, top)
            for first in probs[:m]:
                q = first.gather(-1, top)
                terms.append(-torch.log(p * (1 - q) + q * (1 - p) + 1e-9).squeeze(-1))
        disagreement = torch.stack(terms).mean(0)
        loss = main + DIVERSITY / 2 * (hardness * disagreement).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach()

    return step
