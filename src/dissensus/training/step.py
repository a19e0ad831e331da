"""One training step: draw members, compute the loss and its gradient, update weights.

For one process or many: every rank draws the same members and has its part of the batch; only the gradients of the
members that run are summed across ranks.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor

from dissensus._core.random import mix
from dissensus.functional.checks import full_precision, widest
from dissensus.functional.fused import cross_entropy_a2d
from dissensus.functional.losses import REGULARISERS, Regulariser, ensemble_cross_entropy, hardness_of
from dissensus.models import stacked
from dissensus.models.ensemble import Ensemble
from dissensus.training import methods, optim
from dissensus.training.options import Settings

STATISTICS = ("loss", "cross_entropy", "disagreement", "hardness", "accuracy")


class Batch(NamedTuple):
    """This rank's part of a batch."""

    x: Tensor  # (B, ...), or (A, B, ...) if each member has its own order
    labels: Tensor  # (B,) or (A, B)
    total: int  # samples of the whole batch, over all ranks
    elsewhere: Tensor | None = None  # (B', ...) unlabelled samples to disagree on
    elsewhere_total: int = 0
    # weights of samples, with mean one over the whole batch; None: all equal
    sample_weight: Tensor | None = None  # of the labels' shape
    elsewhere_weight: Tensor | None = None  # (B',)


class _Loss(NamedTuple):
    grad: Tensor  # (A, B + B', C)
    statistics: Tensor  # this rank's share of STATISTICS, to be summed over ranks


