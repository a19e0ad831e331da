"""The one tensor layout, checked once: logits (M, B, C), labels (B,)."""

from __future__ import annotations

from torch import Tensor

from dissensus.errors import ShapeError


def check_logits(logits: Tensor, *, members: int = 1) -> None:
    """Refuse logits that are not (M, B, C) with M >= `members` and C >= 2."""
    shape = tuple(logits.shape)
    if logits.ndim != 3:
        hint = "for one sample use logits[:, None]" if logits.ndim == 2 else "put the member axis first"
        raise ShapeError(f"logits must be (M, B, C); got {shape}: {hint}")
    if shape[0] < members:
        raise ShapeError(f"disagreement needs at least {members} members; got logits {shape} with M={shape[0]}")
    if shape[2] < 2:
        raise ShapeError(f"logits need at least two classes; got {shape} with C={shape[2]}")


def check_labels(logits: Tensor, labels: Tensor) -> None:
    """Refuse labels that are not one class index a sample."""
    if labels.shape != logits.shape[1:2]:
        raise ShapeError(f"labels must be ({logits.shape[1]},), one a sample; got {tuple(labels.shape)}")
    if labels.is_floating_point():
        raise ShapeError(f"labels must be integer class indices; got {labels.dtype}: use labels.long()")
