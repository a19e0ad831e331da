"""Service: the detector behind the page and the API; images that arrive together share one pass."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image

from dissensus._core.errors import DataError, DissensusError
from dissensus.detection.detector import Detector
from dissensus.detection.members import Outputs
from dissensus.detection.monitor import Monitor
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import Verdict, frame
from dissensus.features.loader import default_workers
from dissensus.functional import aggregates, conformal
from dissensus.images import BadImage, decode, size_of, thumbnail
from dissensus.serve.batcher import Batcher, Budget
from dissensus.serve.neighbours import Neighbour, Neighbours
from dissensus.serve.settings import Limits

PIXELS = 320  # longer side of the picture on a card
TOP = 5  # classes
LOG = logging.getLogger(__name__)

Content = Callable[[], bytes]
Upload = tuple[str, Content]  # a file's name, and what reads its content


class _File(NamedTuple):
    """An upload, the longer side of the picture to make of it, and whether observers see its verdict."""

    name: str
    content: Content
    picture: int
    observed: bool


class _Pixels(NamedTuple):
    """An upload as decoded; `pixels` is None if it cannot be read."""

    file: _File
    pixels: NDArray[np.uint8] | None = None
    picture: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Inspection:
    """An uploaded file after one pass; verdicts at any false-alarm rate follow without another."""

    name: str
    outputs: Outputs | None = None  # of one sample; None if the file cannot be read
    at_calibration: Verdict | None = None  # at the calibrated false-alarm rate
    limit: float | None = None  # the threshold of its score at that rate
    top: tuple[tuple[str, float], ...] = ()  # the most probable classes with their probabilities
    picture: str = ""  # the image as a data URL, if requested
    nearest: tuple[Neighbour, ...] = ()  # training images, if requested and known
    error: str | None = None  # why the file cannot be read


class Service:
    """A detector for several threads.

    A few threads decode; so many pixels at once as one image may have, so that memory stays that of one image. One
    thread runs trunk, members and scores on the images that are ready.

    Args:
        detector: The detector.
        name: The name of the run on the page and in responses.
        neighbours: Where nearest training images are searched.
        run: The folder of the run, if there is one.
        limits: What a request may cost, and how images share a pass.

    Attributes:
        observers: Called with the verdict of every upload, at the calibrated false-alarm rate, in one thread. Examples
            and images to adapt to are left out.
        monitor: One of them, which watches the uploads for drift; None without a calibration that allows it.
    """

    def __init__(
        self,
        detector: Detector,
        name: str,
        neighbours: Neighbours | None = None,
        run: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.detector, self.name, self.neighbours, self.run = detector, name, neighbours, run
        self.limits = limits or Limits()
        self.observers: list[Callable[[Verdict], object]] = []
        self.monitor = _monitor(detector)
        self.observers += [self.monitor.add] if self.monitor is not None else []
        self.lock = Lock()
        self._encoder = detector.members.encoder
        detector.members(self._encoder.image(Image.new("RGB", (8, 8))))  # fail now if it takes no images
        self._decoding = Budget(self.limits.pixels)
        self.batcher: Batcher[_File, _Pixels, Inspection] = Batcher(
            self._decode,
            self._pass,
            most=self.limits.max_batch,
            wait=self.limits.max_wait_ms / 1000,
            threads=default_workers(),
        )

    def close(self) -> None:
        """Finish what is in the queue, and end the threads."""
        self.batcher.close()

    def submit(self, name: str, content: Content, *, picture: int = 0, observed: bool = True) -> Future[Inspection]:
        """Return the future inspection of a file, whose content is read when it is its turn."""
        return self.batcher.submit(_File(name, content, picture, observed))

    def inspect(self, name: str, data: bytes, *, details: bool = False, observed: bool = True) -> Inspection:
        """Run trunk and members on a file's content; `details` adds picture and nearest training images."""
        found = self.submit(name, lambda: data, picture=PIXELS * details, observed=observed).result()
        if not details or found.outputs is None or self.neighbours is None:
            return found
        return replace(found, nearest=self.neighbours.nearest(found.outputs.features[0]))

    def inspect_all(self, uploads: Iterable[Upload], *, picture: int = 0, observed: bool = True) -> list[Inspection]:
        """Run trunk and members on several files."""
        jobs = [self.submit(*upload, picture=picture, observed=observed) for upload in uploads]
        return [job.result() for job in jobs]

    def _decode(self, file: _File) -> _Pixels:
        try:
            data = file.content()
            width, height = size_of(data, self.limits.pixels)
            with self._decoding.take(width * height):
                image = decode(data)
                pixels = self._encoder.backbone.transform.centre(image)
                return _Pixels(file, pixels, thumbnail(image, file.picture) if file.picture else "")
        except BadImage as error:
            return _Pixels(file, error=str(error))

    def _pass(self, images: Sequence[_Pixels]) -> list[Inspection]:
        pixels = [image.pixels for image in images if image.pixels is not None]
        rows = iter(self._predict(pixels) if pixels else ())
        found = []
        for image in images:
            if image.error is not None:
                inspection = Inspection(image.file.name, error=image.error)
                verdict = Verdict(image.file.name, error=image.error)
            else:
                inspection = replace(next(rows), name=image.file.name, picture=image.picture)
                verdict = self.verdict(inspection)[0]
            found.append(inspection)
            if image.file.observed:
                self._observe(verdict)
        return found

    def _observe(self, verdict: Verdict) -> None:
        for observer in self.observers:
            try:
                observer(verdict)
            except Exception:  # a defect, which must not cost the client the answer
                LOG.exception("an observer of verdicts failed")

    def _predict(self, pixels: Sequence[NDArray[np.uint8]]) -> list[Inspection]:
        """Return an inspection of each image, (H, W, 3), without a name."""
        with self.lock:
            outputs = self.detector.members(self._encoder(np.stack(pixels))).cpu()
            verdicts = self.detector.predict_outputs(outputs)
            log_probs = aggregates.AGGREGATES[self.detector.aggregate](outputs.logits)
        probs, labels = (values[:, :TOP].tolist() for values in log_probs.exp().sort(descending=True))
        limits = [None] * len(pixels) if verdicts.threshold is None else verdicts.threshold.tolist()
        classes = self.detector.classes
        return [
            Inspection(
                "",
                Outputs(outputs.logits[:, i : i + 1].clone(), outputs.features[i : i + 1].clone()),  # not the batch
                verdicts[i],
                limits[i],
                tuple((classes[label], prob) for label, prob in zip(labels[i], probs[i], strict=True)),
            )
            for i in range(len(pixels))
        ]

    def verdict(self, inspection: Inspection, rate: float | None = None) -> tuple[Verdict, float | None]:
        """Return the verdict at a false-alarm rate, by default the calibrated one, and the threshold of its score."""
        verdict, limit = inspection.at_calibration, inspection.limit
        if verdict is None or verdict.label is None or verdict.score is None:
            return Verdict(inspection.name, error=inspection.error), None
        if rate is not None and (rule := self.rule(rate)) is not None:
            limit = float(rule.limits(torch.tensor([verdict.label]))[0])
            verdict = replace(verdict, out=verdict.score > limit)
        return replace(verdict, name=inspection.name), limit

    def rule(self, rate: float | None) -> Threshold | None:
        """Return the detector's threshold at a false-alarm rate, None: the calibrated one.

        Raises:
            DissensusError: If the calibration does not support the rate, or there is none.
        """
        rule = self.detector.threshold
        if rate is None:
            return rule
        if rule is None:
            raise DissensusError("a false-alarm rate needs a calibrated run; this one is not: dissensus calibrate")
        return rule.at(rate)

    def facts(self, rate: float | None = None) -> dict[str, Any]:
        """Return what holds for every result at a false-alarm rate."""
        rule = self.rule(rate)
        return {
            "run": self.name,
            "score": self.detector.score_name,
            "calibrated": rule is not None,
            "false_alarms": None if rule is None else rule.false_alarms,
        }

    def result(self, inspection: Inspection, rate: float | None = None) -> dict[str, Any]:
        """Return plain values for JSON: the verdict, its parts and threshold, and the most probable classes."""
        verdict, limit = self.verdict(inspection, rate)
        return verdict.as_dict(explain=True) | {
            "threshold": None if limit is None else float(f"{limit:.7g}"),
            "top": [{"class": name, "probability": round(prob, 6)} for name, prob in inspection.top],
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


def _monitor(detector: Detector) -> Monitor | None:
    try:
        return None if detector.threshold is None else Monitor(detector)
    except DataError:  # too few calibration samples to watch with, enough for verdicts
        return None
