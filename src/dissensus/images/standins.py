"""Views of an image that make stand-ins: sets made from ID data that play the OOD set's part in a choice.

None of them is among the 15 corruptions of `corruptions`, which are kept for evaluation. Sizes are relative to the
image, so that the same photo of 64 and of 500 pixels suffers alike. `VIEWS` holds them by name, and your own joins
them with the same decorator:

>>> @register
... def mirror(image, rng):
...     "Left and right exchanged."
...     return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
>>> apply(Image.new("RGB", (3, 2)), "mirror", seed=0).size
(3, 2)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from dissensus._core.errors import DataError, DissensusError
from dissensus._core.registry import Registry

View = Callable[[Image.Image, np.random.Generator], Image.Image]
"""An RGB image and the generator to draw from, to an RGB image of the same size."""

VIEWS: Registry[View] = Registry("view")
"""Every registered view by its name."""

STAND_INS = ("jigsaw", "speckle", "box_blur", "recolour")
"""The views to choose with by default: one that destroys the object, and one corruption each by noise, blur, colour."""

DESTROYING = "jigsaw"
"""The view that leaves nothing of the label, to disagree on. All others keep the object."""

GRIDS = (2, 8)  # cells per side of a jigsaw, from and to
GRAIN = 64  # grains of speckle along the shorter side
SPECKLE = 0.25  # standard deviation of the factor
BLUR = (0.035, 0.055)  # width of the box as a share of the shorter side, from and to

_V = TypeVar("_V", bound=View)


def register(view: _V) -> _V:
    """Add a function (image, rng) -> image to `VIEWS` under its own name; its docstring is shown by `list views`.

    It must draw from `rng` alone, must not change the image that it is given, and must keep its size.

    Raises:
        DissensusError: If the name is taken.
    """
    VIEWS.add(view.__name__, view)
    return view


def apply(image: Image.Image, name: str, seed: int) -> Image.Image:
    """Make one view of an RGB image; the result depends on the three arguments only.

    Args:
        image: RGB, of any size.
        name: One of `VIEWS`.
        seed: At least 0. Equal seeds draw the same for every image: give each image another.

    Returns:
        The view, RGB of the same size.

    Raises:
        DissensusError: If an argument is outside its range, or a view of your own returns something else.
    """
    view = VIEWS[name]
    if image.mode != "RGB":
        raise DataError(f"image must be RGB; got mode {image.mode!r}: use image.convert('RGB')")
    if 0 in image.size:
        raise DataError(f"image must have pixels; got {image.width} x {image.height}")
    if seed < 0:
        raise DissensusError(f"seed must be at least 0; got {seed}")
    result = view(image, np.random.default_rng(seed))
    if not isinstance(result, Image.Image) or (result.mode, result.size) != ("RGB", image.size):
        shown = (
            f"{result.mode} of {result.width} x {result.height}"
            if isinstance(result, Image.Image)
            else type(result).__name__
        )
        raise DissensusError(
            f"view {name!r} must return an RGB image of the same size, {image.width} x {image.height}; got {shown}: "
            "convert and resize it"
        )
    return result


@register
def jigsaw(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Patches of a grid of 2 to 8 cells per side, shuffled so that every patch moves.

    Where the grid does not divide the image, cells differ by one pixel, and a patch is cut out at the size of the cell
    it goes to: nothing is resampled. An image has at most as many cells as pixels, and a single pixel stays as it is.
    """
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    grid = int(rng.integers(GRIDS[0], GRIDS[1] + 1))
    cells = [(y, x) for y in _cuts(height, grid) for x in _cuts(width, grid)]
    order = rng.permutation(len(cells))
    result = np.empty_like(pixels)
    for place, source in zip(order, np.roll(order, 1), strict=True):  # one cycle through all cells
        (top, bottom), (left, right) = cells[place]
        rows, columns = bottom - top, right - left
        y, x = min(cells[source][0][0], height - rows), min(cells[source][1][0], width - columns)
        result[top:bottom, left:right] = pixels[y : y + rows, x : x + columns]
    return Image.fromarray(result)


def _cuts(side: int, cells: int) -> list[tuple[int, int]]:
    """Cut a side into at most `cells` parts of almost equal length; return where each begins and ends."""
    cells = min(cells, side)
    edges = [side * i // cells for i in range(cells + 1)]
    return list(itertools.pairwise(edges))


@register
def speckle(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Multiplicative noise: x (1 + 0.25 n), n normal for each channel and grain, 64 grains along the shorter side."""
    width, height = image.size
    scale = max(1.0, min(image.size) / GRAIN)
    rows, columns = (np.arange(side) / scale for side in (height, width))
    rows, columns = rows.astype(np.intp), columns.astype(np.intp)
    noise = rng.standard_normal((rows[-1] + 1, columns[-1] + 1, 3), dtype=np.float32)
    return _from_floats(np.asarray(image) * (1 + np.float32(SPECKLE) * noise[rows[:, None], columns]))


@register
def box_blur(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Mean over a square of 3.5% to 5.5% of the shorter side, of 2 pixels at least."""
    width = max(2.0, rng.uniform(*BLUR) * min(image.size))
    return image.filter(ImageFilter.BoxBlur((width - 1) / 2))


@register
def recolour(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Colour channels in random order, one of them inverted."""
    pixels = np.asarray(image)[..., rng.permutation(3)]
    channel = int(rng.integers(3))
    pixels[..., channel] = 255 - pixels[..., channel]
    return Image.fromarray(np.ascontiguousarray(pixels))


def _from_floats(pixels: NDArray[np.float32]) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))
