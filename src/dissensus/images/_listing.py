"""What every source of images is turned into: names, a reader, labels."""

from __future__ import annotations

import json
import posixpath
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dissensus._core.errors import DataError, DissensusWarning, some
from dissensus._core.places import storage_errors
from dissensus.functional.arrays import Values
from dissensus.images._files import check_size, join
from dissensus.images.decoding import file_errors, load_image

ENDING = 12  # characters of an ending that are shown


class Reader(Protocol):
    """Reads one image by its name, its place in the source and its size in bytes; must be picklable."""

    @property
    def identity(self) -> str:
        """Distinguishes this content from another of the same names and sizes; may be empty."""

    def load(self, name: str, place: int, size: int) -> tuple[Image.Image, str]:
        """Return the image as RGB and the digest of its file; raise BadImage if it cannot be read."""


@dataclass(frozen=True)
class Files:
    """Images that are files, named by their paths under `root`, a folder or its URL."""

    root: str
    identity = ""

    def load(self, name: str, place: int, size: int) -> tuple[Image.Image, str]:
        with file_errors():
            check_size(size)  # of a URL, before it is asked for
        return load_image(join(self.root, name))


@dataclass(frozen=True)
class Joined:
    """Images of several sources, whose names begin with that of their source and a slash."""

    readers: dict[str, Reader]

    @property
    def identity(self) -> str:
        """Those of all sources, if any has one."""
        identities = {name: reader.identity for name, reader in self.readers.items()}
        return json.dumps(identities) if any(identities.values()) else ""

    def load(self, name: str, place: int, size: int) -> tuple[Image.Image, str]:
        source, _, rest = name.partition("/")
        return self.readers[source].load(rest, place, size)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of a source; `ImageSet` checks labels and groups, and numbers those that are names."""

    names: Sequence[str]
    reader: Reader
    sizes: NDArray[np.int64]  # (N,) in bytes; -1 if unknown
    places: NDArray[np.int64] | None = None  # where the reader finds each image; by default its index
    labels: Values | None = None
    classes: Sequence[str] | None = None
    groups: Values | None = None
    group_names: Sequence[str] | None = None


class PassedOver:
    """Files without the ending of an image: counted, and reported once, where there are images too."""

    def __init__(self) -> None:
        self.endings = Counter[str]()

    def add(self, name: str) -> None:
        """Count a file."""
        self.endings[posixpath.splitext(name)[1].lower()[:ENDING] or "no ending"] += 1

    def report(self, where: str) -> None:
        """Warn if there are any, once for each place and number."""
        if count := self.endings.total():
            counts = sorted(self.endings.items(), key=lambda item: (-item[1], item[0]))
            endings = some([ending for ending, _ in counts], 6)
            files = "1 file is" if count == 1 else f"{count:,} files are"
            _warn_once(f"{files} passed over in {where}, without the ending of an image: {endings}")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, DissensusWarning, stacklevel=2)


@contextmanager
def listing_errors(where: str) -> Iterator[None]:
    """Turn errors of the file system, or of storage behind a URL, into a DataError of one line."""
    try:
        with storage_errors(where):
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
