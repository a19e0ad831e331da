"""Readers fetch one image of a set: from a file, a tar, an array, a data set."""

from __future__ import annotations

import bisect
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dissensus.images.decoding import BadImage, decode, foreign, reason, to_rgb

MAX_OPEN = 64  # tars a process holds open: a data set may have thousands of them


class Reader(Protocol):
    """Fetches one image by its name, its place in the whole and its size in bytes; must be picklable."""

    @property
    def identity(self) -> str:
        """What tells this content from another of the same names and sizes; may be empty."""

    def read(self, name: str, place: int, size: int) -> Image.Image:
        """The image as RGB; raises BadImage."""


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadImage((error.strerror or str(error)).lower()) from error
    except ValueError as error:  # a path with a null byte
        raise BadImage(str(error)) from error


@dataclass(frozen=True)
class Files:
    """Images that are files, named by their paths under `root`."""

    root: str
    identity = ""

    def read(self, name: str, place: int, size: int) -> Image.Image:
        """The image in the file `name`."""
        with _readable(), open(os.path.join(self.root, name), "rb") as file:
            data = file.read()
        return decode(data)


def read_image(path: str) -> Image.Image:
    """The image in one file, as RGB; raises BadImage."""
    with _readable():
        if stat.S_ISFIFO(os.stat(path).st_mode) or stat.S_ISCHR(os.stat(path).st_mode):
            raise BadImage("not a file")  # a pipe or a device, which may never end
    return Files("").read(path, 0, -1)


@dataclass(frozen=True)
class Tars:
    """Images that are members of plain tars; a place counts bytes as if the tars were laid end to end."""

    paths: tuple[str, ...]
    starts: tuple[int, ...]  # the place of each tar's first byte
    identity = ""
    _open: dict[tuple[int, str], BinaryIO] = field(default_factory=dict, repr=False, compare=False)

    def read(self, name: str, place: int, size: int) -> Image.Image:
        """The image of `size` bytes at `place`."""
        at = bisect.bisect_right(self.starts, place) - 1
        with _readable():
            file = self._file(self.paths[at])
            file.seek(place - self.starts[at])
            data = file.read(size)
        if len(data) < size:
            raise BadImage("truncated: its tar changed since it was listed")
        return decode(data)

    def _file(self, path: str) -> BinaryIO:
        # by process: after a fork, parent and child would move one shared file position under each other's feet
        key = (os.getpid(), path)
        if key not in self._open:
            if len(self._open) >= MAX_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[key] = open(path, "rb")  # noqa: SIM115 - closed by __del__
        return self._open[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return Tars, (self.paths, self.starts)

    def __del__(self) -> None:
        for file in self._open.values():
            file.close()


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images in memory: (N, H, W) or (N, H, W, 3) uint8; a place is a row."""

    pixels: NDArray[np.uint8]

    @property
    def identity(self) -> str:
        """The sha256 of the pixels: in memory, size says nothing and hashing is cheap."""
        return hashlib.sha256(np.ascontiguousarray(self.pixels).data).hexdigest()

    def read(self, name: str, place: int, size: int) -> Image.Image:
        """The image in row `place`."""
        return to_rgb(Image.fromarray(self.pixels[place]))


@dataclass(frozen=True, eq=False)
class Items:
    """Images of a map-style data set; a place is an index."""

    dataset: Any
    key: str

    @property
    def identity(self) -> str:
        """The fingerprint that Hugging Face data sets keep."""
        return str(getattr(self.dataset, "_fingerprint", ""))

    def read(self, name: str, place: int, size: int) -> Image.Image:
        """The image of item `place`."""
        try:
            item = self.dataset[place]
            value = item[self.key] if isinstance(item, Mapping) else item[0] if isinstance(item, tuple | list) else item
        except Exception as error:  # as in foreign: most data sets decode while they fetch
            raise BadImage(reason(error)) from error
        if isinstance(value, Mapping):  # Hugging Face's Image(decode=False)
            if value.get("bytes") is None and value.get("path"):
                return Files("").read(str(value["path"]), place, size)
            value = value.get("bytes")
        if isinstance(value, bytes):
            return decode(value)
        if isinstance(value, np.ndarray):
            if value.dtype != np.uint8:
                raise BadImage(f"an array of {value.dtype}, not uint8")
            with foreign():
                value = Image.fromarray(value)
        if not isinstance(value, Image.Image):
            raise BadImage(f"an item of type {type(value).__name__}, not an image")
        return to_rgb(value)
