"""fit(): the one training loop. Every method goes through it; a killed run goes on where it was."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from types import FrameType
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor

from dissensus._core import extras
from dissensus._core.errors import DataError, DissensusError, RunError
from dissensus._core.random import mix
from dissensus.features import FeatureSet
from dissensus.functional.arrays import Values
from dissensus.models.ensemble import Ensemble
from dissensus.training import methods
from dissensus.training.batches import Batches, Pool
from dissensus.training.logbook import Logbook
from dissensus.training.options import Extent, Schedule, Settings, check_data, resolve
from dissensus.training.run import Run
from dissensus.training.step import Stepper


def fit(
    ensemble: Ensemble,
    train_features: FeatureSet,
    method: str = "sed-a2d",
    *,
    diversity: float | None = None,
    active: int | None = None,
    main: Extent = "active",
    hardness: Extent = "active",
    epochs: int = 10,
    lr: float = 1e-3,
    batch_size: int = 256,
    weight_decay: float = 0.01,
    label_smoothing: float = 0.0,
    optimizer: str = "adamw",
    schedule: Schedule = "cosine",
    clip: float | None = None,
    disagreement: FeatureSet | None = None,
    confidence: float = 0.2,
    sample_weight: Values | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 60.0,
    log_every: int = 50,
    tensorboard: bool = False,
    progress: bool = True,
    fabric: Fabric | None = None,
) -> Ensemble:
    """Train the ensemble in place by `method` and return it.

    Args:
        ensemble: the members, freshly initialised.
        train_features: labelled features.
        method: a row of the paper's tables; see `METHODS`.
        diversity: weight of the disagreement term (the paper's lambda); None: 0.5 where the method has one.
        active: members drawn for a batch; None: 2 for SED and two-stage, all for the others.
        main: who is trained on the labels in a step: the active members, or "all" as the paper writes it.
        hardness: whose mean logits judge a sample: the active members', or "all" members' as the paper writes it.
        epochs: passes over the training set; of features with several augmented passes, one an epoch.
        lr: peak learning rate.
        batch_size: samples a step, over all processes.
        weight_decay: decoupled for AdamW, an L2 term for SGD.
        label_smoothing: share of the label that is spread over all classes.
        optimizer: adamw or sgd.
        schedule: cosine (to zero) or constant.
        clip: largest norm of a member's gradient; None: no limit.
        disagreement: unlabelled features to disagree on, for a2d and divdis.
        confidence: two-stage disagrees on training samples whose first-stage confidence is below this.
        sample_weight: what each training sample counts for, (N,), in its batch's loss and hardness; only ratios
            matter, and a sample of weight zero is left out. Of features with several passes, one for all of a sample's.
        seed: decides batches, draws of members and dropout.
        out: run folder: settings, metrics, checkpoints and the trained ensemble; None: nothing is written.
        resume: go on with a run that `out` holds already.
        checkpoint_seconds: time between checkpoints; what a kill can cost at most.
        log_every: steps between lines of metrics.jsonl.
        tensorboard: write TensorBoard events into `out` too.
        progress: show a progress bar when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices, precisions or several processes.
    """
    fabric = fabric or Fabric(devices=1)
    settings = resolve(
        method, len(ensemble), diversity=diversity, active=active, main=main, hardness=hardness, epochs=epochs,
        lr=lr, batch_size=batch_size, weight_decay=weight_decay, label_smoothing=label_smoothing,
        optimizer=optimizer, schedule=schedule, clip=clip, confidence=confidence, seed=seed,
        precision=str(fabric._precision.precision),
    )  # fmt: skip
    pool = Pool.of(train_features, sample_weight)
    check_data(ensemble, pool.features, disagreement, settings)
    if log_every < 1 or checkpoint_seconds < 0:
        raise DissensusError(
            f"log_every must be at least 1 and checkpoint_seconds at least 0; got {log_every} and {checkpoint_seconds}"
        )
    if tensorboard and out is None:
        raise DissensusError("tensorboard writes into the run folder; got out=None: give out= as well")
    if tensorboard:
        extras.require("tensorboard", "tensorboard=True")
    train_features.verify()
    if disagreement is not None:
        disagreement.verify()
    ensemble.to(fabric.device)
    run = None
    if out is not None:
        claim = {**asdict(settings), **_provenance(ensemble, train_features, disagreement)}
        if pool.weight is not None:
            claim["sample_weight"] = pool.fingerprint
        run = _claim(out, claim, resume, fabric)
        if run.finished:
            ensemble.method = method
            ensemble.tail.load_state_dict(Ensemble.load(run.ensemble_folder, ensemble.member(0)).tail.state_dict())
            return ensemble.eval()
    how: dict[str, Any] = {"progress": progress, "checkpoint_seconds": checkpoint_seconds, "log_every": log_every}
    elsewhere = None if disagreement is None else Pool(disagreement)
    if methods.METHODS[method].disagree_on == "unsure" and settings.diversity > 0:
        pool, elsewhere = _split_by_confidence(ensemble, pool, settings, run, fabric, how)
    _train(ensemble, pool, elsewhere, settings, run, fabric, tensorboard=tensorboard, **how)
    ensemble.method = method
    if run is not None and fabric.is_global_zero:
        ensemble.save(run.ensemble_folder)
        run.finish()
    fabric.barrier()
    return ensemble


def _claim(out: str | os.PathLike[str], claim: Mapping[str, Any], resume: bool, fabric: Fabric) -> Run:
    """The first process takes the folder; where it cannot, none goes on."""
    run, problem = None, ""
    if fabric.is_global_zero:
        try:
            run = Run.claim(out, claim, resume=resume)
        except RunError as error:
            problem = str(error)
    if told := str(fabric.broadcast(problem)):
        raise RunError(told)
    return run or Run.claim(out, claim, resume=True)  # the others, of what the first has made


def _train(
    ensemble: Ensemble,
    pool: Pool,
    elsewhere: Pool | None,
    settings: Settings,
    run: Run | None,
    fabric: Fabric,
    *,
    progress: bool,
    checkpoint_seconds: float,
    log_every: int,
    tensorboard: bool = False,
) -> None:
    """The loop itself: draw members and samples, step, log, checkpoint."""
    writer = run if fabric.is_global_zero else None
    stepper = Stepper(ensemble, settings, fabric)
    batches = Batches(pool, elsewhere, settings, fabric)
    log = Logbook(settings, batches.per_epoch, log_every, fabric.device, writer)
    state = {**stepper.state(), **log.state()}
    start = run.load_checkpoint(state) if run else 0
    log.open(start, progress=progress and fabric.is_global_zero, tensorboard=tensorboard)
    ensemble.train()
    saved = time.monotonic()
    with torch.random.fork_rng(), _stop_between_steps() as stopped, contextlib.closing(log):
        for step in range(start, log.steps):
            torch.manual_seed(mix(settings.seed, 4, step, fabric.global_rank))  # for dropout
            active = stepper.draw(step)
            batch = batches(step, stepper.forwarded(active))
            log.add(step + 1, stepper(batch, active, settings.factor(step, log.steps)))
            late = time.monotonic() - saved >= checkpoint_seconds or step + 1 == log.steps
            due, stop = _agree(fabric, late, stopped())
            if run and (due or stop):
                log.check(step + 1)
                if writer:
                    writer.save_checkpoint(state, step + 1)
                saved = time.monotonic()
            if stop:
                raise KeyboardInterrupt
    ensemble.eval()


def _split_by_confidence(
    ensemble: Ensemble, pool: Pool, settings: Settings, run: Run | None, fabric: Fabric, how: dict[str, Any]
) -> tuple[Pool, Pool]:
    """Stage one: train one member, then part the samples it is sure of from those it is not."""
    train = pool.features
    first = Ensemble(ensemble.member(0), members=1, init="template")
    passed = ("epochs", "lr", "batch_size", "weight_decay", "label_smoothing", "optimizer", "schedule", "clip", "seed")
    chosen = {name: getattr(settings, name) for name in passed}
    out = run.folder / "first-stage" if run else None
    fit(first, train, "single", **chosen, sample_weight=pool.weight, out=out, fabric=fabric, **how)
    first.eval()
    with torch.no_grad():
        parts = [first(x.to(fabric.device))[0].softmax(-1).amax(-1).cpu() for x, _ in train.batches(4096)]
    confidence = torch.cat(parts).view(train.passes, -1).mean(0)  # a sample is sure or not, in all its passes
    unsure = confidence < settings.confidence
    if not unsure.any():
        raise DataError(
            f"two-stage found no training sample with confidence below {settings.confidence:g}; the lowest is "
            f"{confidence.min():.3f}: raise it, for 5% of the samples to {confidence.quantile(0.05):.3f}"
        )
    sure = (~unsure).nonzero().squeeze(1)
    if len(sure) == 0 or int((train.subset(sure).class_counts > 0).sum()) < 2:
        raise DataError(
            f"two-stage needs two classes among the samples it is sure of; confidence={settings.confidence:g} leaves "
            f"{len(sure)} of {len(confidence)} samples: lower confidence"
        )
    return pool.subset(sure), pool.subset(unsure.nonzero().squeeze(1))


def _provenance(ensemble: Ensemble, train: FeatureSet, disagreement: FeatureSet | None) -> dict[str, Any]:
    """What the result depends on besides settings: data and initial weights, by fingerprint."""
    return {
        "tail": ensemble.about,
        "start": ensemble.fingerprint[:16],
        "train": train.fingerprint,
        "images": train.images,
        "disagreement": disagreement.fingerprint if disagreement else None,
        "classes": list(train.classes),
        "backbone": _trunk(train),
    }


def _trunk(train: FeatureSet) -> dict[str, Any] | None:
    """What made the features: the backbone, and how it was run."""
    about = train.provenance.get("backbone")
    return None if about is None else {**about, "engine": train.provenance.get("engine", "eager")}


def _agree(fabric: Fabric, *flags: bool) -> list[bool]:
    """Each flag, true everywhere if it is true on any rank: ranks must stop and check together."""
    if fabric.world_size == 1:
        return list(flags)
    counts = fabric.all_reduce(torch.tensor(flags, dtype=torch.float32, device=fabric.device), reduce_op="sum")
    assert isinstance(counts, Tensor)
    return [count > 0 for count in counts.tolist()]


@contextlib.contextmanager
def _stop_between_steps() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag, so that a run stops with its weights whole; a second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
