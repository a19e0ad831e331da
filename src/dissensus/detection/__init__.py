"""Detection: calibrated thresholds, the detector that applies them to samples of any form, and a monitor of drift."""

from dissensus.detection._watch_state import Alarm
from dissensus.detection.batch_test import BatchTest, batch_test
from dissensus.detection.batched import BatchPredictor
from dissensus.detection.detector import Detector
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.detection.monitor import Monitor
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import Verdict, Verdicts

__all__ = [
    "Alarm", "BatchPredictor", "BatchTest", "Detector", "ImageEnsemble", "Monitor", "Threshold", "Verdict", "Verdicts",
    "batch_test",
]  # fmt: skip
