"""Features in an .npz file: arrays `features` (N, ...) and, if known, `labels` (N,) and `groups` (N,)."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError
from dissensus.features._files import NPY_ERRORS

NAMES = ("features", "labels", "groups")
# zipfile raises RuntimeError for an encrypted member, NotImplementedError (a subclass) for an unknown compression.
ERRORS = (*NPY_ERRORS, AttributeError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
BOMB_BYTES, BOMB_RATIO = 2**28, 100  # a larger array that unpacks to more than this many times its size is not read


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file.

    Returns:
        "features" and, if they are there, "labels" and "groups".

    Raises:
        DataError: If the file is missing or damaged, or holds no `features`.
    """
    if not path.is_file():
        raise DataError(
            f"there is no file {path}: give an .npz with arrays `features` and `labels`, or a feature folder"
        )
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            held = list(arrays.files)
            _check_ratio(path, arrays.zip)
            values = {name: arrays[name] for name in NAMES if name in held}
    except DataError:
        raise
    except ERRORS as error:
        raise DataError(
            f"{path} cannot be read as .npz: damaged, or not of arrays; write it with numpy.savez"
        ) from error
    if "features" not in values:
        raise DataError(
            f"{path} must hold `features` (N, D) and, if labelled, `labels` (N,); it holds {', '.join(held) or 'none'}"
        )
    return values


def _check_ratio(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise for an array that a few bytes stand for, before it fills the memory."""
    for member in archive.infolist():
        if member.file_size > max(BOMB_BYTES, BOMB_RATIO * member.compress_size):
            raise DataError(
                f"arrays of an .npz unpack to at most {BOMB_RATIO} times their size; {member.filename} of {path} "
                f"unpacks to {member.file_size:,} bytes from {member.compress_size:,}: write it with numpy.savez"
            )
