"""Preprocessing: what is done to an image before the trunk sees it, in two halves.

The first half works on one image, in worker processes, and gives bytes; the second turns a batch of bytes into
normalised floats where the trunk runs. Bytes are a quarter of the data to hand over.
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
from dissensus.images import to_rgb

Pixels = NDArray[np.uint8]  # (H, W, 3)
LONGEST = 32  # how many times the shorter side the longer one may be when an image is resized


@dataclass(frozen=True)
class Preprocessing:
    """Resize so that the crop is a share `crop` of the shorter side, cut out the centre, normalise.

    `squash` makes of every image a square first, as some weights were trained.
    """

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    crop: float = 0.875
    squash: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DissensusError(f"images need at least one pixel a side; got size={self.size}: try 224")
        if not 0 < self.crop <= 1:
            raise DissensusError(f"crop must be within (0, 1], a share of the shorter side; got {self.crop:g}")

    def centre(self, image: Image.Image) -> Pixels:
        """An RGB image -> its centre, (size, size, 3) bytes."""
        side = int(self.size / self.crop)  # rounded down, as timm does: the weights were tested so
        if self.squash:
            resized = TF.resize(image, [side, side], self._mode)
        else:
            image = _without_far_ends(image)
            if image.width >= image.height and self.interpolation == "bicubic":
                return self._centre_alone(image, side)
            resized = TF.resize(image, side, self._mode)
        return np.asarray(TF.center_crop(resized, self.size))

    def _centre_alone(self, image: Image.Image, side: int) -> Pixels:
        """Resize only what the crop keeps of a wide image, in half the time.

        The same pixels up to one grey level in some of ten thousand. Pillow would resize a tall one along its other
        side first, which rounds otherwise.
        """
        width = int(side * image.width / image.height)
        left, top = (round((extent - self.size) / 2) for extent in (width, side))
        across, down = image.width / width, image.height / side
        right, bottom = (left + self.size) * across, (top + self.size) * down
        box = (left * across, top * down, min(right, image.width), min(bottom, image.height))
        return np.asarray(image.resize((self.size, self.size), Image.Resampling.BICUBIC, box=box))

    def augmented(self, image: Image.Image, seed: int) -> Pixels:
        """An RGB image -> a random part of it, perhaps flipped, (size, size, 3) bytes; depends on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            box = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            flip = bool(torch.rand(()) < 0.5)
        part = TF.resized_crop(image, *box, [self.size, self.size], self._mode)
        return np.asarray(TF.hflip(part) if flip else part)

    def normalise(self, pixels: Tensor) -> Tensor:
        """(B, H, W, 3) bytes -> (B, 3, H, W) floats, channels last in memory, where convolutions are fastest."""
        # a whole row of mean and deviation: three values to a pixel are too few for the processor to work on at once
        width = pixels.shape[2]
        mean, std = (
            torch.tensor(values, device=pixels.device).mul(255).repeat(width) for values in (self.mean, self.std)
        )
        rows = pixels.float().flatten(2)
        return rows.sub_(mean).div_(std).view(pixels.shape).permute(0, 3, 1, 2)

    def __call__(self, image: Image.Image) -> Tensor:
        """An image of any kind -> (3, size, size) floats, as the trunk takes them."""
        return self.normalise(torch.from_numpy(self.centre(to_rgb(image)).copy())[None])[0]

    def describe(self) -> dict[str, Any]:
        """As plain values; `squash` only where it is so."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return values if self.squash else {name: value for name, value in values.items() if name != "squash"}

    @property
    def _mode(self) -> InterpolationMode:
        return InterpolationMode(self.interpolation)


def _without_far_ends(image: Image.Image) -> Image.Image:
    """A very long image without its ends, which the crop leaves out: a line of pixels would fill the memory."""
    width, height = image.size
    left, top = (max(0, (side - LONGEST * min(image.size)) // 2) for side in image.size)
    return image.crop((left, top, width - left, height - top)) if left or top else image
