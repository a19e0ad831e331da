"""Detection: calibrated thresholds and the detector that applies them."""
