"""The detector behind the page and the API: bytes of a file in, what the members see in it out, one file at a time."""

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
from dissensus.images import BadImage, decode
from dissensus.images.thumbnails import thumbnail
from dissensus.serve.neighbours import Neighbour, Neighbours

PIXELS = 320  # of the picture that is shown again


@dataclass(frozen=True)
class Seen:
    """One file as the members see it: verdicts at any false-alarm rate follow without another look.

    `error` says in a few words why it cannot be read; there are no logits then.
    """

    name: str
    logits: Tensor | None = None  # (M, 1, C)
    picture: str = ""  # a data: address
    nearest: tuple[Neighbour, ...] = ()
    error: str | None = None


class Service:
    """A detector that several threads may ask.

    A lock lets one image at a time be decoded and run: they would share the processor anyway, and the memory that
    all take together stays that of one.
    """

    def __init__(self, detector: Detector, name: str, neighbours: Neighbours | None = None) -> None:
        self.detector, self.name, self.neighbours = detector, name, neighbours
        self._lock = Lock()
        blank = io.BytesIO()
        Image.new("RGB", (8, 8)).save(blank, "PNG")
        self.see("blank", blank.getvalue())  # what does not fit together is found before anybody asks

    def see(self, name: str, data: bytes, *, shown: bool = False) -> Seen:
        """Run trunk and members over the image in the bytes of a file; `shown` adds what a page shows of it."""
        with self._lock:
            try:
                image = decode(data)
            except BadImage as error:
                return Seen(name, error=str(error))
            features = self.detector.members.encoder.image(image)
            logits = self.detector.members(features).cpu()
            if not shown:
                return Seen(name, logits)
            nearest = self.neighbours.nearest(features[0]) if self.neighbours else ()
            return Seen(name, logits, thumbnail(image, PIXELS), nearest)

    def judge(self, seen: Seen, rate: float | None = None) -> tuple[Verdict, float | None]:
        """The verdict at a false-alarm rate, the calibrated one by default, and the threshold of its score."""
        if seen.logits is None:
            return Verdict(seen.name, error=seen.error), None
        made = self.at(rate).predict_logits(seen.logits)
        limit = None if made.threshold is None else float(made.threshold[0])
        return replace(made[0], name=seen.name), limit

    def at(self, rate: float | None) -> Detector:
        """The detector at another false-alarm rate."""
        if rate is None:
            return self.detector
        if self.detector.threshold is None:
            raise DissensusError("a false-alarm rate needs a calibrated run; this one is not: dissensus calibrate")
        found = copy.copy(self.detector)
        found.threshold = self.detector.threshold.at(rate)
        return found

    def chances(self, seen: Seen, count: int = 5) -> list[tuple[str, float]]:
        """The ensemble's likeliest classes with their probabilities."""
        assert seen.logits is not None
        probs, places = aggregates.AGGREGATES[self.detector.aggregate](seen.logits)[0].exp().sort(descending=True)
        pairs = zip(places[:count].tolist(), probs[:count].tolist(), strict=True)
        return [(self.detector.classes[place], prob) for place, prob in pairs]

    def calibration(self, label: int) -> int:
        """How many held-out images the p-value of a sample of that label is among; 0 where there is no calibration."""
        rule = self.detector.threshold
        if rule is None:
            return 0
        values = rule.calibrated.values
        return len(values[label] if rule.calibrated.by_class else values[0])

    @property
    def rates(self) -> tuple[float, float] | None:
        """The lowest false-alarm rate that the calibration supports and the highest worth asking for, in percent."""
        rule = self.detector.threshold
        if rule is None:
            return None
        fewest = min(map(len, rule.calibrated.values))
        tenths = next(t for t in range(1, 1000) if conformal.needed(t / 1000) <= fewest)
        return min(tenths / 10, 100 * rule.false_alarms), max(20.0, 100 * rule.false_alarms, tenths / 10 + 10)
