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
from dissensus.training.checks import check_listed
from dissensus.training.options import Settings, default_shuffle
from dissensus.training.order import BlockOrder
from dissensus.training.step import Batch
from dissensus.training.windows import Drawn, WindowReader


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
        if weight.all():
            return whole
        check_listed(len(weight), "samples of weight zero are left out", "train on a subset, or use small weights")
        return whole.subset(weight.nonzero().squeeze(1))

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
    """Selects the samples of each step, by an order of the training set that depends only on seed and epoch.

    Close it after training: it may have a thread that reads ahead.

    Args:
        pool: The labelled samples.
        elsewhere: Samples to disagree on, drawn at random; in a `BlockOrder` if they are large.
        settings: Of training; `shuffle` decides the order.
        fabric: Lightning Fabric, launched.
        steps: How many steps there will be; None: not known.
    """

    def __init__(
        self, pool: Pool, elsewhere: Pool | None, settings: Settings, fabric: Fabric, steps: int | None = None
    ) -> None:
        train = pool.features
        self.train, self.elsewhere, self.pool = train, elsewhere, pool
        self.settings, self.fabric, self.steps = settings, fabric, steps
        self.samples = len(train) // train.passes
        self.per_epoch = math.ceil(self.samples / settings.batch_size)
        self.separate = methods.METHODS[settings.method].order == "own"
        self._epoch, self._order = -1, torch.empty(0)
        self._reader = self._elsewhere_reader = None
        if settings.shuffle == "blocks":
            copies = settings.members if self.separate else 1
            self._reader = self._windows(train, self.samples, settings.seed, self.per_epoch, copies)
        if elsewhere is not None and _in_blocks(elsewhere.features, settings.batch_size):
            rows = len(elsewhere.features)
            self._elsewhere_reader = self._windows(
                elsewhere.features, rows, mix(settings.seed, 3), rows // settings.batch_size
            )

    def __call__(self, step: int, members: Tensor) -> Batch:
        """Return this rank's part of the batch of a step, for these members."""
        epoch, number = divmod(step, self.per_epoch)
        size, device = self.settings.batch_size, self.fabric.device
        start, stop = number * size, min((number + 1) * size, self.samples)
        if self._reader is not None:
            drawn = self._reader.take(epoch, start, stop, members if self.separate else None)
        else:
            drawn = self._gathered(epoch, start, stop, members)
        assert drawn.labels is not None
        batch = Batch(
            drawn.x.to(device),
            drawn.labels.to(device),
            stop - start,
            sample_weight=self.pool.relative_weight(drawn.whole, drawn.rows, device),
        )
        if self.elsewhere is None:
            return batch
        other = self._elsewhere(self.elsewhere, step)
        return batch._replace(
            elsewhere=other.x.to(device),
            elsewhere_total=size,
            elsewhere_weight=self.elsewhere.relative_weight(other.whole, other.rows, device),
        )

    def close(self) -> None:
        """Stop reading ahead."""
        for reader in (self._reader, self._elsewhere_reader):
            if reader is not None:
                reader.close()

    def _windows(self, features: FeatureSet, samples: int, seed: int, per_epoch: int, copies: int = 1) -> WindowReader:
        """A reader of `samples` rows in blocks, `per_epoch` batches of them per epoch."""
        size, last = self.settings.batch_size, None
        if self.steps is not None:
            epoch, number = divmod(self.steps, per_epoch)
            last = epoch, number * size
        order = BlockOrder(samples, max(1, features.nbytes // len(features)), seed, copies)
        return WindowReader(features, order, size, self.fabric.global_rank, self.fabric.world_size, last)

    def _gathered(self, epoch: int, start: int, stop: int, members: Tensor) -> Drawn:
        """Positions start..stop - 1 of the permutations of an epoch."""
        order = self._orders(epoch)
        whole = (order[members] if self.separate else order[0])[..., start:stop].long()
        rows = whole[..., self.fabric.global_rank :: self.fabric.world_size]
        rows = rows + epoch % self.train.passes * self.samples  # one augmented pass per epoch, in turn
        return Drawn(self.train.rows(rows), self.train.labels_at(rows), rows, whole)

    def _elsewhere(self, pool: Pool, step: int) -> Drawn:
        """A batch of the samples to disagree on."""
        size, features = self.settings.batch_size, pool.features
        if self._elsewhere_reader is not None:
            epoch, number = divmod(step, len(features) // size)  # the few that are left over differ between epochs
            return self._elsewhere_reader.take(epoch, number * size, (number + 1) * size)
        generator = torch.Generator().manual_seed(mix(self.settings.seed, 3, step))
        whole = torch.randint(len(features), (size,), generator=generator)
        rows = whole[self.fabric.global_rank :: self.fabric.world_size]
        return Drawn(features.rows(rows), None, rows, whole)

    def _orders(self, epoch: int) -> Tensor:
        """(1, N), or (M, N) if every member has its own order. Int32, because M = 50 on ImageNet is large."""
        if epoch != self._epoch:
            copies = self.settings.members if self.separate else 1
            seeds = [mix(self.settings.seed, 2, epoch, i) for i in range(copies)]
            dtype = torch.int32 if self.samples < 2**31 else torch.int64
            orders = [
                torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed), dtype=dtype)
                for seed in seeds
            ]
            self._epoch, self._order = epoch, torch.stack(orders)
        return self._order


def _in_blocks(features: FeatureSet, batch_size: int) -> bool:
    """Whether samples to disagree on are drawn in blocks; `auto` of the training set, for these."""
    return features.passes == 1 and len(features) >= batch_size and default_shuffle(features.nbytes) == "blocks"
