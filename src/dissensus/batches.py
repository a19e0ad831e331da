"""Batches: which samples a step of training sees, on this process."""

from __future__ import annotations

import math

import torch
from lightning.fabric import Fabric
from torch import Tensor

from dissensus import methods
from dissensus.features import FeatureSet
from dissensus.seeds import mix
from dissensus.settings import Settings
from dissensus.step import Batch


class Batches:
    """Which samples a step sees: an order of the training set that depends on seed and epoch only."""

    def __init__(self, train: FeatureSet, elsewhere: FeatureSet | None, settings: Settings, fabric: Fabric) -> None:
        assert train.labels is not None
        self.train, self.labels, self.elsewhere = train, train.labels, elsewhere
        self.settings, self.fabric = settings, fabric
        self.samples = len(train) // train.passes
        self.per_epoch = math.ceil(self.samples / settings.batch_size)
        self.own = methods.get(settings.method).order == "own"
        self._epoch, self._order = -1, torch.empty(0)

    def __call__(self, step: int, members: Tensor) -> Batch:
        """This rank's part of the step's batch for these members."""
        epoch, number = divmod(step, self.per_epoch)
        order = self._orders(epoch)
        order = order[members] if self.own else order[0]
        size = self.settings.batch_size
        whole = order[..., number * size : (number + 1) * size].long()
        rows = whole[..., self.fabric.global_rank :: self.fabric.world_size]
        rows = rows + epoch % self.train.passes * self.samples  # one augmented pass an epoch, in turn
        x, labels = self.train.rows(rows).to(self.fabric.device), self.labels[rows].to(self.fabric.device)
        if self.elsewhere is None:
            return Batch(x, labels, whole.shape[-1])
        generator = torch.Generator().manual_seed(mix(self.settings.seed, 3, step))
        drawn = torch.randint(len(self.elsewhere), (size,), generator=generator)
        there = self.elsewhere.rows(drawn[self.fabric.global_rank :: self.fabric.world_size])
        return Batch(x, labels, whole.shape[-1], there.to(self.fabric.device), size)

    def _orders(self, epoch: int) -> Tensor:
        """(1, N), or (M, N) where every member has its own order; four bytes an entry, for M = 50 on ImageNet."""
        if epoch != self._epoch:
            copies = self.settings.members if self.own else 1
            seeds = [mix(self.settings.seed, 2, epoch, i) for i in range(copies)]
            orders = [
                torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
                for seed in seeds
            ]
            self._epoch, self._order = epoch, torch.stack(orders)
        return self._order
