"""Preprocessing: from an image to the input of the trunk, in two steps.

Worker processes resize and crop one image at a time, as bytes. A batch of bytes is normalised to floats where the trunk
runs; bytes are a quarter of the data to send.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as TF
from torchvision.transforms.transforms import RandomResizedCrop

from dissensus._core.errors import DissensusError
from dissensus._core.random import seed_torch
from dissensus.images import to_rgb

Pixels = NDArray[np.uint8]  # (H, W, 3)
LONGEST = 32  # the longer side of an image to be resized, at most, in units of the shorter one


@dataclass(frozen=True)
class Preprocessing:
    """Resize, crop the centre, normalise.

    Attributes:
        size: Height and width of the result in pixels.
        mean, std: For each channel, of values within 0..1.
        interpolation: As torchvision calls it.
        crop: The share of the shorter side that is kept.
        squash: Resize to a square first, as some weights were trained.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    crop: float = 0.875
    squash: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DissensusError(f"images need at least one pixel per side; got size={self.size}: try 224")
        if not 0 < self.crop <= 1:
            raise DissensusError(f"crop must be within (0, 1], a share of the shorter side; got {self.crop:g}")

    def centre(self, image: Image.Image) -> Pixels:
        """Return the centre of an RGB image, (size, size, 3)."""
        side = int(self.size / self.crop)  # rounded down, as in timm
        if self.squash:
            resized = TF.resize(image, [side, side], self._mode)
        else:
            image = _shorten(image)
            if image.width >= image.height and self.interpolation == "bicubic":
                return self._resize_centre(image, side)
            resized = TF.resize(image, side, self._mode)
        return np.asarray(TF.center_crop(resized, self.size))

    def _resize_centre(self, image: Image.Image, side: int) -> Pixels:
        """Resize only the part of a wide image that the crop keeps, in half the time.

        A few pixels in ten thousand differ, by one grey level. Not for tall images: Pillow resizes their other side
        first, which rounds differently.
        """
        width = int(side * image.width / image.height)
        left, top = (round((extent - self.size) / 2) for extent in (width, side))
        across, down = image.width / width, image.height / side
        right, bottom = (left + self.size) * across, (top + self.size) * down
        box = (left * across, top * down, min(right, image.width), min(bottom, image.height))
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box))

    def augmented(self, image: Image.Image, seed: int) -> Pixels:
        """Return a random crop of an RGB image, perhaps flipped, (size, size, 3); the seed decides."""
        with torch.random.fork_rng(devices=[]):
            seed_torch(seed)
            box = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            flip = bool(torch.rand(()) < 0.5)
        cropped = TF.resized_crop(image, *box, [self.size, self.size], self._mode)
        return np.asarray(TF.hflip(cropped) if flip else cropped)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return (B, 3, H, W) floats of (B, H, W, 3) bytes; channels last in memory, where convolutions are fastest."""
        # Mean and deviation for a whole row: vector instructions need more than the three values of a pixel.
        width = pixels.shape[2]
        mean, std = (
            torch.tensor(values, device=pixels.device).mul(255).repeat(width) for values in (self.mean, self.std)
        )
        rows = pixels.float().flatten(2)
        return rows.sub_(mean).div_(std).view(pixels.shape).permute(0, 3, 1, 2)

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the input of the trunk for one image of any mode, (3, size, size)."""
        return self.normalise(torch.from_numpy(self.centre(to_rgb(image)).copy())[None])[0]

    def describe(self) -> dict[str, Any]:
        """Return the fields as plain values; `squash` only if set."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return values if self.squash else {name: value for name, value in values.items() if name != "squash"}

    @property
    def _mode(self) -> InterpolationMode:
        return InterpolationMode(self.interpolation)


def _shorten(image: Image.Image) -> Image.Image:
    """Cut off the ends of a very long image, which the crop drops anyway: resized, they might fill the memory."""
    width, height = image.size
    left, top = (max(0, (side - LONGEST * min(image.size)) // 2) for side in image.size)
    return image.crop((left, top, width - left, height - top)) if left or top else image
