"""Service: the detector behind the page and the API, one image at a time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
from PIL import Image

from dissensus._core.errors import DissensusError
from dissensus.detection.detector import Detector
from dissensus.detection.members import Outputs
from dissensus.detection.verdicts import Verdict, frame
from dissensus.functional import aggregates, conformal
from dissensus.images import BadImage, decode, thumbnail
from dissensus.serve.neighbours import Neighbour, Neighbours

PIXELS = 320  # longer side of the picture on a card


@dataclass(frozen=True)
class Inspection:
    """An uploaded file after one forward pass; verdicts at any false-alarm rate follow without another."""

    name: str
    outputs: Outputs | None = None  # of one sample; None if the file cannot be read
    picture: str = ""  # the image as a data URL, if requested
    nearest: tuple[Neighbour, ...] = ()  # training images, if requested and known
    error: str | None = None  # why the file cannot be read


class Service:
    """A detector for several threads.

    A lock lets one image at a time be decoded and run: threads would share the processor anyway, and memory stays that
    of one image.

    Args:
        detector: The detector.
        name: The name of the run on the page and in responses.
        neighbours: Where nearest training images are searched.
        run: The folder of the run, if there is one.
    """

    def __init__(
        self, detector: Detector, name: str, neighbours: Neighbours | None = None, run: Path | None = None
    ) -> None:
        self.detector, self.name, self.neighbours, self.run = detector, name, neighbours, run
        self.lock = Lock()
        detector.members(detector.members.encoder.image(Image.new("RGB", (8, 8))))  # fail now if it takes no images

    def inspect(self, name: str, data: bytes, *, details: bool = False, picture: int = 0) -> Inspection:
        """Run trunk and members on a file's content.

        `details` adds picture and nearest training images, `picture` only a picture with so many pixels per side.
        """
        with self.lock:
            try:
                image = decode(data)
            except BadImage as error:
                return Inspection(name, error=str(error))
            members = self.detector.members
            features = members.encoder.image(image)
            outputs = members(features).cpu()
            if not details:
                return Inspection(name, outputs, thumbnail(image, picture) if picture else "")
            nearest = self.neighbours.nearest(features[0]) if self.neighbours else ()
            return Inspection(name, outputs, thumbnail(image, PIXELS), nearest)

    def verdict(self, inspection: Inspection, rate: float | None = None) -> tuple[Verdict, float | None]:
        """Return the verdict at a false-alarm rate, by default the calibrated one, and the threshold of its score."""
        if inspection.outputs is None:
            return Verdict(inspection.name, error=inspection.error), None
        verdicts = self.detector_at(rate).predict_outputs(inspection.outputs)
        limit = None if verdicts.threshold is None else float(verdicts.threshold[0])
        return replace(verdicts[0], name=inspection.name), limit

    def detector_at(self, rate: float | None) -> Detector:
        """Return the detector at another false-alarm rate, if its calibration supports it."""
        if rate is None:
            return self.detector
        if self.detector.threshold is None:
            raise DissensusError("a false-alarm rate needs a calibrated run; this one is not: dissensus calibrate")
        detector = copy.copy(self.detector)
        detector.threshold = self.detector.threshold.at(rate)
        return detector

    def top_classes(self, inspection: Inspection, count: int = 5) -> list[tuple[str, float]]:
        """Return the most probable classes with their probabilities."""
        assert inspection.outputs is not None
        log_probs = aggregates.AGGREGATES[self.detector.aggregate](inspection.outputs.logits)[0]
        probs, labels = log_probs.exp().sort(descending=True)
        pairs = zip(labels[:count].tolist(), probs[:count].tolist(), strict=True)
        return [(self.detector.classes[label], prob) for label, prob in pairs]

    def facts(self, rate: float | None = None) -> dict[str, Any]:
        """Return what holds for every result at a false-alarm rate."""
        rule = self.detector_at(rate).threshold
        return {
            "run": self.name,
            "score": self.detector.score_name,
            "calibrated": rule is not None,
            "false_alarms": None if rule is None else rule.false_alarms,
        }

    def result(self, inspection: Inspection, rate: float | None = None) -> dict[str, Any]:
        """Return plain values for JSON: the verdict, its parts and threshold, and the most probable classes."""
        verdict, limit = self.verdict(inspection, rate)
        classes = [] if verdict.error is not None else self.top_classes(inspection)
        top = [{"class": name, "probability": round(prob, 6)} for name, prob in classes]
        return verdict.as_dict(explain=True) | {
            "threshold": None if limit is None else float(f"{limit:.7g}"),
            "top": top,
        }

    def table(self, inspections: Sequence[Inspection], rate: float | None = None) -> pd.DataFrame:
        """Return one row per file: the columns of `dissensus predict`, then the members' votes."""
        return frame([self.verdict(one, rate)[0] for one in inspections], len(self.detector.ensemble))

    @property
    def rates(self) -> tuple[float, float] | None:
        """The lowest false-alarm rate that the calibration supports, and the highest to offer, in percent."""
        rule = self.detector.threshold
        if rule is None:
            return None
        fewest = min(map(len, rule.calibrated.values))
        tenths = next(t for t in range(1, 1000) if conformal.needed(t / 1000) <= fewest)
        return min(tenths / 10, 100 * rule.false_alarms), max(20.0, 100 * rule.false_alarms, tenths / 10 + 10)
