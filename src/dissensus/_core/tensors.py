"""Tensors on disk: safetensors files, written atomically; a damaged one is one line that names the file.

Each file has the digest of its tensors in its metadata. A document that describes the file records the same digest, so
that a file of another result is noticed too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dissensus._core import digests
from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import replacing
from dissensus._core.places import is_remote, local_copy, storage_errors

DIGEST = "sha256"  # the key of the metadata


def write(path: Path, tensors: Mapping[str, Tensor], *, keep: Path | None = None) -> str:
    """Write tensors by name to a safetensors file, atomically; return their digest.

    Args:
        path: The file.
        tensors: The tensors.
        keep: The new path of the file that is replaced, if there is one; None: it is not kept.

    Raises:
        RunError: If the file cannot be written.
    """
    values = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    digest = digest_of(values)
    with replacing(path, keep=keep) as temporary:
        save_file(values, temporary, {DIGEST: digest})
    return digest


def read(
    path: Path, *, remedy: str, error: type[DissensusError] = RunError, digest: str | None = None
) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, and verify them.

    Args:
        path: The file.
        remedy: What the user can do if it is missing or damaged.
        error: The class of error to raise then.
        digest: That of the tensors, as `write` returned it; None: the one in the file.

    Raises:
        DissensusError: Of class `error`, if the file is missing, unreadable, damaged, or not the one that was written.
    """
    values, written = read_some(path, lambda name: True, remedy=remedy, error=error)
    if digests.verifying():
        digests.check(path, digest_of(values), digest or written, remedy=remedy, error=error)
    return values


def read_some(
    path: Path, wanted: Callable[[str], bool], *, remedy: str, error: type[DissensusError] = RunError
) -> tuple[dict[str, Tensor], str]:
    """Return the tensors whose names are wanted, without verifying them, and the digest of all in the file."""
    if not path.is_file():
        raise error(f"there is no file {path}: {remedy}")
    if not is_remote(path) and not os.access(path, os.R_OK):  # which safetensors reports as missing
        raise error(f"{path} must be readable; it is not: change its permissions")
    try:
        with storage_errors(path, error), local_copy(path) as copy, safe_open(copy, framework="pt") as file:
            names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 (no dictionary)
            # Cloned, because safetensors maps the file: truncating or altering it later would change the values.
            return {name: file.get_tensor(name).clone() for name in names}, (file.metadata() or {}).get(DIGEST, "")
    except (OSError, SafetensorError, ValueError) as cause:
        reason = " ".join(str(cause).split())[:120]
        raise error(f"{path} is damaged ({reason}): {remedy}") from cause


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 of tensors: names, types, shapes and values."""
    sha256 = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        sha256.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        sha256.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()
