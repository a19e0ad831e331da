"""Loading: images read, resized, corrupted or augmented ahead of the trunk, in worker processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
import zlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from dissensus._core.errors import DissensusError
from dissensus._core.random import mix
from dissensus.backbones.transforms import Preprocessing
from dissensus.images import BadImage, ImageSet, corruptions

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Job(NamedTuple):
    """Images of one pass, by number, that make a shard."""

    number: int
    turn: int
    images: range


class Batch(NamedTuple):
    """What to read: images start to stop of a shard, in a pass."""

    shard: int
    turn: int
    start: int
    stop: int
    last: bool


class Read(NamedTuple):
    """What was read: pixels (n, H, W, 3) of the images `rows`, and what could not be."""

    shard: int
    last: bool
    size: int
    rows: list[int]
    pixels: NDArray[np.uint8]
    bad: list[tuple[str, str]]


@dataclass(frozen=True)
class Views(Dataset[Read]):
    """Images as the trunk takes them; everything random about a view depends on seed, pass and the image's name."""

    images: ImageSet
    transform: Preprocessing
    augmented: bool
    corruption: str | None
    severity: int
    seed: int

    def __getitem__(self, batch: Batch) -> Read:
        rows: list[int] = []
        bad: list[tuple[str, str]] = []
        pixels: list[NDArray[np.uint8]] = []
        for i in range(batch.start, batch.stop):
            try:
                pixels.append(self._view(i, batch.turn))
                rows.append(i)
            except BadImage as error:
                bad.append((self.images.names[i], str(error)))
        stacked = np.stack(pixels) if pixels else np.empty((0, 0, 0, 3), np.uint8)
        return Read(batch.shard, batch.last, batch.stop - batch.start, rows, stacked, bad)

    def _view(self, i: int, turn: int) -> NDArray[np.uint8]:
        image = self.images.image(i)
        seed = mix(self.seed, turn, zlib.crc32(self.images.names[i].encode(errors="surrogateescape")))
        if self.corruption is not None:
            # Large images are corrupted at the trunk's resolution, as ImageNet-C is; small ones at their own.
            if min(image.size) > self.transform.size and not self.augmented:
                image = Image.fromarray(self.transform.centre(image))
                return np.asarray(corruptions.corrupt(image, self.corruption, self.severity, seed % 2**32))
            image = corruptions.corrupt(image, self.corruption, self.severity, seed % 2**32)
        return self.transform.augmented(image, seed) if self.augmented else self.transform.centre(image)


@dataclass(frozen=True)
class Reader:
    """Reads batches ahead in so many worker processes; 0: in this one, when they are asked for."""

    views: Views
    batch_size: int
    workers: int

    def __call__(self, jobs: Iterable[Job]) -> Generator[Read, None, None]:
        """The batches of these shards in order; a shard is asked for when its turn to be read comes."""
        return ahead(self.views, _batches(jobs, self.batch_size), self.workers)


def ahead(dataset: Dataset[_Out], asked: Iterable[_In], workers: int) -> Generator[_Out, None, None]:
    """`dataset[x]` for every x that is asked for, in order, made ahead in worker processes; 0: in this one.

    To be closed by whoever stops before the end, lest Ctrl-C finds it on its way to the dustbin.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: as was asked
        loader = DataLoader(
            dataset,
            batch_size=None,
            sampler=_interruptible(asked),  # one x after the other, asked for when its turn to be read comes
            num_workers=workers,
            prefetch_factor=2 if workers else None,
            collate_fn=_as_it_is,
            worker_init_fn=_prepare,
            # a server that forks would import everything anew for every worker
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            generator=torch.Generator(),  # its own: the loader draws a seed, of no use here
        )
        with _no_interrupts():
            batches = iter(loader)
    try:
        yield from batches
    finally:
        with _no_interrupts():
            getattr(batches, "_shutdown_workers", lambda: None)()  # it does so itself, but when it pleases


def default_workers(processes: int) -> int:
    """One a core that this process may use, shared with others like it; at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // processes))


@contextlib.contextmanager
def explained_deaths() -> Iterator[None]:
    """Tell of a worker that was killed, of which PyTorch learns by a signal: at any line, in whatever runs then."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DissensusError(
            "a process that reads images was killed, probably for want of memory: use fewer --workers or a smaller "
            "--batch-size; what is finished is kept"
        ) from error


def _batches(jobs: Iterable[Job], batch_size: int) -> Iterator[Batch]:
    """The batches of shards, which are themselves asked for one by one."""
    for job in jobs:
        for start in range(job.images.start, job.images.stop, batch_size):
            stop = min(start + batch_size, job.images.stop)
            yield Batch(job.number, job.turn, start, stop, stop == job.images.stop)


def _as_it_is(batch: _Out) -> _Out:
    """Arrays go through a pipe: shared memory is short in containers, and the copy costs next to nothing."""
    return batch


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Keep Ctrl-C from workers that are about to start; what comes meanwhile comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interruptible(asked: Iterable[_In]) -> Iterator[_In]:
    """Let Ctrl-C through while something to ask for is waited for; workers are there by then."""
    waiting = iter(asked)
    while True:
        before = (
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
        )
        try:
            one = next(waiting)
        except StopIteration:
            return
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield one


def _prepare(worker: int) -> None:
    """Leave Ctrl-C to the parent, and end when it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # PyTorch's own watch leaves a worker behind, for ever, that has more to hand over than a pipe holds
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)