class Stepper:
    """Updates the ensemble step by step; its only state besides the weights is the optimiser's."""

    def __init__(self, ensemble: Ensemble, settings: Settings, fabric: Fabric) -> None:
        self.ensemble, self.settings, self.fabric = ensemble, settings, fabric
        self.method = methods.METHODS[settings.method]
        name = self.method.regulariser if settings.diversity > 0 else None
        self.regulariser = None if name is None else REGULARISERS[name]
        self.params = {name: value.detach() for name, value in ensemble.stacked().items()}
        self.buffers = dict(ensemble.tail.named_buffers())
        lr, decay, self.smoothing = self._hyper_parameters()
        self.optimiser = optim.create(settings.optimizer, self.params, lr, decay)
        self._scratch = stacked.Scratch()

    def _hyper_parameters(self) -> tuple[float | Tensor, float | Tensor, float | Tensor]:
        s = self.settings
        if not self.method.spread:
            return s.lr, s.weight_decay, s.label_smoothing
        return optim.spread(s.members, s.lr, s.weight_decay, s.label_smoothing, s.seed)

    def state(self) -> dict[str, Tensor]:
        """Weights and optimiser state by name, sharing memory with those in training."""
        weights = {f"weight.{name}": value for name, value in self.params.items()}
        return {**weights, **{f"optimiser.{name}": value for name, value in self.optimiser.state().items()}}

    def draw(self, step: int) -> Tensor:
        """Draw the active members of a step, in random order; depends on seed and step only."""
        generator = torch.Generator().manual_seed(mix(self.settings.seed, 1, step))
        return torch.randperm(self.settings.members, generator=generator)[: self.settings.active]

    def forwarded(self, active: Tensor) -> Tensor:
        """The members that run and are updated in a step, in the order of their batches: the active ones, or all."""
        everyone = self.settings.main == "all" or len(active) == len(self.ensemble)
        return torch.arange(len(self.ensemble)) if everyone else active

    def __call__(self, batch: Batch, active: Tensor, factor: float) -> Tensor:
        """Update the forwarded members; return this batch's STATISTICS (5,), summed over ranks."""
        forwarded = self.forwarded(active)
        params, buffers = self._take(forwarded)
        x = batch.x if batch.elsewhere is None else torch.cat([batch.x, batch.elsewhere])
        pairs = None if len(active) == len(forwarded) else active.to(x.device)
        tail = self.ensemble.tail
        if self._in_closed_form(tail, batch.x):
            with torch.no_grad():
                logits, saved = tail.forward_stacked(params, x, self._scratch)
                loss = self._loss(logits, batch, pairs, forwarded)
                grads = tail.backward_stacked(params, saved, loss.grad, self._scratch)
        else:
            with self.fabric.autocast():
                logits = self.ensemble.run(params | buffers, x, own_batch=self.method.order == "own")
            loss = self._loss(logits.detach(), batch, pairs, forwarded)
            values = torch.autograd.grad(
                logits, list(params.values()), loss.grad.to(logits.dtype), allow_unused=True, materialize_grads=True
            )
            grads = dict(zip(params, values, strict=True))
        grads = {name: self._sum(grad) for name, grad in grads.items()}
        if self.settings.clip is not None:
            optim.clip(grads, self.settings.clip)
        self.optimiser.step(forwarded.tolist(), grads, factor)
        return self._sum(loss.statistics)

    def _in_closed_form(self, tail: torch.nn.Module, x: Tensor) -> TypeGuard[stacked.StackedTail]:
        """Whether to use the tail's closed form: not under autocast, nor for features that are not vectors."""
        flat = x.ndim == (3 if self.method.order == "own" else 2)
        return stacked.in_closed_form(tail) and flat and self.settings.precision == "32-true"

    def _take(self, members: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The members' parameters as leaves for autograd, gathered into the same memory every step, and buffers."""
        if len(members) == len(self.ensemble):
            return {name: value.detach().requires_grad_() for name, value in self.params.items()}, self.buffers
        index, slices = members.to(self.fabric.device), {}
        for name, value in self.params.items():
            memory = self._scratch(f"slice {name}", (len(members), *value.shape[1:]), value)
            slices[name] = torch.index_select(value, 0, index, out=memory).detach().requires_grad_()
        return slices, {name: value.index_select(0, index) for name, value in self.buffers.items()}

    def _loss(self, logits: Tensor, batch: Batch, pairs: Tensor | None, forwarded: Tensor) -> _Loss:
        logits = full_precision(logits)
        s, labelled = self.settings, batch.labels.shape[-1]
        smoothing = self.smoothing[forwarded] if isinstance(self.smoothing, Tensor) else self.smoothing
        here = logits[:, :labelled]
        alpha = weights = None
        objective = cross_entropy_a2d
        if self.regulariser is not None and self.method.disagree_on == "hard":
            alpha = self._hardness(here if pairs is None or s.hardness == "all" else here[pairs], batch)
            if self.regulariser.fused is not None:
                objective, weights = self.regulariser.fused, s.diversity / 2 * alpha
        fused = objective(
            here,
            batch.labels,
            weights=weights,
            sample_weight=batch.sample_weight,
            label_smoothing=smoothing,
            pairs=pairs,
            total=batch.total,
            scratch=self._scratch,
        )
        grad, disagreement = fused.grad, _weighted(fused.disagreement, batch.sample_weight).sum() / batch.total
        added = logits.new_zeros(())
        if (
            self.regulariser is not None and alpha is not None and weights is None
        ):  # hard samples, without a closed form
            total = self._sum(alpha.sum())
            share, scale = alpha / total.clamp_min(torch.finfo(total.dtype).tiny), s.diversity / 2 * total / batch.total
            disagreement, part = self._disagreement(self.regulariser, here, pairs, share, batch.total)
            added, grad = added + scale * disagreement, grad + scale * part
        if self.regulariser is not None and batch.elsewhere is not None:
            there, count = logits[:, labelled:], batch.elsewhere_total
            share = _weighted(logits.new_full(there.shape[1:2], 1 / count), batch.elsewhere_weight)
            value, part = self._disagreement(self.regulariser, there, pairs, share, count)
            added, grad = added + s.diversity / 2 * value, torch.cat([grad, s.diversity / 2 * part], dim=1)
            disagreement = value if alpha is None else disagreement
        members = len(fused.top)
        hits = _weighted(fused.top == batch.labels, batch.sample_weight).sum() / (members * batch.total)
        hard = alpha.sum() / batch.total if alpha is not None else added.new_zeros(())
        main = _weighted(fused.cross_entropy, batch.sample_weight).sum() / (members * batch.total)
        statistics = torch.stack([fused.loss + added, main, disagreement, hard, hits])
        return _Loss(grad, statistics.to(widest(statistics.device)))

    def _hardness(self, logits: Tensor, batch: Batch) -> Tensor:
        """Hardness of each sample, times its sample weight."""
        if self.settings.hardness == "all" and len(logits) < len(self.ensemble):
            with torch.no_grad(), self.fabric.autocast():
                logits = full_precision(self.ensemble(batch.x))
        losses = ensemble_cross_entropy(logits, batch.labels)
        mean = self._sum(_weighted(losses, batch.sample_weight).sum()) / batch.total
        return _weighted(hardness_of(losses, mean), batch.sample_weight)

    def _disagreement(
        self, regulariser: Regulariser, logits: Tensor, pairs: Tensor | None, weights: Tensor, total: int
    ) -> tuple[Tensor, Tensor]:
        """This rank's share of the regulariser, and its gradient with respect to this rank's logits.

        `pairs` are the members that disagree, None: all; `weights` sum to one over the `total` samples of all ranks.
        """
        if pairs is not None:
            value, part = self._disagreement(regulariser, logits[pairs], None, weights, total)
            return value, torch.zeros_like(logits).index_copy_(0, pairs, part)
        if self.fabric.world_size == 1 or not regulariser.whole_batch:
            return regulariser.value_and_grad(logits, weights)
        # Gather the whole batch; ranks with fewer samples are padded with samples of weight zero.
        ranks, local = self.fabric.world_size, logits.shape[1]
        room = -(-total // ranks) - local
        everyone = torch.cat(list(self.fabric.all_gather(F.pad(logits, (0, 0, 0, room)))), dim=1)
        shares = torch.cat(list(self.fabric.all_gather(F.pad(weights, (0, room)))))
        value, grad = regulariser.value_and_grad(everyone, shares)
        start = self.fabric.global_rank * (local + room)
        return value / ranks, grad[:, start : start + local]

    def _sum(self, value: Tensor) -> Tensor:
        if self.fabric.world_size == 1:
            return value
        total = self.fabric.all_reduce(value, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total


def _weighted(values: Tensor, sample_weight: Tensor | None) -> Tensor:
    return values if sample_weight is None else values * sample_weight
