"""Loader: the one way from images to pixels. Worker processes read, decode and resize ahead of the trunk.

    with load(["cat.jpg", "dog.jpg"], backbone.transform) as batches:
        for batch in batches:
            print(batch.names, batch.pixels.shape, batch.errors)

Batches come in order, and memory holds a few of them however many images there are. `Encoder` turns them into features.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dissensus._core.errors import DataError, DissensusError
from dissensus._core.places import as_text
from dissensus._core.random import mix
from dissensus.backbones.transforms import Preprocessing
from dissensus.images import BadImage, ImageSet, read_image, to_rgb

PathLike = str | os.PathLike[str]
Change = Callable[..., Image.Image]  # (RGB image, seed=) -> an image of the same size
Source = ImageSet | Iterable[PathLike] | Sequence[Image.Image] | Sequence[NDArray[np.uint8]]


class Request(NamedTuple):
    """Images to read as one batch."""

    items: Sequence[Any]  # indices into an `ImageSet`, paths, or images in memory
    turn: int = 0  # the augmented pass
    shard: int = 0
    last: bool = False  # whether the shard ends with this batch


class Batch(NamedTuple):
    """A batch as read."""

    request: Request
    names: list[str]  # of all images of the request
    pixels: NDArray[np.uint8]  # (n, H, W, 3) of the n images that could be read, in order
    errors: dict[int, str]  # why the others could not, by position in `names`
    digests: list[str]  # of the n images that could be read, see `ImageSet.load`; empty outside a set
    labels: list[str | None] | None = None  # of the n images, where a stream brings them

    @property
    def readable(self) -> list[int]:
        """The positions of the images that could be read, one for each row of `pixels`."""
        return [i for i in range(len(self.names)) if i not in self.errors]


@dataclass(frozen=True)
class Reader(Dataset[Batch]):
    """How images are read: the centre, or a random crop, perhaps corrupted or made a stand-in.

    Everything random depends on the seed, the pass and the name of the image.
    """

    transform: Preprocessing
    images: ImageSet | None = None  # the set that indices refer to; None: requests hold paths or images in memory
    augmented: bool = False  # random crops and flips instead of the centre
    change: Change | None = None  # a corruption or a view
    seed: int = 0

    def __getitem__(self, request: Request) -> Batch:
        names: list[str] = []
        pixels: list[NDArray[np.uint8]] = []
        errors: dict[int, str] = {}
        digests: list[str] = []
        for position, item in enumerate(request.items):
            names.append(self._name(item, position))
            try:
                image, digest = self._open(item)
                pixels.append(self.see(image, names[-1], request.turn))
            except BadImage as error:
                errors[position] = str(error)
            else:
                digests += [digest] * bool(digest)
        return Batch(request, names, self.stack(pixels), errors, digests)

    def stack(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Return images (H, W, 3) as one array (n, H, W, 3)."""
        size = self.transform.size
        return np.stack(pixels) if pixels else np.empty((0, size, size, 3), np.uint8)

    def _name(self, item: Any, position: int) -> str:
        if self.images is not None:
            return str(self.images.names[item])
        return item if isinstance(item, str) else str(position)

    def _open(self, item: Any) -> tuple[Image.Image, str]:
        """Return an image and its digest; "" outside a set."""
        if self.images is not None:
            return self.images.load(item)
        if isinstance(item, str):
            return read_image(item), ""
        return to_rgb(Image.fromarray(item) if isinstance(item, np.ndarray) else item), ""

    def see(self, image: Image.Image, name: str, turn: int) -> NDArray[np.uint8]:
        """Return the pixels (H, W, 3) that the trunk sees of an image, in this pass."""
        seed = mix(self.seed, turn, zlib.crc32(name.encode(errors="surrogateescape")))
        if self.change is not None:
            # Large images are changed at the trunk's resolution, as ImageNet-C is; small ones at their own.
            if min(image.size) > self.transform.size and not self.augmented:
                return np.asarray(self.change(Image.fromarray(self.transform.centre(image)), seed=seed % 2**32))
            image = self.change(image, seed=seed % 2**32)
        return self.transform.augmented(image, seed) if self.augmented else self.transform.centre(image)


