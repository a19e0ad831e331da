"""Quantise an exported trunk to 8-bit integers. Needs the extra onnx.

Weights have one scale per output channel. The ranges of the activations are measured on crops of the two photographs
that come with scikit-learn. Measured with EfficientNet-Lite0 on photos of pets: the features differ by 9% from those of
float32, as they do if the ranges are measured on the photos themselves; with ranges measured on noise by 29%. Dynamic
quantisation, which needs no images, ran 80 times slower.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGES, BATCH = 32, 4


def photographs(size: int, count: int = IMAGES) -> Tensor:
    """Return random crops of two photographs, from half of `size` to the whole height: (count, size, size, 3) uint8."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(0)
    sources = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    crops = []
    for i in range(count):
        source = sources[i % len(sources)]
        most = min(source.size)
        side = int(random.integers(min(size, most) // 2, most + 1))
        left, top = (int(random.integers(length - side + 1)) for length in source.size)
        crop = source.crop((left, top, left + side, top + side))
        crops.append(np.asarray(crop.resize((size, size), Image.Resampling.BICUBIC)))
    return torch.from_numpy(np.stack(crops))


def quantise(source: Path, target: Path, pixels: Tensor) -> None:
    """Write an exported trunk with 8-bit weights and activations.

    Args:
        source: The ONNX file of the trunk, from pixels to features.
        target: The file to write.
        pixels: (N, H, W, 3) uint8, the images on which the ranges of the activations are measured.
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = iter(torch.split(pixels, BATCH))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"pixels": batch.numpy()}

    with _quiet(), tempfile.TemporaryDirectory(prefix="dissensus-int8-") as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            target,
            Batches(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the quantiser prints and logs, which a user cannot act on."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(None):
            yield
    finally:
        logger.setLevel(level)
