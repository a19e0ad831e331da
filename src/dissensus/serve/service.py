"""Service: the detector behind the page and the API, one image at a time."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass, replace
from threading import Lock

from PIL import Image
from torch import Tensor

from dissensus._core.errors import DissensusError
from dissensus.detection.detector import Detector
from dissensus.detection.verdicts import Verdict
from dissensus.functional import aggregates, conformal
from dissensus.images import BadImage, decode, thumbnail
from dissensus.serve.neighbours import Neighbour, Neighbours

PIXELS = 320  # longer side of the picture on a card


@dataclass(frozen=True)
class Inspection:
    """An uploaded file after one forward pass; verdicts at any false-alarm rate follow without another.

    Attributes:
        name: The file's name.
        logits: (M, 1, C); None if the file cannot be read.
        picture: The image as a data URL, if requested.
        nearest: The nearest training images, if requested and known.
        error: Why the file cannot be read.
    """

    name: str
    logits: Tensor | None = None
    picture: str = ""
    nearest: tuple[Neighbour, ...] = ()
    error: str | None = None


class Service:
    """A detector for several threads.

    A lock lets one image at a time be decoded and run: threads would share the processor anyway, and memory stays that
    of one image.

    Args:
        detector: The detector.
        name: How the run is called on the page and in responses.
        neighbours: The training images to search, if any.

    Raises:
        DissensusError: If the detector cannot predict images.
    """

    def __init__(self, detector: Detector, name: str, neighbours: Neighbours | None = None) -> None:
        self.detector, self.name, self.neighbours = detector, name, neighbours
        self._lock = Lock()
        blank = io.BytesIO()
        Image.new("RGB", (8, 8)).save(blank, "PNG")
        self.inspect("blank", blank.getvalue())  # Fail now rather than at the first request.

    def inspect(self, name: str, data: bytes, *, details: bool = False) -> Inspection:
        """Run trunk and members on an image.

        Args:
            name: The file's name.
            data: The file's content.
            details: Add picture and nearest training images, for the page.
        """
        with self._lock:
            try:
                image = decode(data)
            except BadImage as error:
                return Inspection(name, error=str(error))
            members = self.detector.members
            features = members.encoder.image(image)
            logits = members(features).cpu()
            if not details:
                return Inspection(name, logits)
            nearest = self.neighbours.nearest(features[0]) if self.neighbours else ()
            return Inspection(name, logits, thumbnail(image, PIXELS), nearest)

    def verdict(self, inspection: Inspection, rate: float | None = None) -> tuple[Verdict, float | None]:
        """Return the verdict at a false-alarm rate, by default the calibrated one, and the threshold of its score."""
        if inspection.logits is None:
            return Verdict(inspection.name, error=inspection.error), None
        verdicts = self.detector_at(rate).predict_logits(inspection.logits)
        limit = None if verdicts.threshold is None else float(verdicts.threshold[0])
        return replace(verdicts[0], name=inspection.name), limit

    def detector_at(self, rate: float | None) -> Detector:
        """Return the detector at another false-alarm rate.

        Raises:
            DissensusError: If the run is not calibrated, or its calibration does not support the rate.
        """
        if rate is None:
            return self.detector
        if self.detector.threshold is None:
            raise DissensusError("a false-alarm rate needs a calibrated run; this one is not: dissensus calibrate")
        detector = copy.copy(self.detector)
        detector.threshold = self.detector.threshold.at(rate)
        return detector

    def top_classes(self, inspection: Inspection, count: int = 5) -> list[tuple[str, float]]:
        """Return the most probable classes with their probabilities."""
        assert inspection.logits is not None
        log_probs = aggregates.AGGREGATES[self.detector.aggregate](inspection.logits)[0]
        probs, labels = log_probs.exp().sort(descending=True)
        pairs = zip(labels[:count].tolist(), probs[:count].tolist(), strict=True)
        return [(self.detector.classes[label], prob) for label, prob in pairs]

    def calibration_count(self, label: int) -> int:
        """Return how many held-out images the p-values of a predicted label compare with; 0 if not calibrated."""
        rule = self.detector.threshold
        if rule is None:
            return 0
        values = rule.calibrated.values
        return len(values[label] if rule.calibrated.by_class else values[0])

    @property
    def rates(self) -> tuple[float, float] | None:
        """The lowest false-alarm rate that the calibration supports, and the highest to offer, in percent."""
        rule = self.detector.threshold
        if rule is None:
            return None
        fewest = min(map(len, rule.calibrated.values))
        tenths = next(t for t in range(1, 1000) if conformal.needed(t / 1000) <= fewest)
        return min(tenths / 10, 100 * rule.false_alarms), max(20.0, 100 * rule.false_alarms, tenths / 10 + 10)
