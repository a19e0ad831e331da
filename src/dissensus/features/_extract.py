"""extract(): images through a frozen trunk, once ever, into a feature folder.

    images = ImageSet.find("photos")
    features = extract(images, backbones.create("lite0"), "features")

Images are read and resized in worker processes while the trunk runs. The work is cut into shards by image number,
so that a killed extraction loses only the shard in flight, and any number of processes gives the same shards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed
from lightning.fabric import Fabric
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError
from dissensus._core.options import combine, documented, listed
from dissensus.backbones import Backbone
from dissensus.features.encoder import Encoder
from dissensus.features.extraction import Extraction
from dissensus.features.featureset import FeatureSet
from dissensus.features.loader import Request, View, default_workers, read
from dissensus.features.options import ExtractOptions
from dissensus.images import ImageSet, corruptions

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
        images: what to extract.
        backbone: whose trunk to run.
        out: a new or empty folder, or one in which the same extraction was begun or finished.
        options: how; None: the defaults.
        progress: show a progress bar when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices or several processes, which share the shards.
        keywords: options by name, over those in `options`:

            {options}

    Returns:
        The features, opened from `out`.

    Raises:
        DissensusError: for options that break a rule, too many unreadable images, or a folder with other contents.

    Example:
        >>> features = extract(ImageSet.find("photos"), backbones.create("lite0"), "features", engine="onnx")
    """
    options = combine(ExtractOptions, options, keywords)
    if options.corruption is not None:
        # checked here, where the error is one line; in a worker it would be a traceback
        corruptions.corrupt(Image.new("RGB", (32, 32)), options.corruption, options.severity, 0)
    fabric = fabric or Fabric(devices=1)
    folder, passes = Path(out), max(1, options.augment)
    jobs = [
        Job(number, turn, range(start, min(start + options.shard_images, len(images))))
        for number, (turn, start) in enumerate(product(range(passes), range(0, len(images), options.shard_images)))
    ]
    work = Extraction(folder, plan_of(images, backbone, options, precision_of(fabric)), len(jobs), passes)
    workers = options.workers
    if workers is None:
        workers = default_workers(getattr(fabric.strategy, "num_processes", 1))
    view = View(backbone.transform, images, options.augment > 0, options.corruption, options.severity, options.seed)
    # Rounded first: 0.29 * 100 is 28.999999999999996.
    allowed = 0 if options.strict else int(round(options.max_bad * len(images), 6))
    with _claimed(work, fabric):
        if not work.finished:
            with _failing_together(work, fabric), work.stopping():
                encoder = Encoder(backbone, options.engine, fabric.device)
                _fill(work, jobs, images, view, encoder, options, workers, allowed, progress, fabric)
            with _failing_together(work, fabric):
                if fabric.is_global_zero:
                    _refuse_bad(work, dict(work.bad()), allowed, len(images), options.strict)  # of all processes
                    columns = ["labels"] * (images.labels is not None) + ["groups"] * (images.groups is not None)
                    work.finish(
                        {
                            "columns": (*columns, "features"),
                            "shape": backbone.shape,
                            "dtype": options.dtype,
                            "classes": images.classes,
                            "group_names": images.group_names,
                            "provenance": {**work.plan, "passes": passes},
                        }
                    )
    return FeatureSet.open(folder)


def precision_of(fabric: Fabric | None) -> str:
    """The numerical precision that Fabric runs with, such as 32-true."""
    return "32-true" if fabric is None else str(fabric.strategy.precision.precision)


def plan_of(images: ImageSet, backbone: Backbone, options: ExtractOptions, precision: str) -> dict[str, Any]:
    """What the features depend on; an extraction goes on only in a folder with the same plan."""
    corruption = options.corruption
    return {
        "backbone": backbone.describe(),
        "images": images.fingerprint,
        "augment": options.augment,
        "corruption": None if corruption is None else [corruption.replace("-", "_"), options.severity],
        # where nothing is random another seed changes nothing
        "seed": options.seed if options.augment or corruption else None,
        "engine": options.engine,
        "precision": precision,
        "dtype": options.dtype,
        "shard_images": options.shard_images,
    }


