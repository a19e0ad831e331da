"""Pure functions of tensors: losses, scores, aggregates, metrics, conformal calibration."""

from dissensus.functional import aggregates, conformal, losses, metrics, scores

__all__ = ["aggregates", "conformal", "losses", "metrics", "scores"]
