"""Images by the batch, however they come: read and resized in worker processes, in order, any number of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from dissensus._core.errors import DataError
from dissensus.backbones.transforms import Preprocessing
from dissensus.features.loader import Job, Reader, Views, ahead, default_workers, explained_deaths
from dissensus.images import SUFFIXES, BadImage, ImageSet, read_image, to_rgb


class Pictures(NamedTuple):
    """A batch as read: its names, pixels (n, H, W, 3) of those that could be, and why others could not."""

    names: list[str]
    pixels: NDArray[np.uint8]
    errors: dict[int, str]  # by place in the batch


@dataclass(frozen=True)
class _Paths(Dataset[Pictures]):
    transform: Preprocessing

    def __getitem__(self, names: list[str]) -> Pictures:
        pixels: list[NDArray[np.uint8]] = []
        errors: dict[int, str] = {}
        for place, name in enumerate(names):
            try:
                pixels.append(self.transform.centre(read_image(name)))
            except BadImage as error:
                errors[place] = str(error)
        size = self.transform.size
        return Pictures(names, np.stack(pixels) if pixels else np.empty((0, size, size, 3), np.uint8), errors)


def pictures(
    paths: Iterable[str], transform: Preprocessing, batch_size: int, workers: int
) -> Generator[Pictures, None, None]:
    """Batches of images in the order of their paths; paths are asked for as they are needed."""
    return ahead(_Paths(transform), _batches(iter(paths), batch_size), workers)


def pixels(
    images: ImageSet | Sequence[str | os.PathLike[str]] | Sequence[Image.Image],
    transform: Preprocessing,
    batch_size: int,
) -> Iterator[NDArray[np.uint8]]:
    """Batches of pixels (n, H, W, 3) of images that must all be readable: the first that is not is refused."""
    if isinstance(images, ImageSet):
        views = Views(images, transform, augmented=False, corruption=None, severity=1, seed=0)
        reading = Reader(views, batch_size, default_workers(1))([Job(0, 0, range(len(images)))])
        with explained_deaths(), contextlib.closing(reading):
            for batch in reading:
                _refuse(batch.bad)
                yield batch.pixels
        return
    shown = [image for image in images if isinstance(image, Image.Image)]
    paths = [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]
    if len(images) not in (len(shown), len(paths)):
        raise DataError("a list of samples holds either paths or PIL images; got a mixture: give them apart")
    for start in range(0, len(shown), batch_size):
        yield np.stack([transform.centre(to_rgb(image)) for image in shown[start : start + batch_size]])
    if paths:
        found = pictures(paths, transform, batch_size, default_workers(1))
        with explained_deaths(), contextlib.closing(found):
            for some in found:
                _refuse([(some.names[place], reason) for place, reason in some.errors.items()])
                yield some.pixels


def _refuse(bad: Sequence[tuple[str, str]]) -> None:
    for name, reason in bad[:1]:
        raise DataError(f"every image must be readable; {name} is not ({reason}): leave it out, or use stream")


def _batches(paths: Iterator[str], size: int) -> Iterator[list[str]]:
    while batch := list(islice(paths, size)):
        yield batch


def walk(places: Sequence[str]) -> Iterator[str]:
    """Every path as it is given; of a folder, every image beneath, sorted within its folder."""
    for place in places:
        if not os.path.isdir(place):
            yield place
            continue
        for folder, inner, files in os.walk(place):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(files):
                if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                    yield os.path.join(folder, name)
