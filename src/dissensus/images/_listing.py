"""What every source of images is turned into: names, a reader, labels."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from dissensus._core.errors import DataError
from dissensus.functional.arrays import Values
from dissensus.images.decoding import read_image

PathLike = str | os.PathLike[str]
INTEGER = re.compile(r"[+-]?[0-9]+")


class Reader(Protocol):
    """Reads one image by its name, its place in the source and its size in bytes; must be picklable."""

    @property
    def identity(self) -> str:
        """Distinguishes this content from another of the same names and sizes; may be empty."""

    def read(self, name: str, place: int, size: int) -> Image.Image:
        """Return the image as RGB; raise BadImage if it cannot be read."""


@dataclass(frozen=True)
class Files:
    """Images that are files, named by their paths under `root`."""

    root: str
    identity = ""

    def read(self, name: str, place: int, size: int) -> Image.Image:
        return read_image(os.path.join(self.root, name))


@dataclass(frozen=True)
class Joined:
    """Images of several sources, whose names begin with that of their source and a slash."""

    readers: dict[str, Reader]

    @property
    def identity(self) -> str:
        """Those of all sources, if any has one."""
        identities = {name: reader.identity for name, reader in self.readers.items()}
        return json.dumps(identities) if any(identities.values()) else ""

    def read(self, name: str, place: int, size: int) -> Image.Image:
        source, _, rest = name.partition("/")
        return self.readers[source].read(rest, place, size)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of a source; `ImageSet` checks labels and groups, and numbers those that are names."""

    names: Sequence[str]
    reader: Reader
    sizes: Sequence[int]  # in bytes; -1 if unknown
    places: Sequence[int] | None = None  # where the reader finds each image; by default its index
    labels: Values | None = None
    classes: Sequence[str] | None = None
    groups: Values | None = None
    group_names: Sequence[str] | None = None


def folder_labels(paths: Sequence[Sequence[str]], where: str) -> list[str] | None:
    """Return the first folder of each path, given as its parts; None if no image is in a folder."""
    flat = [path for path in paths if len(path) == 1]
    if len(flat) == len(paths):
        return None
    if flat:
        raise DataError(
            f"images lie in class folders or all at the top; {where} has both, such as {flat[0][0]!r}: "
            "move them, or take all as unlabelled"
        )
    return [path[0] for path in paths]


def label_values(labels: Sequence[int | str | None], names: Sequence[str], remedy: str) -> list[int] | list[str] | None:
    """Return integers if all labels are, text otherwise, and None if every label is None or -1."""
    if not set(labels) - {None, -1}:
        return None
    known = [label for label in labels if label is not None]
    if len(known) < len(labels):
        raise DataError(
            f"all images have a label or none has; {len(labels) - len(known)} of {len(labels)} have none, the first is "
            f"{names[list(labels).index(None)]!r}: give it {remedy}, or take all as unlabelled"
        )
    if all(isinstance(label, int) or INTEGER.fullmatch(label) for label in known):
        numbers = [int(label) for label in known]
        return None if set(numbers) == {-1} else numbers
    return [str(label) for label in known]


@contextmanager
def listing_errors(where: str) -> Iterator[None]:
    """Turn errors of the file system into a DataError of one line."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{where} must be UTF-8 text; {error.reason} at byte {error.start}: save it as such") from error
    except FileNotFoundError as error:
        raise DataError(
            f"images come from a folder, a list, a table or a tar; {error.filename or where} does not exist: "
            "check the path"
        ) from error
    except PermissionError as error:
        raise DataError(
            f"images must be readable; {error.filename or where} is not, permission denied: change its permissions"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {error.filename or where}: {error.strerror or error}: check the path") from error


def size_of(path: str) -> int:
    """Return the bytes of a file; -1 if it cannot be examined, for reading it will say why."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return -1
