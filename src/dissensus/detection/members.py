"""Members: an ensemble behind its frozen trunk, from samples of any form to features and the logits of every member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError
from dissensus.backbones import Backbone, engines, joined
from dissensus.detection.samples import Resolved
from dissensus.evaluation.predictions import batch_size
from dissensus.features import FeatureSet
from dissensus.features.encoder import Encoder
from dissensus.features.joined import Features, JoinedFeatures, matched
from dissensus.images import ImageSet
from dissensus.models.ensemble import Ensemble

BATCH = 64  # images


class Outputs(NamedTuple):
    """What scores and predictions are computed from."""

    logits: Tensor  # (M, B, C)
    features: Tensor  # (B, ...), what the logits were computed from

    def cpu(self) -> Outputs:
        """The same on the CPU."""
        return Outputs(self.logits.cpu(), self.features.cpu())


class Members:
    """An ensemble and, for images, the backbone of its training features; arguments as for `Detector`."""

    def __init__(
        self, ensemble: Ensemble, backbone: Backbone | Mapping[str, Any] | None, engine: str | None = None
    ) -> None:
        self.ensemble = ensemble.eval()
        self.backbone_info = backbone.describe() if isinstance(backbone, Backbone) else backbone
        self.engine = _engine(engine, str((self.backbone_info or {}).get("engine", "eager")))
        if isinstance(backbone, Backbone):
            self.backbone = backbone

    @property
    def device(self) -> torch.device:
        """Where the members run."""
        return next(self.ensemble.parameters()).device

    def to(self, device: torch.device | str) -> None:
        """Move members and trunk to a device."""
        self.ensemble.to(device)
        if "backbone" in vars(self):
            self.backbone.trunk.to(device)
        self.__dict__.pop("encoder", None)

    @cached_property
    def backbone(self) -> Backbone:
        """The frozen trunk, or several, and the preprocessing; created on first use."""
        if self.backbone_info is None:
            raise DissensusError(
                "images need a trunk; this detector was trained on features that name none: give it features, or "
                "extract the training images with dissensus extract and train on that"
            )
        with torch.inference_mode(False):  # It is used outside of inference mode too, wherever it is first created.
            return joined.restore(self.backbone_info)

    @cached_property
    def encoder(self) -> Encoder:
        """The backbone's trunk, from images to features."""
        self.ensemble.check_features(self.backbone.shape, self.backbone.name)
        return Encoder(self.backbone, self.engine, self.device)

    @torch.inference_mode()
    def __call__(self, features: Tensor) -> Outputs:
        """Return features (B, ...) with their logits (M, B, C); raise if those are not finite."""
        features = features.to(self.device)
        logits: Tensor = self.ensemble(features)
        if not bool(logits.isfinite().all()):
            raise DataError("logits must be finite; some are not: check the features for huge values")
        return Outputs(logits, features)

    def outputs(self, samples: Resolved, progress: bool = False) -> Iterator[Outputs]:
        """Yield logits (M, b, C) and features (b, ...) of samples by batch; raise if an image cannot be read."""
        source = samples.source
        batches = self._rows(source) if isinstance(source, FeatureSet | JoinedFeatures) else self._encode(source)
        hidden = None if progress else True
        with tqdm(total=len(source), desc="predict", unit="sample", leave=False, disable=hidden) as bar:
            for features in batches:
                yield self(features)
                bar.update(len(features))

    def encode(
        self, images: ImageSet | Sequence[str], *, strict: bool = True, progress: bool = False
    ) -> tuple[FeatureSet, list[int]]:
        """Return the features of images, in memory and unlabelled, and the positions of the images that could be read.

        Args:
            images: A set of images, or paths.
            strict: Raise if an image cannot be read, instead of leaving it out.
            progress: Show a progress bar if stderr is a terminal.
        """
        parts, readable, start = list[Tensor](), list[int](), 0
        hidden = None if progress else True
        with (
            self.encoder.stream(images, batch_size=BATCH, strict=strict) as batches,
            tqdm(total=len(images), desc="encode", unit="image", leave=False, disable=hidden) as bar,
        ):
            for batch, features in batches:
                parts.append(features)
                readable += [start + position for position in batch.readable]
                start += len(batch.names)
                bar.update(len(batch.names))
        if not readable:
            raise DataError(f"at least one image must be readable; none of {start:,} is: check the paths")
        provenance = {"backbone": self.backbone_info, "engine": self.engine}
        return FeatureSet.from_arrays(torch.cat(parts), provenance=provenance), readable

    def _rows(self, features: Features) -> Iterator[Tensor]:
        features = matched(self.backbone_info, features, "the given set")
        self.ensemble.check_features(
            features.shape, "the input", remedy="pass features of that width, or an image as uint8 (H, W, 3)"
        )
        return (x for x, _ in features.batches(batch_size(self.ensemble, features.shape)))

    def _encode(self, images: Any) -> Iterator[Tensor]:
        with self.encoder.stream(images, batch_size=BATCH, strict=True) as batches:
            yield from (features for _, features in batches)


def _engine(engine: str | None, trained: str) -> str:
    """The engine to run: eager by default, or that of the training features if no other gives the same features."""
    if engine is None:
        return trained if trained in engines.APPROXIMATE else "eager"
    engines.ENGINES.check(engine)
    if not engines.interchangeable(engine, trained):
        raise DissensusError(
            f"features must come from one engine, since those of onnx-int8 differ; got {engine}, the training set has "
            f"{trained}: use --engine {trained}, or extract and train again"
        )
    return engine
