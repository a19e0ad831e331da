"""Pure functions of tensors: losses, scores, distances, aggregates, metrics, conformal calibration."""

from dissensus.functional import (
    aggregates,
    conformal,
    distances,
    losses,
    metrics,
    neighbours,
    parts,
    pytorch_ood,
    scores,
    vim,
)

__all__ = [
    "aggregates",
    "conformal",
    "distances",
    "losses",
    "metrics",
    "neighbours",
    "parts",
    "pytorch_ood",
    "scores",
    "vim",
]
