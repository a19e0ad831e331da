"""Encoder: images to features, through the loader and the trunk. The one place where an engine runs on pixels.

encoder = Encoder(backbones.create("lite0"), "onnx")
with encoder.stream(["cat.jpg", "dog.jpg"]) as batches:
    for batch, features in batches:                    # features (n, ...) of the n readable images
        print(batch.names, features.shape, batch.errors)
features = encoder(pixels)                             # (B, H, W, 3) uint8 -> (B, ...) float32
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dissensus.backbones import Backbone, joined
from dissensus.features.loader import Batch, Source, load
from dissensus.images import to_rgb


class Encoder:
    """A backbone's trunk, run by an engine.

    Create it before workers are started, that is before `load`: they are forked from this process.

    Args:
        backbone: The backbone whose trunk to run; with joined ones, each image is decoded once for all.
        engine: "eager", or "onnx", which is faster on CPUs.
        device: Where the trunk runs.

    Raises:
        DissensusError: If the engine is unknown, not installed, or does not run on the device.
    """

    def __init__(self, backbone: Backbone, engine: str = "eager", device: torch.device | str = "cpu") -> None:
        self.backbone = backbone
        self._run = joined.create_engine(engine, backbone, device)

    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return the features (B, ...) float32, on the CPU, of pixels (B, H, W, 3) uint8."""
        if not len(pixels):
            return torch.empty(0, *self.backbone.shape)
        return self._run(torch.from_numpy(pixels))

    def image(self, image: Image.Image) -> Tensor:
        """Return the features (1, ...) of one PIL image."""
        return self(self.backbone.transform.centre(to_rgb(image))[None].copy())

    @contextlib.contextmanager
    def stream(
        self, source: Source, *, batch_size: int = 64, workers: int | None = None, strict: bool = False
    ) -> Iterator[Iterator[tuple[Batch, Tensor]]]:
        """Encode images of any source in order, in bounded memory.

        Yields an iterator of (batch, features (n, ...) of its n readable images); see `load` for the arguments.
        """
        with load(source, self.backbone.transform, batch_size=batch_size, workers=workers, strict=strict) as batches:
            yield ((batch, self(batch.pixels)) for batch in batches)
