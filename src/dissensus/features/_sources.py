"""Sources of an extraction: a set of images by index, or a stream of shards. Both are divided into shards of features.

    source = source_of(images, reader, shard_images=4096, batch_size=64)
    for batch in source.batches(Job(shard=0, step=0, turn=0)):     # one shard, read in this process
        ...
    with source.ahead(jobs, workers=2) as batches:                 # many shards, read ahead in worker processes
        ...

The batches of a shard do not depend on the process that reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from dissensus._core.errors import DataError
from dissensus._core.terminal import printable
from dissensus.features import _metadata
from dissensus.features.loader import Batch, Reader, Request, read, read_iterable
from dissensus.functional.arrays import Array
from dissensus.images import BadImage, ImageSet, ImageStream, Streamed


class Job(NamedTuple):
    """A shard to write: its number, its step within the pass, and the pass."""

    shard: int
    step: int
    turn: int


class Source(Protocol):
    """Images that are divided into shards."""

    @property
    def steps(self) -> int:
        """Shards of a pass."""

    def batches(self, job: Job) -> Iterator[Batch]:
        """Read one shard in this process."""

    def ahead(self, jobs: Iterable[Job], workers: int) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        """Read shards ahead in worker processes; batches of one shard are in order and name it in their request."""

    def metadata(self, shard: Collected) -> pa.Table:
        """Return the metadata of a shard that was read."""

    def images_of(self, steps: range) -> int | None:
        """Return how many images these shards of a pass have; None if unknown."""


class Collected:
    """What was read of a shard so far."""

    def __init__(self) -> None:
        self.features: list[NDArray[Any]] = []
        self.rows: list[int] = []  # of an image set
        self.names: list[str] = []
        self.digests: list[str] = []
        self.labels: list[str | None] = []  # of a stream
        self.errors: list[tuple[str, str]] = []

    def add(self, batch: Batch, features: Array) -> None:
        """Add a batch and the features of its readable images."""
        self.features.append(features)
        names = [printable(name) for name in batch.names]
        self.names += [names[i] for i in batch.readable]
        self.digests += batch.digests
        self.errors += [(names[i], reason) for i, reason in batch.errors.items()]
        if batch.labels is None:
            self.rows += [batch.request.items[i] for i in batch.readable]
        else:
            self.labels += batch.labels

    @property
    def stacked(self) -> Array:
        """The features (n, ...) of all batches."""
        return np.concatenate(self.features)


@dataclass(frozen=True)
class Listed:
    """A set of images, cut into shards of `shard_images`."""

    images: ImageSet
    reader: Reader
    shard_images: int
    batch_size: int

    @property
    def steps(self) -> int:
        return -(-len(self.images) // self.shard_images)

    def batches(self, job: Job) -> Iterator[Batch]:
        return map(self.reader.__getitem__, self._requests(job))

    def ahead(self, jobs: Iterable[Job], workers: int) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        return read(self.reader, (request for job in jobs for request in self._requests(job)), workers)

    def metadata(self, shard: Collected) -> pa.Table:
        images, rows = self.images, np.array(shard.rows, np.int64)
        return _metadata.table(
            image_path=shard.names,
            label=None if images.labels is None else _metadata.named(images.labels[rows], images.classes),
            group=None if images.groups is None else _metadata.named(images.groups[rows], images.group_names),
            digest=shard.digests,
        )

    def images_of(self, steps: range) -> int:
        return min(steps.stop * self.shard_images, len(self.images)) - steps.start * self.shard_images

    def _requests(self, job: Job) -> Iterator[Request]:
        start = job.step * self.shard_images
        rows = range(start, min(start + self.shard_images, len(self.images)))
        for at in range(0, len(rows), self.batch_size):
            yield Request(rows[at : at + self.batch_size], job.turn, job.shard, at + self.batch_size >= len(rows))


@dataclass(frozen=True)
class Streams:
    """A stream of images, whose shards become shards of features."""

    images: ImageStream
    reader: Reader
    batch_size: int

    @property
    def steps(self) -> int:
        return len(self.images)

    def batches(self, job: Job) -> Iterator[Batch]:
        samples = self.images.samples(job.step)
        now = list(islice(samples, self.batch_size))
        if not now:
            raise DataError(f"a shard holds images; {self.images.shards[job.step]} holds none: leave it out")
        while now:
            following = list(islice(samples, self.batch_size))
            yield self._batch(now, Request((), job.turn, job.shard, last=not following))
            now = following

    def ahead(self, jobs: Iterable[Job], workers: int) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        return read_iterable(_Shared(self, list(jobs)), workers)

    def metadata(self, shard: Collected) -> pa.Table:
        known = [label for label in shard.labels if label is not None]
        if 0 < len(known) < len(shard.labels):
            raise DataError(
                f"all images have a label or none has; {shard.names[shard.labels.index(None)]} has none: give it a "
                ".cls or .json, or add --unlabelled"
            )
        labels = pa.array(known, pa.string()) if known else None
        return _metadata.table(image_path=shard.names, label=labels, digest=shard.digests)

    def images_of(self, steps: range) -> None:
        return None

    def _batch(self, samples: Sequence[Streamed], request: Request) -> Batch:
        pixels, errors, digests, labels = list[NDArray[np.uint8]](), dict[int, str](), list[str](), list[str | None]()
        for position, sample in enumerate(samples):
            try:
                if sample.image is None:
                    raise BadImage(sample.error)
                pixels.append(self.reader.see(sample.image, sample.name, request.turn))
            except BadImage as error:
                errors[position] = str(error)
            else:
                digests.append(sample.digest)
                labels.append(sample.label)
        names = [sample.name for sample in samples]
        return Batch(request, names, self.reader.stack(pixels), errors, digests, labels)


class _Shared(IterableDataset[Batch]):
    """The shards of a stream, shared by worker processes."""

    def __init__(self, source: Streams, jobs: Sequence[Job]) -> None:
        self.source, self.jobs = source, jobs

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        jobs = self.jobs if worker is None else self.jobs[worker.id :: worker.num_workers]
        for job in jobs:
            yield from self.source.batches(job)


def source_of(images: ImageSet | ImageStream, reader: Reader, shard_images: int, batch_size: int) -> Source:
    """Return images of either kind as a source; `shard_images` applies to sets only."""
    if isinstance(images, ImageStream):
        return Streams(images, reader, batch_size)
    return Listed(images, replace(reader, images=images), shard_images, batch_size)
