"""Batches: the samples that a training step sees on this process, and their weights."""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus._core.random import mix
from dissensus.features import FeatureSet
from dissensus.functional.arrays import Values, to_numpy
from dissensus.training import methods
from dissensus.training.options import Settings
from dissensus.training.step import Batch


def check_sample_weight(sample_weight: Values, samples: int) -> Tensor:
    """Return sample weights (N,) of any kind as float64 within [0, 1], the largest being 1.

    Raises:
        DataError: unless there is one finite weight of at least 0 per sample, and one above 0.
    """
    try:
        weight = torch.from_numpy(to_numpy(sample_weight).astype("float64"))
    except (TypeError, ValueError) as error:
        raise DataError(f"sample weights must be numbers, one per sample; got something else ({error})") from error
    if weight.shape != (samples,):
        raise DataError(f"sample weights must be ({samples},), one per sample; got {tuple(weight.shape)}")
    if bad := int((~(weight.isfinite() & (weight >= 0))).sum()):
        raise DataError(f"sample weights must be finite and at least 0; {bad} of {samples} are not: correct them")
    if not weight.any():
        raise DataError(f"sample weights must not all be zero; all {samples} are: leave them out for equal weights")
    return weight / weight.max()


class Pool(NamedTuple):
    """Features to draw batches from, and the weights of their samples."""

    features: FeatureSet
    weight: Tensor | None = None  # (N,) float64 above 0, one for all passes of a sample; None: equal weights

    @classmethod
    def of(cls, features: FeatureSet, sample_weight: Values | None) -> Pool:
        """All samples, without those of weight zero."""
        if sample_weight is None:
            return cls(features)
        weight = check_sample_weight(sample_weight, len(features) // features.passes)
        whole = cls(features, weight)
        return whole if weight.all() else whole.subset(weight.nonzero().squeeze(1))

    def subset(self, samples: Tensor) -> Pool:
        """Only these samples, with all their passes."""
        offsets = torch.arange(self.features.passes)[:, None] * (len(self.features) // self.features.passes)
        rows = (offsets + samples).flatten()
        weight = None if self.weight is None else self.weight[samples]
        return Pool(self.features.subset(rows, passes=self.features.passes), weight)

    @property
    def fingerprint(self) -> str | None:
        """A sha256 of the samples and their weights; None without weights."""
        if self.weight is None:
            return None
        return hashlib.sha256(self.features.fingerprint.encode() + self.weight.numpy().tobytes()).hexdigest()

    def relative_weight(self, whole: Tensor, part: Tensor, device: torch.device) -> Tensor | None:
        """Weights of the rows `part` of a batch, such that the rows of the `whole` batch have mean weight 1.

        (..., B) and (..., b) -> (..., b) float32.
        """
        if self.weight is None:
            return None
        samples = len(self.weight)
        mean = self.weight[whole % samples].mean(-1, keepdim=True)
        return (self.weight[part % samples] / mean).float().to(device)


class Batches:
    """Selects the samples of each step, by an order of the training set that depends only on seed and epoch."""

    def __init__(self, pool: Pool, elsewhere: Pool | None, settings: Settings, fabric: Fabric) -> None:
        train = pool.features
        assert train.labels is not None
        self.train, self.labels, self.elsewhere = train, train.labels, elsewhere
        self.pool, self.settings, self.fabric = pool, settings, fabric
        self.samples = len(train) // train.passes
        self.per_epoch = math.ceil(self.samples / settings.batch_size)
        self.separate = methods.METHODS[settings.method].order == "own"
        self._epoch, self._order = -1, torch.empty(0)

    def __call__(self, step: int, members: Tensor) -> Batch:
        """Return this rank's part of the batch of a step, for these members."""
        epoch, number = divmod(step, self.per_epoch)
        order = self._orders(epoch)
        order = order[members] if self.separate else order[0]
        size = self.settings.batch_size
        whole = order[..., number * size : (number + 1) * size].long()
        rows = whole[..., self.fabric.global_rank :: self.fabric.world_size]
        rows = rows + epoch % self.train.passes * self.samples  # one augmented pass per epoch, in turn
        device = self.fabric.device
        batch = Batch(
            self.train.rows(rows).to(device),
            self.labels[rows].to(device),
            whole.shape[-1],
            sample_weight=self.pool.relative_weight(whole, rows, device),
        )
        if self.elsewhere is None:
            return batch
        generator = torch.Generator().manual_seed(mix(self.settings.seed, 3, step))
        drawn = torch.randint(len(self.elsewhere.features), (size,), generator=generator)
        mine = drawn[self.fabric.global_rank :: self.fabric.world_size]
        return batch._replace(
            elsewhere=self.elsewhere.features.rows(mine).to(device),
            elsewhere_total=size,
            elsewhere_weight=self.elsewhere.relative_weight(drawn, mine, device),
        )

    def _orders(self, epoch: int) -> Tensor:
        """(1, N), or (M, N) if every member has its own order. Int32, because M = 50 on ImageNet is large."""
        if epoch != self._epoch:
            copies = self.settings.members if self.separate else 1
            seeds = [mix(self.settings.seed, 2, epoch, i) for i in range(copies)]
            orders = [
                torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
                for seed in seeds
            ]
            self._epoch, self._order = epoch, torch.stack(orders)
        return self._order
