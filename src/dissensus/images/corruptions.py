"""The 15 corruptions of ImageNet-C (Hendrycks & Dietterich, 2019) for any RGB image, at severities 1 to 5.

The pixels are those of the package `imagecorruptions`, which an adapter keeps alive on today's numpy, scipy and
scikit-image. Only names inside that package's own module are replaced; the libraries themselves stay as they are.
The package extends ImageNet-C to any size. Not the published set pixel for pixel: motion blur, snow, frost, zoom blur
and pixelate are computed a little differently, and elastic transform lacks the affine part.
"""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dissensus._core import extras
from dissensus._core.errors import DataError, DissensusError, UnknownNameError

CORRUPTIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)

SMALLEST = 32  # pixels a side; the package refuses less
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # sigma, reach, rounds a severity

# the generator of the call under way, one a thread; numpy's global one for whoever calls the package directly
_RANDOM: ContextVar[Any] = ContextVar("_RANDOM", default=np.random)
_LOADING = threading.Lock()  # two threads at once would take each other's stand-ins for the modules to restore


def check(name: str, severity: int) -> None:
    """Refuse a corruption that is not of the 15 (hyphens may stand for underscores) or a severity not of 1 to 5."""
    if name.replace("-", "_") not in CORRUPTIONS:
        raise UnknownNameError("corruption", name, CORRUPTIONS)
    if type(severity) is not int or not 1 <= severity <= 5:  # True is an int to isinstance
        raise DissensusError(f"severity must be one of 1 to 5; got {severity!r}")


def corrupt(image: Image.Image, name: str, severity: int, seed: int) -> Image.Image:
    """The RGB image with one corruption: RGB of the same size, a function of the four arguments alone.

    The pixels are those of `numpy.random.seed(seed)` followed by the package's own function, but for impulse noise,
    whose generator scikit-image no longer takes from there. Numpy's global state is neither read nor changed. One
    seed means the same noise on every image of a size: give each image its own.

    A side of less than 32 px is mirrored outwards to 32 and the middle is cut out again, so that noise and blur
    keep their strength in pixels; enlarging and shrinking would soften both.
    """
    check(name, severity)
    if image.mode != "RGB":
        raise DataError(f"image must be RGB; got mode {image.mode!r}: use image.convert('RGB')")
    if 0 in image.size:
        raise DataError(f"image must have pixels; got {image.width} x {image.height}")
    if not 0 <= seed < 2**32:
        raise DissensusError(f"seed must be one of 0 to {2**32 - 1}; got {seed}")
    function = _functions()[name.replace("-", "_")]
    pixels = np.asarray(image)
    (top, bottom), (left, right) = margins = [_margins(side) for side in pixels.shape[:2]]
    padded = np.pad(pixels, (*margins, (0, 0)), mode="symmetric")
    token = _RANDOM.set(np.random.RandomState(seed))
    try:
        result = np.asarray(function(Image.fromarray(padded), severity))
    finally:
        _RANDOM.reset(token)
    # cut off, not rounded, as in ImageNet-C; clipped first, for a cast alone would wrap 256 to 0
    result = np.clip(result, 0, 255).astype(np.uint8)
    return Image.fromarray(result[top : result.shape[0] - bottom, left : result.shape[1] - right])


def _margins(side: int) -> tuple[int, int]:
    """Pixels to add before and after a side so that it reaches the smallest."""
    lacking = max(SMALLEST - side, 0)
    return lacking // 2, lacking - lacking // 2


def _glass_blur(image: Image.Image, severity: int) -> NDArray[np.float64]:
    """Blur, scatter pixels within a few of their place, blur: the package's glass_blur without its loop of arrays."""
    sigma, reach, rounds = GLASS[severity - 1]
    blurred = (_gaussian(np.asarray(image) / 255.0, sigma, multichannel=True) * 255).astype(np.uint8)
    height, width = blurred.shape[:2]
    count = rounds * max(height - 2 * reach, 0) * max(width - 2 * reach, 0)
    offsets = _RANDOM.get().randint(-reach, reach, size=(count, 2))  # the numbers the package draws pair by pair
    scattered = _scatter(blurred, offsets, reach, rounds)
    result: NDArray[np.float64] = np.clip(_gaussian(scattered / 255.0, sigma, multichannel=True), 0, 1) * 255
    return result


