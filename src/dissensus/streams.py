"""Streams of image paths, however many: read and resized in worker processes, a batch at a time, in order."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from dissensus.images import SUFFIXES, BadImage, read_image
from dissensus.loading import ahead
from dissensus.preprocessing import Preprocessing


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
