"""extract(): run images through a frozen trunk once, into a feature folder.

    images = ImageSet.find("photos")
    features = extract(images, backbones.create("lite0"), "features")

Worker processes read images while the trunk runs. The work is divided into shards, so that a killed extraction loses at
most the shards in progress. The shard is the task: whoever runs it, other processes, a part of a job array or a Ray
cluster, it has the same bytes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed
from lightning_fabric import Fabric
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from dissensus._core import cluster
from dissensus._core.errors import DataError, DissensusError
from dissensus._core.files import cannot_write
from dissensus._core.options import combine, documented, listed
from dissensus._core.places import is_remote, place
from dissensus.backbones import Backbone, engines
from dissensus.features._sources import Collected, Job, Source, source_of
from dissensus.features.encoder import Encoder
from dissensus.features.extraction import Extraction, Plan, Receipt
from dissensus.features.featureset import FeatureSet
from dissensus.features.loader import Change, Reader, default_workers
from dissensus.features.options import ExtractOptions
from dissensus.images import ImageSet, ImageStream, corruptions, standins

__all__ = ["extract"]


@documented(listed(ExtractOptions))
def extract(
    images: ImageSet | ImageStream,
    backbone: Backbone,
    out: str | os.PathLike[str],
    options: ExtractOptions | None = None,
    *,
    on: str = "local",
    part: tuple[int, int] | None = None,
    progress: bool = True,
    fabric: Fabric | None = None,
    **keywords: Any,
) -> FeatureSet:
    """Run every image through the trunk and write the features; shards that `out` already holds are kept.

    Args:
        images: The images, by index or as a stream of shards.
        backbone: The backbone whose trunk to run.
        out: A new or empty folder, or one in which the same extraction was begun or finished; a path or a URL.
        options: How to extract; None: the defaults.
        on: "local", or "ray" for a Ray cluster, whose nodes must all reach the images and `out`.
        part: (K, N) to write only the K-th of N parts, counted from 1; `merge` joins them.
        progress: Show a progress bar when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices or several processes, which share the shards.
        keywords: Options by name, which take precedence over `options`:

            {options}

    Returns:
        The features, opened from `out`.

    Raises:
        DissensusError: If an option breaks a rule, too many images are unreadable, or the folder has other contents.

    Example:
        >>> features = extract(ImageSet.find("photos"), backbones.create("lite0"), "features", engine="onnx")
    """
    options = combine(ExtractOptions, options, keywords)
    cluster.check(on)
    engines.ENGINES.check(options.engine)
    if (change := change_of(options)) is not None:
        # Checked here, where the error is one line; a worker prints a traceback.
        change(Image.new("RGB", (32, 32)), seed=0)
    fabric = fabric or Fabric(devices=1)
    if on == "ray" and (fabric.world_size > 1 or precision_of(fabric) != "32-true"):
        raise DissensusError(
            f"--on ray brings its own processes and runs in 32-true; got {fabric.world_size} devices and "
            f"{precision_of(fabric)}: leave --devices and --precision out"
        )
    passes = max(1, options.augment)
    source = _source(images, backbone, options)
    steps = steps_of(source.steps, part)
    plan = plan_of(images, backbone, options, precision_of(fabric), part)
    work = Extraction(place(out), plan, steps, source.steps, passes)
    work.shared(fabric.global_rank, fabric.world_size)
    with _claimed(work, fabric):
        if not work.finished:
            with _failing_together(work, fabric), work.stopping():
                fill = _Fill(work, source, options, progress, fabric)
                if on == "ray":
                    fill.on_ray(images, backbone)
                else:
                    fill.here(backbone)
            with _failing_together(work, fabric):
                if fabric.is_global_zero:
                    work.missing()
                    fill.read = max(fill.read, work.known_images + len(work.bad()))
                    fill.check_bad(work.bad())  # of all processes
                    known = images.classes if isinstance(images, ImageSet) else images.classes or None
                    groups = images.group_names if isinstance(images, ImageSet) else ()
                    work.finish(shape=backbone.shape, classes=known, group_names=groups)
    return FeatureSet.open(out)


def steps_of(steps: int, part: tuple[int, int] | None) -> range:
    """Return the shards of a pass that a part has: a contiguous range, all without a part.

    Raises:
        DataError: If the part is not K of N, or there are fewer shards than parts.
    """
    if part is None:
        return range(steps)
    number, count = part
    if not 1 <= number <= count:
        raise DataError(f"a part is K/N with K from 1 to N; got {number}/{count}: count parts from 1")
    if count > steps:
        raise DataError(
            f"every part needs a shard; {count} parts share {steps} shards: use fewer parts, or smaller shards"
        )
    return range((number - 1) * steps // count, number * steps // count)


def precision_of(fabric: Fabric | None) -> str:
    """Return the numerical precision that Fabric runs with, such as 32-true."""
    return "32-true" if fabric is None else str(fabric.strategy.precision.precision)


def change_of(options: ExtractOptions) -> Change | None:
    """Return what is done to each image before it is seen: the corruption or the view; None: nothing."""
    if options.corruption is not None:
        return functools.partial(corruptions.corrupt, name=options.corruption, severity=options.severity)
    return None if options.view is None else functools.partial(standins.apply, name=options.view)


def plan_of(
    images: ImageSet | ImageStream,
    backbone: Backbone,
    options: ExtractOptions,
    precision: str,
    part: tuple[int, int] | None = None,
) -> Plan:
    """Return what the features depend on; an extraction continues only in a folder with the same plan."""
    corruption = options.corruption
    values = {
        "backbone": backbone.describe(),
        "images": images.fingerprint,
        "augment": options.augment,
        "corruption": None if corruption is None else [corruption.replace("-", "_"), options.severity],
        "view": options.view,
        # Where nothing is random another seed changes nothing.
        "seed": options.seed if options.augment or corruption or options.view else None,
        "engine": options.engine,
        "precision": precision,
        "dtype": options.dtype,
        "shard_images": options.shard_images if isinstance(images, ImageSet) else None,
        "part": part,
    }
    return Plan.model_validate_json(json.dumps(values))


def _source(images: ImageSet | ImageStream, backbone: Backbone, options: ExtractOptions) -> Source:
    reader = Reader(backbone.transform, None, options.augment > 0, change_of(options), options.seed)
    return source_of(images, reader, options.shard_images, options.batch_size)


class _Fill:
    """Writes the missing shards of an extraction."""

    def __init__(
        self, work: Extraction, source: Source, options: ExtractOptions, progress: bool, fabric: Fabric
    ) -> None:
        self.work, self.source, self.options, self.progress, self.fabric = work, source, options, progress, fabric
        self.total = source.images_of(work.steps)
        self.read = 0  # images so far, of a stream, whose total is unknown

    def here(self, backbone: Backbone) -> None:
        """Write the shards that no other process has taken, in this process; workers read ahead."""
        fabric, options = self.fabric, self.options
        encoder = Encoder(backbone, options.engine, fabric.device)  # before workers are forked
        missing = self.work.missing()
        bad = self.work.bad()
        self.read = self.work.known_images + len(bad)
        self.check_bad(bad)
        workers = options.workers
        if workers is None:
            workers = default_workers(getattr(fabric.strategy, "num_processes", 1))
        jobs: Iterable[Job] = (self._job(number) for number in missing if self.work.take(number))
        if self.total is None:  # a stream is opened by workers, which cannot ask whether a shard is taken
            jobs = [self._job(number) for number in missing[fabric.global_rank :: fabric.world_size]]
        shards: dict[int, Collected] = {}
        with self._bar(missing) as bar, self.source.ahead(jobs, workers) as batches:
            for batch in batches:
                shard = shards.setdefault(batch.request.shard, Collected())
                with fabric.autocast():
                    features = encoder(batch.pixels)
                _check_values(features, options.dtype, [batch.names[i] for i in batch.readable])
                shard.add(batch, features.numpy().astype(options.dtype))
                bad.update(shard.errors)
                self.read += len(batch.names)
                self.check_bad(bad)
                if batch.request.last:
                    self.work.write(batch.request.shard, shard.stacked, self.source.metadata(shard), shard.errors)
                    del shards[batch.request.shard]
                # The other processes advance at about the same rate.
                ahead = len(batch.names) * fabric.world_size
                bar.update(ahead if bar.total is None else min(ahead, bar.total - bar.n))
                if bad:
                    bar.set_postfix_str(f"{len(bad)} bad", refresh=False)
                if self.work.stopped:
                    return

    def on_ray(self, images: ImageSet | ImageStream, backbone: Backbone) -> None:
        """Write the shards as tasks of a Ray cluster."""
        missing = self.work.missing()
        self.read = self.work.known_images
        folder, device = self.work.folder, self.fabric.device.type
        out = str(folder if is_remote(folder) else folder.resolve())  # tasks have another working folder
        task = _Task(images, backbone, self.options, out, self.work.plan, self.source.steps, device)
        gpus = 1 if device == "cuda" else 0
        with self._bar(missing) as bar:
            results = cluster.on_ray(_run_task, task, missing, gpus=gpus)
            with contextlib.closing(results):
                for number, (text, count) in results:
                    self.work.add(number, Receipt.model_validate_json(text))
                    self.read += count
                    self.check_bad(self.work.bad())
                    bar.update(count)

    def _job(self, number: int) -> Job:
        turn, step = divmod(number, self.work.total)
        return Job(number, step, turn)

    def _bar(self, missing: Sequence[int]) -> Any:
        steps = self.work.total
        done = None
        if self.total is not None:
            left = sum(self.source.images_of(range(n % steps, n % steps + 1)) or 0 for n in missing)
            done = self.total * self.work.passes - left
        return tqdm(
            total=None if self.total is None else self.total * self.work.passes,
            initial=done or 0,
            desc=f"extract {self.work.folder.name}",
            unit="image",
            smoothing=0.05,
            leave=False,
            dynamic_ncols=True,
            disable=None if self.progress and self.fabric.is_global_zero else True,
        )

    def check_bad(self, bad: Mapping[str, str]) -> None:
        """Raise if more images are unreadable than allowed: a share above 0 always allows one."""
        # Rounded first: 0.29 * 100 is 28.999999999999996. Of a stream, a share of what was read.
        share = 0.0 if self.options.strict else self.options.max_bad
        images = self.read if self.total is None else self.total
        allowed = max(int(round(share * images, 6)), 1 if share > 0 else 0)
        if len(bad) <= allowed:
            return
        name, reason = next(iter(bad.items()))
        if self.options.strict:
            raise DataError(f"every image must be readable; {name} is not ({reason}): fix it, or leave out --strict")
        path = self.work.list_bad(list({**self.work.bad(), **bad}.items()))
        raise DataError(
            f"at most {allowed} of {images} images may be unreadable; {len(bad)} are so far, such as {name} "
            f"({reason}): see {path}; raise --max-bad to continue without them, or fix them and choose another folder"
        )


class _Task(NamedTuple):
    """What a task of a cluster needs to write any shard."""

    images: ImageSet | ImageStream
    backbone: Backbone
    options: ExtractOptions
    out: str
    plan: Plan
    steps: int
    device: str


_ENCODERS: dict[str, Encoder] = {}  # of this process, by the fingerprint of the trunk and the engine


def _run_task(task: _Task, number: int) -> tuple[str, int]:
    """Write one shard in a process of a cluster; return its receipt and the number of its images."""
    key = f"{task.backbone.describe()['fingerprint']} {task.options.engine} {task.device}"
    if key not in _ENCODERS:
        _ENCODERS.clear()
        _ENCODERS[key] = Encoder(task.backbone, task.options.engine, task.device)
    source = _source(task.images, task.backbone, task.options)
    turn, step = divmod(number, task.steps)
    shard, count = Collected(), 0
    for batch in source.batches(Job(number, step, turn)):
        features = _ENCODERS[key](batch.pixels)
        _check_values(features, task.options.dtype, [batch.names[i] for i in batch.readable])
        shard.add(batch, features.numpy().astype(task.options.dtype))
        count += len(batch.names)
    work = Extraction(place(task.out), task.plan, range(step, step + 1), task.steps)
    work.prepare()
    receipt = work.write(number, shard.stacked, source.metadata(shard), shard.errors)
    return receipt.model_dump_json(), count


def _check_values(features: Tensor, dtype: str, names: Sequence[str]) -> None:
    """Raise if features (B, ...) are not finite in `dtype`; the error names the image."""
    limit = torch.finfo(getattr(torch, dtype)).max
    peaks = features.flatten(1).abs().amax(1)
    for i in (~(peaks <= limit)).nonzero().flatten().tolist()[:1]:  # NaN compares false
        if peaks[i].isfinite():
            raise DataError(
                f"{dtype} holds values up to {limit:g}; the features of {names[i]} reach {peaks[i]:g}: use "
                "--dtype float32"
            )
        raise DataError(f"features must be finite; those of {names[i]} are not: check the weights, or the --precision")


@contextlib.contextmanager
def _claimed(work: Extraction, fabric: Fabric) -> Iterator[None]:
    """Claim the folder in the first process; the others join it."""
    with contextlib.ExitStack() as stack:
        with _failing_together(work, fabric):
            if fabric.is_global_zero:
                stack.enter_context(work.claimed())
        with _failing_together(work, fabric):
            if not fabric.is_global_zero:
                stack.enter_context(work.joined(fabric.global_rank))
        yield


@contextlib.contextmanager
def _failing_together(work: Extraction, fabric: Fabric) -> Iterator[None]:
    """Wait for all processes at the end of the block; if one of them fails, all of them raise its error."""
    problem: DissensusError | None = None
    try:
        yield
    except DissensusError as error:
        problem = error
    except OSError as error:
        problem = DataError(str(cannot_write(place(error.filename or work.folder), error)))
        problem.__cause__ = error
    if fabric.world_size > 1:
        messages: list[str] = [""] * fabric.world_size
        try:
            torch.distributed.all_gather_object(messages, str(problem or ""))
        except RuntimeError as error:
            raise problem or DissensusError(
                "all processes of a command must live until its end; one was killed: run the same command again"
            ) from error
        problem = problem or next((DataError(text) for text in messages if text), None)
    if problem is not None:
        raise problem
