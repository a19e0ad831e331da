"""The one tensor layout, checked in one place: logits (M, B, C), member axis first; labels (B,)."""

from __future__ import annotations

import torch
from torch import Tensor

from dissensus._core.errors import DataError, ShapeError

WITHOUT_FLOAT64 = {"mps"}  # types of devices on which a tensor of float64 raises; mps is Apple's


def check_logits(logits: Tensor, *, members: int = 1) -> None:
    """Raise if logits are not floating point (M, B, C) with M >= `members` and C >= 2 classes.

    Raises:
        ShapeError: If the shape is another.
        DataError: If they are not floating point.
    """
    shape = tuple(logits.shape)
    if logits.ndim != 3:
        one = logits.ndim == 2
        remedy = "for one sample use logits[:, None]" if one else "members come first, classes last"
        raise ShapeError(f"logits must be (M, B, C); got {shape}: {remedy}")
    if shape[0] < members or shape[2] < 2:
        raise ShapeError(
            f"logits must be (M, B, C) with M >= {members} members and C >= 2 classes; got {shape}: "
            "members come first, classes last"
        )
    if not logits.is_floating_point():
        raise DataError(f"logits must be floating point; got {logits.dtype}: use logits.float()")


def check_labels(logits: Tensor, labels: Tensor) -> None:
    """Raise if labels are not one class index per sample."""
    if labels.shape != logits.shape[1:2]:
        raise ShapeError(f"labels must be ({logits.shape[1]},), one per sample; got {tuple(labels.shape)}")
    if labels.is_floating_point():
        raise DataError(f"labels must be integer class indices; got {labels.dtype}: use labels.long()")


def full_precision(logits: Tensor) -> Tensor:
    """Convert anything narrower than float32 to float32; keep float32 and float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def widest(device: torch.device) -> torch.dtype:
    """The dtype to add up many values in: float64, or float32 on a device of `WITHOUT_FLOAT64`."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def moved(values: Tensor, device: torch.device) -> Tensor:
    """Return values on a device; float64 becomes float32 where there is none."""
    dtype = widest(device) if values.dtype == torch.float64 else values.dtype
    return values.to(device, dtype)