@contextlib.contextmanager
def load(
    source: Source, transform: Preprocessing, *, batch_size: int = 64, workers: int | None = None, strict: bool = False
) -> Iterator[Iterator[Batch]]:
    """Read images of any source by the batch.

    Args:
        source: An `ImageSet`; paths, of which an iterator may have any number; or a list of PIL images or uint8
            arrays.
        transform: How images are resized and cropped, such as `Backbone.transform`.
        batch_size: Images per batch; each worker prefetches two batches.
        workers: Processes that read images; None: one per core, at most 8; 0: none but this process. Images in
            memory are never sent to workers.
        strict: Raise at the first image that cannot be read, instead of listing it in `Batch.errors`.

    Yields:
        An iterator of batches, in order. Paths are requested from `source` when they are needed.

    Raises:
        DataError: If a list mixes paths with images or, with `strict`, if an image cannot be read.
    """
    reader = Reader(transform, source if isinstance(source, ImageSet) else None)
    items: Iterator[Any]
    if isinstance(source, ImageSet):
        items = iter(range(len(source)))
    elif isinstance(source, Sequence) and any(isinstance(item, Image.Image | np.ndarray) for item in source):
        if not all(isinstance(item, Image.Image | np.ndarray) for item in source):
            raise DataError("a list of samples holds either paths or images; got a mixture: pass two lists")
        items, workers = iter(source), 0
    else:
        items = (as_text(path) for path in cast(Iterable[PathLike], source))
    requests = (Request(batch) for batch in iter(lambda: list(islice(items, batch_size)), []))
    with read(reader, requests, default_workers() if workers is None else workers) as batches:
        yield map(_refuse_unreadable, batches) if strict else batches


@contextlib.contextmanager
def read(reader: Reader, requests: Iterable[Request], workers: int) -> Iterator[Iterator[Batch]]:
    """Read these requests in order, ahead, in worker processes; with 0 workers in this one.

    Raises:
        DissensusError: If a worker is killed. PyTorch learns of that by a signal, so the error is raised at any line of
            the `with` block.
    """
    with _reading(_ahead(reader, workers, sampler=_interruptible(requests))) as batches:
        yield batches


@contextlib.contextmanager
def read_iterable(shards: IterableDataset[Batch], workers: int) -> Iterator[Iterator[Batch]]:
    """Read the batches of an iterable data set ahead, as `read` does; each worker reads the shards that it takes.

    Raises:
        DissensusError: If a worker is killed, or if it raised one, with the same class and message.
    """
    with _reading(_ahead(_Forwarding(shards) if workers else shards, workers)) as batches:
        yield batches


@contextlib.contextmanager
def _reading(batches: Generator[Batch, None, None]) -> Iterator[Iterator[Batch]]:
    try:
        # Closed explicitly: otherwise Ctrl-C during garbage collection prints a traceback.
        with contextlib.closing(batches):
            yield batches
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DissensusError(
            "a process that reads images was killed, probably for lack of memory: use fewer --workers or a smaller "
            "--batch-size; finished shards are kept"
        ) from error


def default_workers(processes: int = 1) -> int:
    """Return one worker per core that this process may use, shared with `processes` like it; at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // processes))


def _refuse_unreadable(batch: Batch) -> Batch:
    for position, reason in batch.errors.items():
        raise DataError(
            f"every image must be readable; {batch.names[position]} is not ({reason}): leave it out, or use stream"
        )
    return batch


class _Raised(NamedTuple):
    """An error of a worker."""

    kind: type[DissensusError]
    message: str


@dataclass(frozen=True)
class _Forwarding(IterableDataset[Batch | _Raised]):
    """Batches, and at the end the user's mistake if one is raised: PyTorch would add a traceback to its message."""

    source: IterableDataset[Batch]

    def __iter__(self) -> Iterator[Batch | _Raised]:
        try:
            yield from self.source
        except DissensusError as error:
            yield _Raised(type(error), str(error))


def _ahead(
    source: Dataset[Any], workers: int, sampler: Iterator[Request] | None = None
) -> Generator[Batch, None, None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, as requested
        loader = DataLoader(
            source,
            batch_size=None,
            sampler=sampler,
            num_workers=workers,
            prefetch_factor=2 if workers else None,
            collate_fn=_unchanged,
            worker_init_fn=_start_worker,
            # A fork server would import everything again for every worker.
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
            generator=torch.Generator(),  # The loader draws a seed; leave the global generator alone.
        )
        with _no_interrupts():
            batches = iter(loader)
    try:
        for batch in batches:
            if isinstance(batch, _Raised):
                raise batch.kind.__new__(batch.kind, batch.message)  # some have an __init__ of other arguments
            yield batch
    finally:
        with _no_interrupts():
            getattr(batches, "_shutdown_workers", lambda: None)()  # at once, not during garbage collection


def _unchanged(batch: Any) -> Any:
    """Send arrays through a pipe: containers have little shared memory, and the copy costs next to nothing."""
    return batch


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that starting workers do not receive it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interruptible(requests: Iterable[Request]) -> Iterator[Request]:
    """Let Ctrl-C through while the next request is awaited, inside `_no_interrupts`; the workers run by then."""
    waiting = iter(requests)
    while True:
        before = (
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
        )
        try:
            request = next(waiting)
        except StopIteration:
            return
        finally:
            if before is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield request


def _start_worker(worker: int) -> None:
    """Leave Ctrl-C to the parent, and exit when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # PyTorch's own watchdog never ends a worker that has more to send than a pipe holds.
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a worker
    parent.join()
    os._exit(1)