def _scatter(pixels: NDArray[np.uint8], offsets: NDArray[np.int64], reach: int, rounds: int) -> NDArray[np.uint8]:
    """Each pixel, from the last row and column back, takes the value found at its offset (dx, dy) at that moment.

    (H, W, 3) and offsets (rounds * (H - 2 reach) * (W - 2 reach), 2) -> (H, W, 3). The package, like the code of
    ImageNet-C, writes a swap of `x[h, w]` and `x[h + dy, w + dx]`; both sides are views, so the second never gets
    the first's value: a copy in effect, and kept as one here.
    """
    height, width = pixels.shape[:2]
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    places = np.tile((rows[:, None] * width + columns).ravel(), rounds)
    found = list(range(height * width))  # each step may read what an earlier one wrote: a loop, over plain integers
    for place, source in zip(places.tolist(), (places + offsets @ (1, width)).tolist(), strict=True):
        found[place] = found[source]
    return pixels.reshape(height * width, -1)[found].reshape(pixels.shape)


class _Numpy:
    """Numpy as the package knew it: with `float_`, and with the generator of the call under way as `random`."""

    float_ = np.float64

    @property
    def random(self) -> Any:
        return _RANDOM.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _gaussian(image: NDArray[Any], sigma: Any, *, multichannel: bool = False, **options: Any) -> Any:
    """Scikit-image's gaussian with the argument it had until 0.21."""
    filters = importlib.import_module("skimage.filters")
    return filters.gaussian(image, sigma, channel_axis=-1 if multichannel else None, **options)


def _random_noise(image: NDArray[Any], **options: Any) -> Any:
    """Scikit-image's random_noise with the seed of the call; by itself it draws a fresh one from the system."""
    util = importlib.import_module("skimage.util")
    return util.random_noise(image, rng=np.random.default_rng(_RANDOM.get().randint(2**31 - 1)), **options)


def _resource_filename(module: str, name: str) -> str:
    """The path of a file beside a module, as pkg_resources gave it."""
    return str(importlib.resources.files(module.rpartition(".")[0]).joinpath(name))


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Two modules the package imports names from: one gone from setuptools, the other deprecated in scipy."""
    resources, interpolation = ModuleType("pkg_resources"), ModuleType("scipy.ndimage.interpolation")
    vars(resources)["resource_filename"] = _resource_filename
    vars(interpolation)["map_coordinates"] = importlib.import_module("scipy.ndimage").map_coordinates
    modules = {module.__name__: module for module in (resources, interpolation)}
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def _functions() -> dict[str, Callable[[Image.Image, int], Any]]:
    """The functions of the 15, by name."""
    with _LOADING:
        return _load()


@functools.cache
def _load() -> dict[str, Callable[[Image.Image, int], Any]]:
    try:
        with _stand_ins():
            package = importlib.import_module("imagecorruptions.corruptions")
    except ModuleNotFoundError as error:
        raise DissensusError(f"corruptions need imagecorruptions: {extras.install('corruptions')}") from error
    except ImportError as error:  # OpenCV without the system's libGL, most often
        remedy = "without a screen, opencv-python-headless in place of opencv-python may do"
        raise DissensusError(f"imagecorruptions does not load: {error}: {remedy}") from error
    color = importlib.import_module("skimage.color")
    sk = SimpleNamespace(color=color, util=SimpleNamespace(random_noise=_random_noise))
    vars(package).update(np=_Numpy(), sk=sk, gaussian=_gaussian)
    return {name: getattr(package, name) for name in CORRUPTIONS} | {"glass_blur": _glass_blur}
