"""Cases against other code: a plain loop over the members, and two libraries that train ensembles.

All sides train the same tails on the same samples with AdamW and the same learning rate, in float32 on the CPU.

- loop: as the authors of the paper train. Every member is a module; the active ones are forwarded one after the other
  through autograd, and one `torch.optim.AdamW` with its defaults holds all parameters.
- torch-uncertainty: `deep_ensembles`, trained as by its classification routine (targets repeated for every member, one
  cross-entropy) without the Lightning trainer. Ours is the same step: all members active, cross-entropy only, one
  batch for all.
- torchensemble: `VotingClassifier.fit` for one epoch with one job, its default, against our `fit` with deep-ensemble
  for one epoch. In both, every member has its own order of the samples. The time is that of the whole call, including
  the creation of the members, divided by the number of batches. Its loader takes whole batches from tensors in memory
  and knows the classes, so that it does not search for them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.measure import Bar, Comparison, Side, Sizes, compare
from benchmarks.steps import DIVERSITY, cpu_fabric, our_step, random_batch
from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus.features import FeatureSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from dissensus.training.step import Batch

LR, WEIGHT_DECAY = 1e-3, 0.01


def loop(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare a plain loop over the active members, as the authors train, with our step: linear and mlp tails."""
    M, active = sizes.members, sizes.active
    return [
        compare(
            f"loop-{tail}",
            Side(f"loop over members, sed-a2d, M={M}, active={active}, {tail} tail", partial(_loop_step, sizes, tail)),
            Side("our step", partial(our_step, sizes, M, active, tail=tail)),
            bar,
            repeats,
        )
        for tail, bar in (("linear", Bar(">=", 2.0)), ("mlp", Bar(">=", 1.5)))
    ]


def _loop_step(sizes: Sizes, tail: str) -> Callable[[], Tensor]:
    def draw(step: int) -> Tensor:
        return torch.randperm(sizes.members)[: sizes.active]

    return loop_step(_members(sizes, tail), draw, random_batch(sizes))


def _members(sizes: Sizes, tail: str) -> list[nn.Module]:
    return [tails.create(tail, sizes.features, sizes.classes) for _ in range(sizes.members)]


def loop_step(members: Sequence[nn.Module], draw: Callable[[int], Tensor], batch: Batch) -> Callable[[], Tensor]:
    """Return a function that takes the next step of the plain loop and returns its loss."""
    optimiser = torch.optim.AdamW([p for member in members for p in member.parameters()], lr=LR)
    numbers = count()

    def step() -> Tensor:
        active = draw(next(numbers)).tolist()
        optimiser.zero_grad()
        logits = [members[i](batch.x) for i in active]
        main = torch.stack([F.cross_entropy(z, batch.labels) for z in logits]).mean()
        with torch.no_grad():
            losses = F.cross_entropy(torch.stack(logits).mean(0), batch.labels, reduction="none")
            hardness = losses / losses.mean() ** 2
        first, *others = [z.softmax(-1) for z in logits]  # a random member, because the order is random
        terms = []
        for probs in others:
            top = probs.argmax(-1, keepdim=True)
            p, q = probs.gather(-1, top), first.gather(-1, top)
            terms.append(-torch.log(p * (1 - q) + q * (1 - p) + 1e-9).squeeze(-1))
        disagreement = torch.stack(terms).mean(0)
        loss = main + DIVERSITY / 2 * (hardness * disagreement).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach()

    return step


def libraries(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare training a deep ensemble with torch-uncertainty and with TorchEnsemble with our training."""
    require()
    M, K = sizes.members, sizes.fit_batches
    steps = [
        compare(
            f"torch-uncertainty-{tail}",
            Side(
                f"torch-uncertainty, deep ensemble, M={M}, {tail} tail", partial(_torch_uncertainty_step, sizes, tail)
            ),
            Side("our step", partial(our_step, sizes, M, M, diversity=0.0, tail=tail)),
            Bar(">", 1.0),
            repeats,
        )
        for tail in ("linear", "mlp")
    ]
    theirs = f"TorchEnsemble's fit, deep ensemble, M={M}, linear tail, one epoch of {K} batches, per batch"
    fits = compare(
        "torchensemble-linear",
        Side(theirs, partial(_their_fit, sizes), K, burst=1),
        Side("our fit", partial(_our_fit, sizes), K, burst=1),
        Bar(">", 1.0),
        repeats,
    )
    return [*steps, fits]


class Peers(NamedTuple):
    """The parts of the two libraries that are used."""

    deep_ensembles: Any
    repeat_target: Any
    voting_classifier: Any


def require() -> Peers:
    """Import the libraries.

    Raises:
        DissensusError: if one of them is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about their dependencies
            return Peers(
                importlib.import_module("torch_uncertainty.methods").deep_ensembles,
                importlib.import_module("torch_uncertainty.transforms").RepeatTarget,
                importlib.import_module("torchensemble").VotingClassifier,
            )
    except ImportError as error:
        raise DissensusError(
            f"cases peers and job need torch-uncertainty and torchensemble ({error}): {extras.install('bench')}, "
            "or choose other cases"
        ) from error


def _torch_uncertainty_step(sizes: Sizes, tail: str) -> Callable[[], Tensor]:
    return torch_uncertainty_step(require(), _members(sizes, tail), random_batch(sizes))


def torch_uncertainty_step(peers: Peers, members: Sequence[nn.Module], batch: Batch) -> Callable[[], Tensor]:
    """Return a function that takes the next step of torch-uncertainty's deep ensemble and returns its loss."""
    model = peers.deep_ensembles(list(members))
    repeat = peers.repeat_target(num_repeats=len(members))
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR)

    def step() -> Tensor:
        optimiser.zero_grad()
        inputs, targets = repeat((batch.x, batch.labels))
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return loss.detach()

    return step


def _samples(sizes: Sizes) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sizes.fit_batches * sizes.batch, sizes.features, generator=generator)
    return x, torch.arange(len(x)) % sizes.classes


def _their_fit(sizes: Sizes) -> Callable[[], None]:
    peers = require()
    data = TensorDataset(*_samples(sizes))
    data.classes = [str(c) for c in range(sizes.classes)]  # type: ignore[attr-defined]
    sampler = BatchSampler(RandomSampler(data), sizes.batch, drop_last=False)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    shape = {"features": sizes.features, "classes": sizes.classes}

    def run() -> None:
        model = peers.voting_classifier(
            estimator=tails.Linear, estimator_args=shape, n_estimators=sizes.members, cuda=False
        )
        model.set_optimizer("AdamW", lr=LR, weight_decay=WEIGHT_DECAY)
        with contextlib.redirect_stdout(io.StringIO()):
            model.fit(loader, epochs=1, save_model=False)

    return run


def _our_fit(sizes: Sizes) -> Callable[[], None]:
    features = FeatureSet.from_arrays(*_samples(sizes), classes=[str(c) for c in range(sizes.classes)])

    def run() -> None:
        ensemble = Ensemble(tails.create("linear", sizes.features, sizes.classes), members=sizes.members)
        fit(
            ensemble, features, "deep-ensemble", epochs=1, lr=LR, batch_size=sizes.batch, weight_decay=WEIGHT_DECAY,
            schedule="constant", progress=False, fabric=cpu_fabric(),
        )  # fmt: skip

    return run
