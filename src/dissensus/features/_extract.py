"""extract(): run images through a frozen trunk once, into a feature folder.

    images = ImageSet.find("photos")
    features = extract(images, backbones.create("lite0"), "features")

Worker processes read images while the trunk runs. The work is divided into shards by image number, so that a killed
extraction loses at most the shards in progress, and any number of processes writes the same shards.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed
from lightning_fabric import Fabric
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError
from dissensus._core.files import cannot_write
from dissensus._core.options import combine, documented, listed
from dissensus.backbones import Backbone, engines
from dissensus.features.encoder import Encoder
from dissensus.features.extraction import Extraction, Plan, one_line
from dissensus.features.featureset import FeatureSet
from dissensus.features.loader import Change, Reader, Request, default_workers, read
from dissensus.features.options import ExtractOptions
from dissensus.images import ImageSet, corruptions, standins

__all__ = ["extract"]


class Job(NamedTuple):
    """A shard to write: these rows of the image set, in this pass."""

    shard: int
    turn: int
    rows: range


@documented(listed(ExtractOptions))
def extract(
    images: ImageSet,
    backbone: Backbone,
    out: str | os.PathLike[str],
    options: ExtractOptions | None = None,
    *,
    progress: bool = True,
    fabric: Fabric | None = None,
    **keywords: Any,
) -> FeatureSet:
    """Run every image through the trunk and write the features; shards that `out` already holds are kept.

    Args:
        images: The images.
        backbone: The backbone whose trunk to run.
        out: A new or empty folder, or one in which the same extraction was begun or finished.
        options: How to extract; None: the defaults.
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
    engines.ENGINES.check(options.engine)
    if (change := change_of(options)) is not None:
        change(
            Image.new("RGB", (32, 32)), seed=0
        )  # checked here, where the error is one line; a worker prints a traceback
    fabric = fabric or Fabric(devices=1)
    folder, passes = Path(out), max(1, options.augment)
    jobs = [
        Job(number, turn, range(start, min(start + options.shard_images, len(images))))
        for number, (turn, start) in enumerate(product(range(passes), range(0, len(images), options.shard_images)))
    ]
    work = Extraction(folder, plan_of(images, backbone, options, precision_of(fabric)), len(jobs), passes)
    with _claimed(work, fabric):
        if not work.finished:
            with _failing_together(work, fabric), work.stopping():
                _fill(work, jobs, images, backbone, options, progress, fabric)
            with _failing_together(work, fabric):
                if fabric.is_global_zero:
                    _check_bad(work, work.bad(), len(images), options)  # of all processes
                    columns = ["labels"] * (images.labels is not None) + ["groups"] * (images.groups is not None)
                    work.finish(
                        columns=(*columns, "features"),
                        shape=backbone.shape,
                        classes=images.classes,
                        group_names=images.group_names,
                    )
    return FeatureSet.open(folder)


def precision_of(fabric: Fabric | None) -> str:
    """Return the numerical precision that Fabric runs with, such as 32-true."""
    return "32-true" if fabric is None else str(fabric.strategy.precision.precision)


def change_of(options: ExtractOptions) -> Change | None:
    """Return what is done to each image before it is seen: the corruption or the view; None: nothing."""
    if options.corruption is not None:
        return functools.partial(corruptions.corrupt, name=options.corruption, severity=options.severity)
    return None if options.view is None else functools.partial(standins.apply, name=options.view)


def plan_of(images: ImageSet, backbone: Backbone, options: ExtractOptions, precision: str) -> Plan:
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
        "shard_images": options.shard_images,
    }
    return Plan.model_validate_json(json.dumps(values))


def _fill(
    work: Extraction,
    jobs: Sequence[Job],
    images: ImageSet,
    backbone: Backbone,
    options: ExtractOptions,
    progress: bool,
    fabric: Fabric,
) -> None:
    """Write the missing shards that no other process has taken."""
    encoder = Encoder(backbone, options.engine, fabric.device)  # before workers are forked
    bad = work.bad()
    _check_bad(work, bad, len(images), options)
    missing = [job for job in jobs if work.receipt(job.shard) is None]
    total, left = (sum(len(job.rows) for job in some) for some in (jobs, missing))
    bar = tqdm(
        total=total,
        initial=total - left,
        desc=f"extract {work.folder.name}",
        unit="image",
        smoothing=0.05,
        leave=False,
        dynamic_ncols=True,
        disable=None if progress and fabric.is_global_zero else True,
    )
    workers = options.workers
    if workers is None:
        workers = default_workers(getattr(fabric.strategy, "num_processes", 1))
    reader = Reader(backbone.transform, images, options.augment > 0, change_of(options), options.seed)
    requests = _requests((job for job in missing if work.take(job.shard)), options.batch_size)
    rows: list[int] = []
    parts: list[NDArray[Any]] = []
    errors: list[tuple[str, str]] = []
    with bar, read(reader, requests, workers) as batches:
        for batch in batches:
            with fabric.autocast():
                features = encoder(batch.pixels)
            _check_values(features, options.dtype, [batch.names[i] for i in batch.readable])
            parts.append(features.numpy().astype(options.dtype))
            rows += [batch.request.items[i] for i in batch.readable]
            errors += [(one_line(batch.names[i]), reason) for i, reason in batch.errors.items()]
            bad.update(errors)
            _check_bad(work, bad, len(images), options)
            if batch.request.last:
                codes = {"labels": images.labels, "groups": images.groups}
                tensors = {kind: values[rows] for kind, values in codes.items() if values is not None}
                work.write(batch.request.shard, {**tensors, "features": np.concatenate(parts)}, errors)
                rows, parts, errors = [], [], []
            # The other processes advance at about the same rate.
            bar.update(min(len(batch.names) * fabric.world_size, total - bar.n))
            if bad:
                bar.set_postfix_str(f"{len(bad)} bad", refresh=False)
            if work.stopped:
                return


def _requests(jobs: Iterable[Job], batch_size: int) -> Iterator[Request]:
    """Yield the batches of shards; a shard is taken when its turn to be read comes."""
    for shard, turn, rows in jobs:
        for start in range(0, len(rows), batch_size):
            yield Request(rows[start : start + batch_size], turn, shard, start + batch_size >= len(rows))


def _check_bad(work: Extraction, bad: Mapping[str, str], images: int, options: ExtractOptions) -> None:
    """Raise if more images are unreadable than allowed: a share above 0 always allows one."""
    # Rounded first: 0.29 * 100 is 28.999999999999996.
    share = 0.0 if options.strict else options.max_bad
    allowed = max(int(round(share * images, 6)), 1 if share > 0 else 0)
    if len(bad) <= allowed:
        return
    name, reason = next(iter(bad.items()))
    if options.strict:
        raise DataError(f"every image must be readable; {name} is not ({reason}): fix it, or leave out --strict")
    path = work.list_bad(list({**work.bad(), **bad}.items()))
    raise DataError(
        f"at most {allowed} of {images} images may be unreadable; {len(bad)} are so far, such as {name} ({reason}): "
        f"see {path}; raise --max-bad to continue without them, or fix them and choose another folder"
    )


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
        problem = DataError(str(cannot_write(Path(error.filename or work.folder), error)))
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
