"""Pure functions of tensors: losses, scores, aggregates, metrics, conformal calibration."""

from dissensus.functional import aggregates, conformal, distances, losses, metrics, scores

__all__ = ["aggregates", "conformal", "distances", "losses", "metrics", "scores"]
