"""Encoder: images to features, through the loader and the trunk. The one place where an engine runs on pixels.

encoder = Encoder(backbones.create("lite0"), "onnx")
with encoder.stream(["cat.jpg", "dog.jpg"]) as batches:
    for batch, features in batches:                    # features (n, ...) of the n readable images
        print(batch.names, features.shape, batch.errors)
features = encoder(pixels)                             # (B, H, W, 3) uint8 -> (B, ...) float32
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dissensus.backbones import Backbone, joined
from dissensus.features._sources import Job, Streams
from dissensus.features.loader import Batch, Reader, Source, default_workers, load
from dissensus.images import ImageStream, to_rgb


class Encoder:
    """A backbone's trunk, run by an engine.

    Create it before workers are started, that is before `load`: they are forked from this process.

    Args:
        backbone: The backbone whose trunk to run; with joined ones, each image is decoded once for all.
        engine: A name in `engines.ENGINES`: "eager", or "onnx", which is faster on CPUs, ...
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
        self,
        source: Source | ImageStream,
        *,
        batch_size: int = 64,
        workers: int | None = None,
        strict: bool = False,
        shards: Sequence[int] | None = None,
    ) -> Iterator[Iterator[tuple[Batch, Tensor]]]:
        """Encode images of any source in order, in bounded memory.

        Yields an iterator of (batch, features (n, ...) of its n readable images); see `load` for the arguments. Batches
        of an `ImageStream` name their shard in `Batch.request`; those of different shards alternate. `shards` are the
        ones to read, by default all.
        """
        if isinstance(source, ImageStream):
            jobs = [Job(shard, shard, 0) for shard in (range(len(source)) if shards is None else shards)]
            readers = min(len(jobs), default_workers() if workers is None else workers)
            with Streams(source, Reader(self.backbone.transform), batch_size).ahead(jobs, readers) as batches:
                yield ((batch, self(batch.pixels)) for batch in batches)
            return
        with load(source, self.backbone.transform, batch_size=batch_size, workers=workers, strict=strict) as batches:
            yield ((batch, self(batch.pixels)) for batch in batches)
