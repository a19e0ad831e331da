"""Cases on images: extraction, the ONNX engine, the cost of members and of scores in prediction, and the ONNX export.

The trunk is EfficientNet-Lite0. Images are JPEG files of 500 x 375 pixels, a typical ImageNet size, cropped from the
two photographs of scikit-learn.
"""

from __future__ import annotations

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

from benchmarks.measure import WARM_UP, Bar, Comparison, Side, Sizes, compare
from benchmarks.steps import cpu_fabric
from dissensus import backbones
from dissensus._core import extras
from dissensus.backbones import Backbone, engines, onnx_runtime
from dissensus.detection.detector import Detector
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.export import onnx
from dissensus.features import FeatureSet, extract
from dissensus.functional import scores
from dissensus.functional.expressions import DEFAULT_SCORE, FALLBACK, score_names
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training.scoring import fit_scores

WIDTH, HEIGHT = 500, 375
EXTRACTIONS = 3  # the most repeats of an extraction, which takes half a minute
CLASSES = 24  # of the detectors whose scores are compared
PASSES = 9  # the most repeats of a pass over a batch, which takes a second or two


def extraction(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare the trunk on tensors in memory with a whole extraction from JPEG files."""
    what = f"{sizes.images} images at {sizes.pixels} px"
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-", ignore_cleanup_errors=True) as folder:
        photographs, features = Path(folder) / "photographs", Path(folder) / "features"
        _write_photographs(photographs, sizes.images)
        trunk = Side(f"the trunk alone, {what}, per image", partial(_trunk, sizes), sizes.images, burst=1)
        whole = Side(
            "extract, from JPEG files to a feature folder",
            partial(_extract, photographs, features, sizes),
            sizes.images,
            burst=1,
        )
        return [compare("extract", trunk, whole, Bar(">=", 0.9), min(repeats, EXTRACTIONS), warm_up=1)]


def engine(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare the trunk in eager PyTorch with the trunk in ONNX Runtime."""
    return [_engines("engine", "eager", "onnx", Bar(">=", 1.5), sizes, repeats)]


def int8(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare the trunk in ONNX Runtime with the same in 8-bit integers."""
    return [_engines("int8", "onnx", "onnx-int8", Bar(">=", 1.5), sizes, repeats)]


def compiled(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare the trunk in eager PyTorch with the compiled trunk."""
    return [_engines("compile", "eager", "compile", Bar(">=", 1.0), sizes, repeats)]


def _engines(name: str, one: str, other: str, bar: Bar, sizes: Sizes, repeats: int) -> Comparison:
    what = f"{sizes.image_batch} images at {sizes.pixels} px"
    first, second = (
        Side(f"lite0 in {engine}, {what}", partial(_engine, engine, sizes), burst=1) for engine in (one, other)
    )
    return compare(name, first, second, bar, min(repeats, PASSES))


def prediction(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare images to the logits of a large ensemble with the trunk alone.

    Both are timed within one pass, because two processes that run the same trunk differ by more than the members cost.
    """
    model, x = _model(sizes), _batch(sizes, sizes.image_batch)
    whole: list[float] = []
    trunk: list[float] = []
    with torch.inference_mode():
        for repeat in tqdm(range(-WARM_UP, min(repeats, PASSES)), desc="predict", leave=False, disable=None):
            start = time.perf_counter()
            features = model.trunk(x)
            middle = time.perf_counter()
            model.ensemble(features)
            end = time.perf_counter()
            if repeat >= 0:
                whole.append(1000 * (end - start))
                trunk.append(1000 * (middle - start))
    description = f"lite0 and {sizes.many} members, {sizes.image_batch} images at {sizes.pixels} px"
    return [Comparison("predict", description, "its trunk alone", Bar("<=", 1.1), tuple(whole), tuple(trunk))]


def distances(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare verdicts by the default score, which contains distances, with verdicts by pds alone.

    All is timed within one pass, as in `prediction`: one trunk and one set of members, then either score.
    """
    backbone = _backbone(sizes)
    plain = _detector(sizes, classes=CLASSES, score=FALLBACK)
    full = _detector(sizes, classes=CLASSES, score=DEFAULT_SCORE)
    engine, pixels = engines.create("eager", backbone), _pixels(sizes)
    with_distances: list[float] = []
    without: list[float] = []
    with torch.inference_mode():
        for repeat in tqdm(range(-WARM_UP, min(repeats, PASSES)), desc="distances", leave=False, disable=None):
            start = time.perf_counter()
            outputs = plain.members(engine(pixels))
            shared = time.perf_counter() - start
            seconds = {}
            for detector in (plain, full) if repeat % 2 else (full, plain):
                start = time.perf_counter()
                detector.predict_outputs(outputs)
                seconds[id(detector)] = time.perf_counter() - start
            if repeat >= 0:
                with_distances.append(1000 * (shared + seconds[id(full)]))
                without.append(1000 * (shared + seconds[id(plain)]))
    what = f"lite0, {sizes.members} members and {DEFAULT_SCORE}, {sizes.image_batch} images at {sizes.pixels} px"
    bar = Bar("<=", 1.03)
    return [Comparison("distances", what, f"with {FALLBACK}", bar, tuple(with_distances), tuple(without))]


def export(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare a detector in eager PyTorch, from pixels to verdicts, with its ONNX export."""
    what = f"{sizes.members} members, {sizes.image_batch} images at {sizes.pixels} px"
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-", ignore_cleanup_errors=True) as folder:
        eager = Side(f"detector in eager, lite0 and {what}", partial(_eager_detector, sizes), burst=1)
        exported = Side("its export in ONNX Runtime", partial(_exported_detector, Path(folder), sizes), burst=1)
        return [compare("export", eager, exported, Bar(">=", 1.0), min(repeats, PASSES))]


def require() -> None:
    """Raise if ONNX Runtime is not installed."""
    extras.require("onnx", "case engine, int8 or export")


def _write_photographs(folder: Path, count: int) -> None:
    """Write `count` different JPEG files."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    photographs = load_sample_images().images
    for i in range(count):
        photograph = photographs[i % len(photographs)]
        top = int(generator.integers(photograph.shape[0] - HEIGHT + 1))
        left = int(generator.integers(photograph.shape[1] - WIDTH + 1))
        crop = photograph[top : top + HEIGHT, left : left + WIDTH]
        Image.fromarray(crop).save(folder / f"{i:04d}.jpg", quality=90)


def _backbone(sizes: Sizes) -> Backbone:
    return backbones.create("lite0", layers=1, size=sizes.pixels)


def _batch(sizes: Sizes, count: int) -> Tensor:
    """Return normal pixels (count, 3, H, W), channels last in memory as the trunk takes them."""
    shape = (count, 3, sizes.pixels, sizes.pixels)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return x.contiguous(memory_format=torch.channels_last)


def _trunk(sizes: Sizes) -> Callable[[], None]:
    trunk: nn.Module = _backbone(sizes).trunk.to(memory_format=torch.channels_last)
    # The batch size at which the engine is fastest: the reference must not be slower than necessary.
    batches = torch.split(_batch(sizes, sizes.images), engines.at_once(sizes.pixels))

    @torch.inference_mode()
    def run() -> None:
        for batch in batches:
            trunk(batch)

    return run


def _extract(photographs: Path, features: Path, sizes: Sizes) -> Callable[[], None]:
    backbone, images = _backbone(sizes), ImageSet.find(photographs)

    def run() -> None:
        shutil.rmtree(features, ignore_errors=True)
        extract(images, backbone, features, batch_size=sizes.image_batch, progress=False, fabric=cpu_fabric())

    return run


def _engine(name: str, sizes: Sizes) -> Callable[[], Tensor]:
    engines.COMPILER = sizes.compiler
    return partial(engines.create(name, _backbone(sizes)), _pixels(sizes))


def _pixels(sizes: Sizes) -> Tensor:
    """Return random bytes (B, H, W, 3)."""
    shape = (sizes.image_batch, sizes.pixels, sizes.pixels, 3)
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _detector(sizes: Sizes, *, classes: int | None = None, score: str = FALLBACK) -> Detector:
    """Return a detector fitted to and calibrated on random features: its speed does not depend on them."""
    backbone, classes = _backbone(sizes), classes or sizes.classes
    ensemble = Ensemble(tails.create("linear", backbone.shape[0], classes), members=sizes.members)
    train, held_out = torch.randn(2, 2 * classes + 200, backbone.shape[0], generator=torch.Generator().manual_seed(0))
    names = [name for name in score_names(score)[0] if scores.is_fitted(name)]
    fit_scores(ensemble, FeatureSet.from_arrays(train, torch.arange(len(train)) % classes), names)
    return Detector(ensemble, backbone=backbone).calibrate(held_out, score=score)


def _eager_detector(sizes: Sizes) -> Callable[[], object]:
    detector, pixels = _detector(sizes), _pixels(sizes)
    engine = engines.create("eager", detector.backbone)

    @torch.inference_mode()
    def run() -> object:
        return detector.predict_outputs(detector.members(engine(pixels)))

    return run


def _exported_detector(folder: Path, sizes: Sizes) -> Callable[[], object]:
    path = folder / "detector.onnx"
    onnx.write(_detector(sizes), path)
    return partial(onnx_runtime.session(path), _pixels(sizes))


def _model(sizes: Sizes) -> ImageEnsemble:
    backbone = _backbone(sizes)
    ensemble = Ensemble(tails.create("linear", backbone.shape[0], sizes.classes), members=sizes.many)
    return ImageEnsemble(backbone, ensemble).to(memory_format=torch.channels_last)
