"""Cases on images: extraction against the bare trunk, the faster engine, what members add to prediction, the export.

The trunk is EfficientNet-Lite0. Images are JPEG files of 500 x 375 pixels, ImageNet's usual size, cut from the two
photographs that come with scikit-learn.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.core import fabric
from benchmarks.measure import WARM_UP, Bar, Comparison, Side, Sizes, compare
from dissensus import backbones
from dissensus._core import extras
from dissensus.backbones import Backbone, engines, tracing
from dissensus.detection.detector import Detector
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.export import onnx
from dissensus.features._extract import extract
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

WIDTH, HEIGHT = 500, 375
MOST_REPEATS = 3  # of an extraction, which is half a minute of work


def extraction(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """the bare trunk on preloaded tensors over a whole extraction from JPEG files"""
    what = f"{sizes.images} images at {sizes.pixels} px"
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as folder:
        _photographs(Path(folder), sizes.images)
        bare = Side(f"the bare trunk, {what}, preloaded", partial(_forward, sizes), sizes.images, burst=1)
        whole = Side(
            "extract, the same from files, decoding and writing included",
            partial(_extract, folder, sizes),
            sizes.images,
            burst=1,
        )
        return [compare("extract", bare, whole, Bar(">=", 0.9), min(repeats, MOST_REPEATS), warm_up=1)]


def faster(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """the trunk in eager PyTorch over the same in ONNX Runtime"""
    eager, other = (
        Side(
            f"lite0 by {name}, {sizes.image_batch} images at {sizes.pixels} px", partial(_engine, name, sizes), burst=1
        )
        for name in ("eager", "onnx")
    )
    return [compare("engine", eager, other, Bar(">=", 1.5), min(repeats, 3 * MOST_REPEATS))]


def prediction(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """images to the logits of a large ensemble over the trunk alone"""
    # Timed within one pass: two processes that run the same trunk differ by more than the members cost.
    model, x = _model(sizes), _batch(sizes, sizes.image_batch)
    whole: list[float] = []
    trunk: list[float] = []
    with torch.inference_mode():
        for turn in tqdm(range(-WARM_UP, min(repeats, 3 * MOST_REPEATS)), desc="predict", leave=False, disable=None):
            start = time.perf_counter()
            features = model.trunk(x)
            middle = time.perf_counter()
            model.ensemble(features)
            end = time.perf_counter()
            if turn >= 0:
                whole.append(1000 * (end - start))
                trunk.append(1000 * (middle - start))
    words = f"lite0 and {sizes.many} members, {sizes.image_batch} images at {sizes.pixels} px"
    return [Comparison("predict", words, "of which lite0's trunk", Bar("<=", 1.1), tuple(whole), tuple(trunk))]


def exported(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """a detector in eager PyTorch, pixels to verdicts, over its export in ONNX Runtime"""
    what = f"{sizes.members} members, {sizes.image_batch} images at {sizes.pixels} px"
    eager = Side(f"detector by eager, lite0 and {what}", partial(_judging, sizes), burst=1)
    other = Side("its export by ONNX Runtime", partial(_exported, sizes), burst=1)
    return [compare("export", eager, other, Bar(">=", 1.0), min(repeats, 3 * MOST_REPEATS))]


def require() -> None:
    """Refuse to begin where the faster engine is not installed."""
    extras.require("onnx", "a bench case of engine or export")


def _photographs(folder: Path, count: int) -> None:
    """JPEG files, no two alike."""
    generator = np.random.default_rng(0)
    photographs = load_sample_images().images
    for i in range(count):
        whole = photographs[i % len(photographs)]
        top, left = (int(generator.integers(0, room + 1)) for room in (whole.shape[0] - HEIGHT, whole.shape[1] - WIDTH))
        part = whole[top : top + HEIGHT, left : left + WIDTH]
        Image.fromarray(part).save(folder / f"{i:04d}.jpg", quality=90)


def _backbone(sizes: Sizes) -> Backbone:
    return backbones.create("lite0", layers=1, size=sizes.pixels)


def _batch(sizes: Sizes, count: int) -> Tensor:
    """Normal pixels (count, 3, H, W), in the memory order that the trunk takes."""
    shape = (count, 3, sizes.pixels, sizes.pixels)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last)


def _forward(sizes: Sizes) -> Callable[[], None]:
    trunk = _channels_last(sizes)
    # as few at once as the engine takes, at which it is fastest: a floor must not be slowed down
    batches = torch.split(_batch(sizes, sizes.images), engines.at_once(sizes.pixels))

    @torch.inference_mode()
    def run() -> None:
        for batch in batches:
            trunk(batch)

    return run


def _extract(folder: str, sizes: Sizes) -> Callable[[], None]:
    backbone, images = _backbone(sizes), ImageSet.find(folder)
    out = Path(tempfile.mkdtemp(prefix="dissensus-bench-"))
    atexit.register(shutil.rmtree, out, ignore_errors=True)

    def run() -> None:
        shutil.rmtree(out / "features", ignore_errors=True)
        extract(images, backbone, out / "features", batch_size=sizes.image_batch, progress=False, fabric=fabric())

    return run


def _engine(name: str, sizes: Sizes) -> Callable[[], Tensor]:
    return partial(engines.create(name, _backbone(sizes)), _pixels(sizes))


def _pixels(sizes: Sizes) -> Tensor:
    """Random bytes (B, H, W, 3)."""
    shape = (sizes.image_batch, sizes.pixels, sizes.pixels, 3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _detector(sizes: Sizes) -> Detector:
    """Calibrated on what the trunk's features might be: speed does not depend on them."""
    backbone = _backbone(sizes)
    ensemble = Ensemble(tails.create("linear", backbone.shape[0], sizes.classes), members=sizes.members)
    held_out = torch.randn(200, backbone.shape[0], generator=torch.Generator().manual_seed(0))
    return Detector(ensemble, backbone=backbone).calibrate(held_out)


def _judging(sizes: Sizes) -> Callable[[], object]:
    detector, pixels = _detector(sizes), _pixels(sizes)
    engine = engines.create("eager", detector.backbone)

    @torch.inference_mode()
    def run() -> object:
        return detector.judge(detector.ensemble(engine(pixels)))

    return run


def _exported(sizes: Sizes) -> Callable[[], object]:
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-") as folder:
        onnx.write(_detector(sizes), Path(folder) / "detector.onnx")
        return partial(tracing.session(Path(folder) / "detector.onnx"), _pixels(sizes))


def _model(sizes: Sizes) -> ImageEnsemble:
    backbone = _backbone(sizes)
    ensemble = Ensemble(tails.create("linear", backbone.shape[0], sizes.classes), members=sizes.many)
    return ImageEnsemble(backbone, ensemble).to(memory_format=torch.channels_last)


def _channels_last(sizes: Sizes) -> nn.Module:
    """The trunk as the engine runs it."""
    trunk: nn.Module = _backbone(sizes).trunk.to(memory_format=torch.channels_last)
    return trunk
