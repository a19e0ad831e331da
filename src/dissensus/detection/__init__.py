"""Detection: calibrated thresholds, and the detector that applies them to samples of any form."""

from dissensus.detection.batched import BatchPredictor
from dissensus.detection.detector import Detector
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import Verdict, Verdicts

__all__ = ["BatchPredictor", "Detector", "ImageEnsemble", "Threshold", "Verdict", "Verdicts"]
