"""fit(): the one training loop, for every method. A killed run continues where it stopped."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from lightning_fabric import Fabric
from pydantic import ValidationError
from torch import Tensor

from dissensus._core.documents import problem
from dissensus._core.errors import DataError, DissensusError, DissensusWarning, RunError
from dissensus._core.options import combine, documented, listed
from dissensus._core.random import mix, seed_torch
from dissensus.backbones import BackboneDescription
from dissensus.features import FeatureSet
from dissensus.functional.arrays import Values
from dissensus.models.ensemble import Ensemble
from dissensus.models.saved import MemberTailInfo
from dissensus.training.batches import Batches, Pool
from dissensus.training.checks import check_data
from dissensus.training.early_stop import EarlyStop, hold_out
from dissensus.training.logbook import Logbook
from dissensus.training.methods import DEFAULT_METHOD, METHODS
from dissensus.training.options import FULL_BYTES, Settings, Task, TrainOptions
from dissensus.training.run import Data, Run, writing_run
from dissensus.training.scoring import fit_scores, kinds_of
from dissensus.training.step import Stepper
from dissensus.training.threads import suited_threads


@documented(listed(TrainOptions))
def fit(
    ensemble: Ensemble,
    features: FeatureSet,
    method: str = DEFAULT_METHOD,
    options: TrainOptions | None = None,
    *,
    disagreement: FeatureSet | None = None,
    sample_weight: Values | None = None,
    scores: Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
    fabric: Fabric | None = None,
    **keywords: Any,
) -> Ensemble:
    """Train the ensemble in place and return it.

    Ctrl-C and SIGTERM stop it between two steps, with a checkpoint, and it raises KeyboardInterrupt; a second one stops
    it at once. In a thread other than the main one, where Python delivers no signals, nothing stops it but the end of
    the process. Either way the same call continues from the last checkpoint.

    Args:
        ensemble: the members, freshly initialised.
        features: labelled features to train on. Of several augmented passes, an epoch takes one.
        method: a row of the paper's tables, see `METHODS`.
        options: how to train; None: the defaults.
        disagreement: unlabelled features to disagree on, for a2d and divdis; for SED, besides the hard samples.
        sample_weight: relative weight of each training sample, (N,), in its batch's loss and hardness. Only ratios
            matter; a sample of weight zero is left out. With several passes, one weight covers all passes of a sample.
        scores: fitted scores to keep with the ensemble, see `fit_scores`; None: all, (): none.
        out: run folder for settings, metrics, checkpoints and the trained ensemble; None: nothing is written. Only one
            process at a time writes to it.
        progress: show a progress bar when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices, precisions or several processes.
        keywords: options by name, over those in `options`:

            {options}

    Returns:
        The same ensemble, trained and in evaluation mode.

    Raises:
        DissensusError: for options, features or a run folder that cannot be used.

    Example:
        >>> ensemble = Ensemble(tails.create("linear", 1280, 8), members=5)
        >>> fit(ensemble, suite.train, "sed-a2d", label_smoothing=0.1, out="runs/mine")
    """
    options = combine(TrainOptions, options, keywords)
    fabric = fabric or Fabric(devices=1)
    kinds_of(scores, ensemble)  # raise now for unknown names, not after training
    pool = Pool.of(features, sample_weight)
    task = Task.of(ensemble, pool.features)
    settings = options.resolve(method, len(ensemble), task, str(fabric.strategy.precision.precision))
    check_data(ensemble, pool.features, disagreement, settings)
    if options.logger is not None and out is None:
        raise DissensusError(f"logger={options.logger!r} belongs to a run folder; got out=None: give out= as well")
    for each in (features, disagreement):
        if each is not None and each.nbytes <= FULL_BYTES:  # shards of a larger one are verified when they are read
            each.verify()
    ensemble.to(fabric.device)
    with contextlib.nullcontext() if out is None else writing_run(out, fabric):
        run = None
        if out is not None:
            run = _claim(out, settings, _data(ensemble, features, disagreement, pool), options.resume, fabric)
            if run.finished:
                if fabric.is_global_zero:
                    run.checkpoints.remove()  # of a command that was killed between finishing the run and this
                ensemble.method = method
                loaded = Ensemble.load(run.ensemble_folder, ensemble.member(0))
                ensemble.tail.load_state_dict(loaded.tail.state_dict())
                ensemble.fitted = loaded.fitted
                return ensemble.eval()
        trained_on = pool.features
        pool, watched = hold_out(pool, settings)
        elsewhere = None if disagreement is None or settings.diversity == 0 else Pool(disagreement)
        if METHODS[method].disagree_on == "unsure" and settings.diversity > 0:
            pool, elsewhere = _split_by_confidence(ensemble, pool, settings, options, run, fabric, progress)
        per_epoch = math.ceil(task.samples / settings.batch_size)
        notes = _train(ensemble, pool, elsewhere, watched, settings, options, per_epoch, run, fabric, progress)
        ensemble.method = method
        fit_scores(ensemble, trained_on, scores, progress=progress, fabric=fabric)
        if run is not None and fabric.is_global_zero:
            ensemble.save(run.ensemble_folder)
            run.finish(notes)
        fabric.barrier()
    return ensemble


def _claim(out: str | os.PathLike[str], settings: Settings, data: Data, resume: bool, fabric: Fabric) -> Run:
    """Claim the folder in the first process; if it cannot, raise in all of them."""
    run, refusal = None, ""
    if fabric.is_global_zero:
        try:
            run = Run.claim(out, settings, data, resume=resume)
        except RunError as error:
            refusal = str(error)
    if reason := str(fabric.broadcast(refusal)):
        raise RunError(reason)
    return run or Run.join(out)


def _train(
    ensemble: Ensemble,
    pool: Pool,
    elsewhere: Pool | None,
    watched: Pool | None,
    settings: Settings,
    options: TrainOptions,
    per_epoch: int,
    run: Run | None,
    fabric: Fabric,
    progress: bool,
) -> list[str]:
    """Run the loop: draw members and samples, step, log, checkpoint. Return what the user should know of it.

    `per_epoch` is the number of batches in the whole training set, of which `pool` may be a part.
    """
    writer = run if fabric.is_global_zero else None
    stepper = Stepper(ensemble, settings, fabric)
    log = Logbook(settings, options, per_epoch, fabric.device, writer)
    batches = Batches(pool, elsewhere, settings, fabric, log.steps)
    early = EarlyStop(ensemble, stepper.params, watched, log.steps, fabric)
    state = {**stepper.state(), **log.state(), **early.state()}
    start = run.checkpoints.load(state, warn=fabric.is_global_zero) if run else 0
    log.open(start, progress=progress and fabric.is_global_zero)
    ensemble.train()
    saved = time.monotonic()
    with (
        torch.random.fork_rng(),
        suited_threads(ensemble, pool.features.shape, settings, fabric.device),
        _stop_between_steps() as stopped,
        contextlib.closing(log),
        contextlib.closing(batches),
    ):
        for step in range(start, start if early.stopped else log.steps):
            seed_torch(mix(settings.seed, 4, step, fabric.global_rank), fabric.device)  # for dropout
            active = stepper.draw(step)
            batch = batches(step, stepper.forwarded(active))
            log.add(step + 1, stepper(batch, active, settings.factor(step, log.steps)))
            log.held_out(step + 1, early.check(step + 1, log.steps))
            last = step + 1 == log.steps or early.stopped
            late = time.monotonic() - saved >= options.checkpoint_seconds or last
            due, stop = _agree(fabric, late, stopped())
            if run and (due or stop):
                log.check(step + 1)
                if writer:
                    writer.save_checkpoint(state, step + 1)
                saved = time.monotonic()
            if stop:
                raise KeyboardInterrupt
            if last:
                break
        log.finished = True
    early.restore()
    ensemble.eval()
    notes = [] if early.stopped else log.notes()
    for note in notes if fabric.is_global_zero else []:
        warnings.warn(note, DissensusWarning, stacklevel=3)
    return notes


def _split_by_confidence(
    ensemble: Ensemble,
    pool: Pool,
    settings: Settings,
    options: TrainOptions,
    run: Run | None,
    fabric: Fabric,
    progress: bool,
) -> tuple[Pool, Pool]:
    """Stage one: train one member, then separate the samples it is sure of from those it is not."""
    train = pool.features
    first = Ensemble(ensemble.member(0), members=1, init="template")
    alone = replace(options.suited("single"), active=None, logger=None)
    out = run.folder / "first-stage" if run else None
    fit(
        first, train, "single", alone, sample_weight=pool.weight, scores=(), out=out, progress=progress, fabric=fabric
    )  # fmt: skip
    first.eval()
    with torch.no_grad():
        parts = [first(x.to(fabric.device))[0].softmax(-1).amax(-1).cpu() for x, _ in train.batches(4096)]
    confidence = torch.cat(parts).view(train.passes, -1).mean(0)  # one confidence for all passes of a sample
    unsure = confidence < settings.confidence
    if not unsure.any():
        raise DataError(
            f"two-stage needs training samples with confidence below {settings.confidence:g}; the lowest is "
            f"{confidence.min():.3f}: raise confidence, for 5% of the samples to {confidence.quantile(0.05):.3f}"
        )
    sure = (~unsure).nonzero().squeeze(1)
    if len(sure) == 0 or int((train.subset(sure).class_counts > 0).sum()) < 2:
        raise DataError(
            f"two-stage needs two classes among the samples it is sure of; confidence={settings.confidence:g} leaves "
            f"{len(sure)} of {len(confidence)} samples: lower confidence"
        )
    return pool.subset(sure), pool.subset(unsure.nonzero().squeeze(1))


def _data(ensemble: Ensemble, features: FeatureSet, disagreement: FeatureSet | None, pool: Pool) -> Data:
    """What the result depends on besides the settings."""
    backbone = features.provenance.get("backbone")
    if backbone is not None:
        about = {**backbone, "engine": features.provenance.get("engine", "eager")}
        try:
            backbone = BackboneDescription.model_validate(about, strict=False)
        except ValidationError as error:
            raise DataError(
                f"the features name a backbone that cannot be read, {problem(error)}: extract again"
            ) from error
    return Data(
        train=features.fingerprint,
        images=features.images,
        samples=len(pool.features) // pool.features.passes,
        classes=tuple(features.classes),
        disagreement=None if disagreement is None else disagreement.fingerprint,
        sample_weight=pool.fingerprint,
        backbone=backbone,
        tail=None if ensemble.about is None else MemberTailInfo(**ensemble.about),
        start=ensemble.fingerprint[:16],
    )


def _agree(fabric: Fabric, *flags: bool) -> list[bool]:
    """Return each flag, true on every rank if it is true on any: ranks must stop and save together."""
    if fabric.world_size == 1:
        return list(flags)
    counts = fabric.all_reduce(torch.tensor(flags, dtype=torch.float32, device=fabric.device), reduce_op="sum")
    assert isinstance(counts, Tensor)
    return [count > 0 for count in counts.tolist()]


@contextlib.contextmanager
def _stop_between_steps() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a flag, so that a run stops between two steps; a second one stops it at once."""
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
