"""Detector: an ensemble with a calibrated threshold, which says of one sample whether it is out of distribution.

detector = Detector.load("runs/mine")
detector.calibrate(held_out, false_alarms=0.05)       # ID features or images that were not trained on
for verdict in detector.predict(["cat.jpg", "what.png"]):
    print(verdict.name, verdict.class_name, verdict.verdict, verdict.p_value)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError, RunError, ShapeError
from dissensus.backbones import Backbone
from dissensus.detection import pretrained
from dissensus.detection.threshold import Identity, Threshold, check_count, combine, score_names
from dissensus.detection.verdicts import Verdict, Verdicts
from dissensus.evaluation.predictions import batch_size
from dissensus.features import FeatureSet, check_backbone
from dissensus.features.encoder import Encoder
from dissensus.functional import aggregates
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run

Features = FeatureSet | Tensor | np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]
Images = ImageSet | Sequence[PathLike] | Sequence[Image.Image]
AT_ONCE = 64  # images


class Detector:
    """Ensemble, aggregate, score and threshold: features or images in, verdicts out.

    `aggregate` makes label and confidence of the members' logits. `backbone` may be what a run recorded of it: then
    it is made when the first image comes. Without one the detector takes features only.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        classes: Sequence[str] = (),
        *,
        backbone: Backbone | Mapping[str, Any] | None = None,
        aggregate: str = "prediction",
        engine: str = "eager",
        threshold: Threshold | None = None,
        trained_on: Mapping[str, Any] | None = None,
    ) -> None:
        aggregates.of_kind("logits").check(aggregate)
        self.ensemble = ensemble.eval()
        self.classes = _class_names(classes, ensemble.classes)
        self.aggregate, self.engine, self.threshold = aggregate, engine, threshold
        self.trained_on = dict(trained_on or {})
        self.about = backbone.describe() if isinstance(backbone, Backbone) else backbone
        if isinstance(backbone, Backbone):
            self.backbone = backbone

    @classmethod
    def load(cls, run: PathLike, *, calibrated: bool = True) -> Detector:
        """The detector of a run folder, calibrated if the run is, unless it is to be calibrated anew."""
        opened = Run.open(run)
        settings = opened.settings
        detector = cls(
            Ensemble.load(opened.ensemble_folder),
            settings["classes"],
            backbone=settings.get("backbone"),
            trained_on={key: settings.get(key) for key in ("train", "images")},
        )
        if calibrated:
            detector.threshold = Threshold.load(opened.folder, detector.identity)
        return detector

    @classmethod
    def from_pretrained(cls, where: PathLike, revision: str | None = None) -> Detector:
        """The detector in a folder that `dissensus export --to hub` wrote, or in OWNER/NAME on the Hugging Face hub."""
        parts = pretrained.read(where, revision)
        return cls(
            parts.ensemble,
            parts.config.classes,
            backbone=parts.backbone,
            aggregate=parts.config.aggregate,
            threshold=parts.threshold,
            trained_on=parts.config.trained_on.model_dump(),
        )

    def save(self, run: PathLike) -> None:
        """Keep the calibration in the run folder that the ensemble is of."""
        if self.threshold is None:
            raise DissensusError("a detector is saved once it is calibrated; this one is not: call calibrate first")
        opened = Run.open(run)
        if Ensemble.load(opened.ensemble_folder).fingerprint != self.ensemble.fingerprint:
            raise RunError(f"a calibration is saved with its own run; {run} holds another ensemble: choose its folder")
        self.threshold.save(opened.folder, self.identity)

    @property
    def identity(self) -> Identity:
        """Fingerprints of what a calibration depends on: the members and the backbone."""
        return Identity(ensemble=self.ensemble.fingerprint, backbone=(self.about or {}).get("fingerprint"))

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen trunk, and what is done to an image before it."""
        if self.about is None:
            raise DissensusError(
                "images need a trunk; this detector was trained on features that name none: give it features, or "
                "extract the training images with dissensus extract and train on that"
            )
        with torch.inference_mode(False):  # wherever it is first asked for: it is used outside as well
            return backbones.restore(self.about)

    def to(self, device: torch.device | str) -> Detector:
        """Run on that device."""
        self.ensemble.to(device)
        if "backbone" in vars(self):
            self.backbone.trunk.to(device)
        self.__dict__.pop("encoder", None)
        return self

    @property
    def score_name(self) -> str:
        """What scores are of."""
        return "pds" if self.threshold is None else self.threshold.name

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return next(self.ensemble.parameters()).device

    @cached_property
    def encoder(self) -> Encoder:
        """The backbone's trunk, from images to features."""
        if not tails.fits(self.ensemble.about, self.backbone.shape):
            raise ShapeError(
                f"the ensemble must fit the trunk; {self.backbone.name} gives features {self.backbone.shape}: use the "
                "backbone that made its training features"
            )
        return Encoder(self.backbone, self.engine, self.device)

    def calibrate(
        self,
        samples: Features | Images,
        false_alarms: float = 0.05,
        score: str | Sequence[str] = "pds",
        *,
        by_class: bool = False,
        progress: bool = False,
    ) -> Detector:
        """Set the threshold so that at most a share `false_alarms` of ID samples is called out.

        Args:
            samples: ID features or images that were not trained on; their labels are not looked at.
            false_alarms: the promised rate, for samples exchangeable with these: see `threshold.promise`.
            score: a name, or several to combine: each as a conformal p-value, their evidence calibrated in turn.
            by_class: a threshold for each predicted class, so that the rate holds within each.
            progress: show a progress bar when stderr is a terminal.
        """
        names = score_names(score)
        check_count(names, self._features(samples)[1], false_alarms)
        if isinstance(samples, FeatureSet) and samples.passes > 1:
            raise DataError(
                f"calibration takes each image once, as it is seen in use; these features are {samples.passes} "
                "augmented passes: extract them without --augment"
            )
        if caution := self.caution(samples):
            warnings.warn(caution, stacklevel=2)
        parts: dict[str, list[Tensor]] = {name: [] for name in (*names, "label")}
        for logits in self.logits(samples, progress=progress):
            for name in names:
                parts[name].append(combine([name], (), logits))
            parts["label"].append(aggregates.AGGREGATES[self.aggregate](logits).argmax(-1).cpu())
        whole = {name: torch.cat(values) for name, values in parts.items()}
        labels = whole.pop("label") if by_class else None
        self.threshold = Threshold.calibrate(names, whole, labels, self.classes, false_alarms)
        return self

    def caution(self, samples: Features | Images) -> str:
        """Why these samples are no good to calibrate on, as far as can be told; empty where nothing speaks against."""
        if not isinstance(samples, FeatureSet | ImageSet):
            return ""
        images = samples.images if isinstance(samples, FeatureSet) else samples.fingerprint
        same = images is not None and images == self.trained_on.get("images")
        if same or (isinstance(samples, FeatureSet) and samples.fingerprint == self.trained_on.get("train")):
            return (
                "calibration needs ID samples that were not trained on; these are the training data, on which members "
                "agree more than anywhere: false alarms will be more than promised"
            )
        return ""

    def predict(self, samples: Features | Images, *, progress: bool = False) -> Verdicts:
        """Label, confidence, score, p-value, verdict and votes of every sample.

        Features, as a FeatureSet or an array (N, ...); or images, as an ImageSet, paths or PIL images. An image that
        cannot be read is refused; `stream` gives it an error of its own and goes on.
        """
        names = samples.names if isinstance(samples, ImageSet) else ()
        if not names and isinstance(samples, Sequence):
            names = tuple(os.fspath(s) if isinstance(s, str | os.PathLike) else str(i) for i, s in enumerate(samples))
        made = Verdicts.concatenate([self.judge(logits) for logits in self.logits(samples, progress=progress)])
        return made.named(names)

    def stream(
        self, paths: Iterable[PathLike], *, batch_size: int = AT_ONCE, workers: int | None = None
    ) -> Iterator[Verdict]:
        """A verdict for every path, in order and in constant memory; what cannot be read has its `error` instead."""
        with self.encoder.stream(paths, batch_size=batch_size, workers=workers) as batches:
            for batch, features in batches:
                verdicts: Iterator[Verdict] = iter(())
                if len(features):
                    names = [batch.names[i] for i in batch.readable]
                    verdicts = iter(self.judge(self._members(features)).named(names))
                for position, name in enumerate(batch.names):
                    reason = batch.errors.get(position)
                    yield next(verdicts) if reason is None else Verdict(name, error=reason)

    def judge(self, logits: Tensor) -> Verdicts:
        """Verdicts on the members' logits (M, B, C)."""
        log_probs, label = aggregates.AGGREGATES[self.aggregate](logits).max(-1)
        label, confidence, votes = label.cpu(), log_probs.exp().cpu(), logits.argmax(-1).to(torch.int32).cpu()
        rule = self.threshold
        if rule is None:
            return Verdicts(label, confidence, combine(("pds",), (), logits), votes, self.classes)
        score = rule.score(logits)
        limit = rule.limits(label)
        p_value = rule.calibrated.p_values(score, label)
        return Verdicts(label, confidence, score, votes, self.classes, p_value, limit, score > limit)

    def logits(self, samples: Features | Images, *, progress: bool = False) -> Iterator[Tensor]:
        """The members' logits (M, b, C), batch by batch."""
        batches, count = self._features(samples)
        with tqdm(total=count, desc="predict", unit="sample", leave=False, disable=None if progress else True) as bar:
            for features in batches:
                yield self._members(features)
                bar.update(len(features))

    @torch.inference_mode()
    def _members(self, features: Tensor) -> Tensor:
        logits: Tensor = self.ensemble(features.to(self.device))
        if not bool(logits.isfinite().all()):
            raise DataError("logits must be finite to be judged; some are not: check the features for huge values")
        return logits

    def _features(self, samples: Features | Images) -> tuple[Iterator[Tensor], int]:
        """Features of the samples, batch by batch, and how many samples there are."""
        if isinstance(samples, ImageSet):
            return self._from_images(samples), len(samples)
        if isinstance(samples, Tensor | np.ndarray):
            samples = FeatureSet.from_arrays(samples)
        if isinstance(samples, FeatureSet):
            check_backbone(self.about, samples, "what was given")
            if not tails.fits(self.ensemble.about, samples.shape):
                width = (self.ensemble.about or {})["features"]
                raise ShapeError(f"the ensemble takes features of width {width}; got rows of shape {samples.shape}")
            return (x for x, _ in samples.batches(batch_size(self.ensemble, samples.shape))), len(samples)
        if isinstance(samples, str | os.PathLike) or not isinstance(samples, Sequence) or not len(samples):
            raise DataError(f"samples are features, an ImageSet, or a list of paths or images; got {samples!r}")
        return self._from_images(samples), len(samples)

    def _from_images(self, images: Images) -> Iterator[Tensor]:
        with self.encoder.stream(images, batch_size=AT_ONCE, strict=True) as batches:
            for _, features in batches:
                yield features


def _class_names(given: Sequence[str], count: int | None) -> tuple[str, ...]:
    """The names given; classes of the tail that have none are called by number."""
    if count is None and not given:
        raise DissensusError("a tail of your own needs the names of its classes; got none: give classes=[...]")
    if count is not None and len(given) > count:
        raise DissensusError(f"a class needs a logit; the tail has {count}, {len(given)} names were given: check them")
    return (*given, *(str(c) for c in range(len(given), count or 0)))
