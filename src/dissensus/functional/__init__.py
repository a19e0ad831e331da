"""Pure functions of tensors: losses, scores, aggregates, metrics, conformal calibration."""
