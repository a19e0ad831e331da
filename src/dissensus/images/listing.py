"""What every kind of place is turned into, and how it is said that one cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dissensus._core.errors import DataError
from dissensus.functional.arrays import Values
from dissensus.images.readers import Reader

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The images of a place, as found there: an ImageSet checks it and names what has no name."""

    names: Sequence[str]
    reader: Reader
    sizes: Sequence[int]  # in bytes; -1 where unknown
    places: Sequence[int] | None = None  # where the reader finds each image; by default its number
    labels: Values | None = None
    classes: Sequence[str] | None = None
    groups: Values | None = None
    group_names: Sequence[str] | None = None


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Say in one line why something cannot be listed."""
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
    """The bytes of a file; -1 where they cannot be told, for reading it will say why."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return -1
