"""Early stopping: held-out training samples say when to stop, and which weights to keep."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus._core.random import mix
from dissensus.functional.checks import full_precision
from dissensus.models.ensemble import Ensemble
from dissensus.training.batches import Pool
from dissensus.training.options import Settings

CHECKS = 40  # of the held-out samples, over the whole training
PATIENCE = 8  # checks without a new best value, before training stops
LOGITS = 2**22  # computed at a time


def hold_out(pool: Pool, settings: Settings) -> tuple[Pool, Pool | None]:
    """Split the pool into samples to train on and samples to watch; the seed draws a share of every class.

    Raises:
        DataError: if the share leaves nothing to watch, or no sample of some class to train on.
    """
    if settings.early_stop == 0:
        return pool, None
    train = pool.features
    labels = train.labels_at(slice(0, len(train) // train.passes))
    generator = torch.Generator().manual_seed(mix(settings.seed, 5))
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]  # by class, in random order within each
    # every 1/share-th of that order: classes have their share of the part, up to one sample
    count = round(settings.early_stop * len(labels))
    if count == 0:
        raise DataError(
            f"early_stop={settings.early_stop:g} of {len(labels)} samples is none: raise it, or leave it out"
        )
    watched = order[((torch.arange(count) + 0.5) / count * len(order)).long()].sort().values
    kept = torch.ones(len(labels), dtype=torch.bool)
    kept[watched] = False
    if len(set(labels[kept].tolist())) < len(set(labels.tolist())):
        raise DataError(
            f"early_stop={settings.early_stop:g} holds out {count} of {len(labels)} samples, too many for some "
            "class: leave it out, or train on more samples"
        )
    return pool.subset(kept.nonzero().squeeze(1)), pool.subset(watched)


class EarlyStop:
    """Watches the members' mean cross-entropy on held-out samples and keeps the best weights.

    `state` holds everything, so a resumed run makes the same decisions. Every rank computes the same.
    """

    def __init__(
        self, ensemble: Ensemble, params: Mapping[str, Tensor], watched: Pool | None, steps: int, fabric: Fabric
    ) -> None:
        self.ensemble, self.params, self.watched, self.fabric = ensemble, params, watched, fabric
        self.every = math.ceil(steps / CHECKS)
        self.best = {} if watched is None else {name: value.clone() for name, value in params.items()}
        self.progress = torch.tensor([math.inf, 0.0], dtype=torch.float64)  # best value, checks since

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint saves, sharing memory."""
        if self.watched is None:
            return {}
        return {"early_stop.progress": self.progress} | {f"best.{name}": value for name, value in self.best.items()}

    @property
    def stopped(self) -> bool:
        """Whether the last `PATIENCE` checks did not improve on the best value."""
        return bool(self.progress[1] >= PATIENCE)

    def check(self, done: int, steps: int) -> float | None:
        """Compute the held-out cross-entropy if it is due after `done` steps; keep the weights if they are better."""
        if self.watched is None or (done % self.every and done != steps):
            return None
        value = float(self.fabric.broadcast(self._cross_entropy(self.watched)))
        if value < self.progress[0]:
            self.progress[0], self.progress[1] = value, 0
            for name, weights in self.best.items():
                weights.copy_(self.params[name])
        else:
            self.progress[1] += 1
        return value

    def restore(self) -> None:
        """Put the best weights back."""
        for name, weights in self.best.items():
            self.params[name].copy_(weights)

    @torch.no_grad()
    def _cross_entropy(self, watched: Pool) -> float:
        """Mean cross-entropy over members and samples, by the samples' weights."""
        features, total = watched.features, 0.0
        samples = len(features) // features.passes
        weight = torch.ones(samples, dtype=torch.float64) if watched.weight is None else watched.weight
        self.ensemble.eval()
        size = max(1, LOGITS // (len(self.ensemble) * (self.ensemble.classes or 1000)))
        for x, rows in features.batches(size):
            with self.fabric.autocast():
                logits = full_precision(self.ensemble(x.to(self.fabric.device)))
            target = features.labels_at(rows).to(logits.device).expand(len(logits), -1)
            losses = F.cross_entropy(logits.movedim(-1, 1), target, reduction="none").mean(0).cpu().double()
            total += float(losses @ weight[torch.arange(rows.start, rows.stop) % samples])
        self.ensemble.train()
        return total / float(weight.sum() * features.passes)