def _fill(
    work: Extraction,
    jobs: Sequence[Job],
    images: ImageSet,
    view: View,
    encoder: Encoder,
    options: ExtractOptions,
    workers: int,
    allowed: int,
    progress: bool,
    fabric: Fabric,
) -> None:
    """Write the missing shards, as far as other processes leave them to this one."""
    bad = dict(work.bad())
    _refuse_bad(work, bad, allowed, len(images), options.strict)
    todo = [job for job in jobs if work.receipt(job.shard) is None]
    total, left = (sum(len(job.rows) for job in some) for some in (jobs, todo))
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
    rows: list[int] = []
    parts: list[NDArray[Any]] = []
    unreadable: list[tuple[str, str]] = []
    requests = _requests((job for job in todo if work.take(job.shard)), options.batch_size)
    with bar, read(view, requests, workers) as batches:
        for batch in batches:
            with fabric.autocast():
                features = encoder(batch.pixels)
            _check_values(features, options.dtype, [batch.names[i] for i in batch.readable])
            parts.append(features.numpy().astype(options.dtype))
            rows += [batch.request.items[i] for i in batch.readable]
            errors = [(batch.names[i], reason) for i, reason in batch.errors.items()]
            unreadable += errors
            bad.update(errors)
            _refuse_bad(work, bad, allowed, len(images), options.strict)
            if batch.request.last:
                codes = {"labels": images.labels, "groups": images.groups}
                tensors = {kind: values[rows] for kind, values in codes.items() if values is not None}
                work.write(batch.request.shard, {**tensors, "features": np.concatenate(parts)}, unreadable)
                rows, parts, unreadable = [], [], []
            # The other processes advance at about the same rate.
            bar.update(min(len(batch.names) * fabric.world_size, total - bar.n))
            if bad:
                bar.set_postfix_str(f"{len(bad)} bad", refresh=False)
            if work.stopped:
                return


def _requests(jobs: Iterable[Job], batch_size: int) -> Iterator[Request]:
    """Return the batches of shards, each of which is claimed when its turn to be read comes."""
    for shard, turn, rows in jobs:
        for start in range(0, len(rows), batch_size):
            yield Request(rows[start : start + batch_size], turn, shard, start + batch_size >= len(rows))


def _refuse_bad(work: Extraction, bad: Mapping[str, str], allowed: int, images: int, strict: bool) -> None:
    if len(bad) <= allowed:
        return
    name, reason = next(iter(bad.items()))
    if strict:
        raise DataError(f"every image must be readable; {name} is not ({reason}): mend it, or leave out --strict")
    where = work.list_bad(list({**dict(work.bad()), **bad}.items()))
    raise DataError(
        f"at most {allowed} of {images} images may be unreadable; {len(bad)} are so far, such as {name} ({reason}): "
        f"see {where}; raise --max-bad to go on without them, or mend them and choose another folder"
    )


def _check_values(features: Tensor, dtype: str, names: Sequence[str]) -> None:
    """Refuse features (B, ...) that are not finite in `dtype`, by the names of their images."""
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
    """The first process takes the folder for all of them."""
    with contextlib.ExitStack() as stack:
        with _failing_together(work, fabric):
            if fabric.is_global_zero:
                stack.enter_context(work.claimed())
        with _failing_together(work, fabric):
            if not fabric.is_global_zero:
                stack.enter_context(work.joined())
        yield


@contextlib.contextmanager
def _failing_together(work: Extraction, fabric: Fabric) -> Iterator[None]:
    """Wait for all processes; a mistake that one of them meets is every process' mistake."""
    problem: DissensusError | None = None
    try:
        yield
    except DissensusError as error:
        problem = error
    except OSError as error:
        problem = DataError(
            f"cannot write {error.filename or work.folder}, {error.strerror or error}: check its rights and the space "
            "left, or choose another folder"
        )
        problem.__cause__ = error
    if fabric.world_size > 1:
        told: list[str] = [""] * fabric.world_size
        try:
            torch.distributed.all_gather_object(told, str(problem or ""))
        except RuntimeError as error:
            raise problem or DissensusError(
                "all processes of a command must live to its end; one was killed: give the same command again"
            ) from error
        problem = problem or next((DataError(text) for text in told if text), None)
    if problem is not None:
        raise problem
