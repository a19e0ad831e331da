"""Tensors on disk: safetensors files, written atomically; a damaged one is one line that names the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import replacing
from dissensus._core.places import is_remote, local_copy, storage_errors


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name to a safetensors file, atomically.

    Raises:
        RunError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, temporary)


def read(path: Path, *, remedy: str, error: type[DissensusError] = RunError) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file.

    Args:
        path: The file.
        remedy: What the user can do if it is missing or damaged.
        error: The class of error to raise then.

    Raises:
        DissensusError: Of class `error`, if the file is missing, unreadable or damaged.
    """
    if not path.is_file():
        raise error(f"there is no file {path}: {remedy}")
    if not is_remote(path) and not os.access(path, os.R_OK):  # which safetensors reports as missing
        raise error(f"{path} must be readable; it is not: change its permissions")
    try:
        with storage_errors(path, error), local_copy(path) as file:
            return load_file(file)
    except (OSError, SafetensorError, ValueError) as cause:
        reason = " ".join(str(cause).split())[:120]
        raise error(f"{path} is damaged ({reason}): {remedy}") from cause
