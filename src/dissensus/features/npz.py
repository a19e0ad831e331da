"""Features in an .npz file: arrays `features` (N, ...) and, if known, `labels` (N,) and `groups` (N,)."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError

NAMES = ("features", "labels", "groups")


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
            values = {name: arrays[name] for name in NAMES if name in held}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read as .npz: damaged, or not of arrays; write it with numpy.savez"
        ) from error
    if "features" not in values:
        raise DataError(
            f"{path} must hold `features` (N, D) and, if labelled, `labels` (N,); it holds {', '.join(held) or 'none'}"
        )
    return values
