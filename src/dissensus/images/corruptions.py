"""The 15 corruptions of ImageNet-C (Hendrycks & Dietterich, 2019) for any RGB image, at severities 1 to 5.

The pixels are those of the package `imagecorruptions`, adapted to current numpy, scipy and scikit-image: only names
inside its module are replaced. The package extends ImageNet-C to any size and does not reproduce the published set
pixel for pixel: motion blur, snow, frost, zoom blur and pixelate are computed a little differently, and elastic
transform lacks the affine part.
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

SMALLEST = 32  # pixels per side; the package refuses less
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # sigma, reach, rounds for each severity

# the generator of the current call, one per thread; numpy's global one if the package is called directly
_RANDOM: ContextVar[Any] = ContextVar("_RANDOM", default=np.random)
_LOADING = threading.Lock()  # two threads at once would restore each other's stand-ins


def check(name: str, severity: int) -> None:
    """Raise if `name` is not one of the 15 (hyphens may stand for underscores), or `severity` not one of 1 to 5."""
    if name.replace("-", "_") not in CORRUPTIONS:
        raise UnknownNameError("corruption", name, CORRUPTIONS)
    if type(severity) is not int or not 1 <= severity <= 5:  # True is an int to isinstance
        raise DissensusError(f"severity must be one of 1 to 5; got {severity!r}")


def corrupt(image: Image.Image, name: str, severity: int, seed: int) -> Image.Image:
    """Apply one corruption to an RGB image; the result depends on the four arguments only.

    The pixels are those of `numpy.random.seed(seed)` followed by the package's function, except for impulse noise,
    whose generator scikit-image no longer takes from there. Numpy's global state is neither read nor changed.

    Args:
        image: RGB. A side below 32 pixels is mirrored outwards to 32 and cropped again afterwards, so that noise
            and blur keep their strength in pixels.
        name: One of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: Equal seeds draw the same noise for images of one size: give each image another.

    Returns:
        The corrupted image, RGB of the same size.

    Raises:
        DissensusError: If an argument is outside its range, or the package is not installed.
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
    # truncated, not rounded, as in ImageNet-C; clipped first, because a cast alone would wrap 256 to 0
    result = np.clip(result, 0, 255).astype(np.uint8)
    return Image.fromarray(result[top : result.shape[0] - bottom, left : result.shape[1] - right])


def _margins(side: int) -> tuple[int, int]:
    """Return the pixels to add before and after a side so that it reaches the smallest."""
    missing = max(SMALLEST - side, 0)
    return missing // 2, missing - missing // 2


def _glass_blur(image: Image.Image, severity: int) -> NDArray[np.float64]:
    """Compute the package's glass_blur (blur, scatter neighbouring pixels, blur) without its loop over arrays."""
    sigma, reach, rounds = GLASS[severity - 1]
    blurred = (_gaussian(np.asarray(image) / 255.0, sigma, multichannel=True) * 255).astype(np.uint8)
    height, width = blurred.shape[:2]
    count = rounds * max(height - 2 * reach, 0) * max(width - 2 * reach, 0)
    offsets = _RANDOM.get().randint(-reach, reach, size=(count, 2))  # the numbers the package draws pair by pair
    scattered = _scatter(blurred, offsets, reach, rounds)
    result: NDArray[np.float64] = np.clip(_gaussian(scattered / 255.0, sigma, multichannel=True), 0, 1) * 255
    return result


def _scatter(pixels: NDArray[np.uint8], offsets: NDArray[np.int64], reach: int, rounds: int) -> NDArray[np.uint8]:
    """Set each pixel, from the last row and column back, to the current value at its offset (dx, dy).

    (H, W, 3) and offsets (rounds * (H - 2 reach) * (W - 2 reach), 2) -> (H, W, 3). The package, like the code of
    ImageNet-C, writes a swap of `x[h, w]` and `x[h + dy, w + dx]`; both sides are views, so it is in effect a copy.
    """
    height, width = pixels.shape[:2]
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    places = np.tile((rows[:, None] * width + columns).ravel(), rounds)
    index = list(range(height * width))  # each step may read what an earlier one wrote: a loop, over plain integers
    for place, source in zip(places.tolist(), (places + offsets @ (1, width)).tolist(), strict=True):
        index[place] = index[source]
    return pixels.reshape(height * width, -1)[index].reshape(pixels.shape)


class _Numpy:
    """Numpy as the package expects it: with `float_`, and with the generator of the current call as `random`."""

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
    """Scikit-image's random_noise with the seed of the current call instead of one from the system."""
    util = importlib.import_module("skimage.util")
    return util.random_noise(image, rng=np.random.default_rng(_RANDOM.get().randint(2**31 - 1)), **options)


def _resource_filename(module: str, name: str) -> str:
    """Return the path of a file beside a module, as pkg_resources did."""
    return str(importlib.resources.files(module.rpartition(".")[0]).joinpath(name))


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Provide two modules that the package imports: one removed from setuptools, the other deprecated in scipy."""
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


@functools.cache
def _functions() -> dict[str, Callable[[Image.Image, int], Any]]:
    try:
        with _LOADING, _stand_ins():
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
