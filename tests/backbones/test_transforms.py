"""Preprocessing: the same pixels as timm's own, and augmentations that depend on nothing but their seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.transforms_factory import create_transform

from dissensus._core.errors import DissensusError
from dissensus.backbones.transforms import Preprocessing

HALF = (0.5, 0.5, 0.5)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))


def timms(transform: Preprocessing, image: Image.Image) -> torch.Tensor:
    made = create_transform(
        (3, transform.size, transform.size),
        interpolation=transform.interpolation,
        mean=transform.mean,
        std=transform.std,
        crop_pct=transform.crop,
        crop_mode="squash" if transform.squash else "center",
    )
    return made(image)


@pytest.mark.parametrize("size", [(97, 61), (61, 97), (33, 33), (301, 223), (7, 5)])
@pytest.mark.parametrize(
    "transform",
    [
        Preprocessing(32, HALF, HALF),
        Preprocessing(45, *IMAGENET, "bilinear", 0.9),
        Preprocessing(32, *IMAGENET, "bicubic", 1.0),
        Preprocessing(32, HALF, HALF, "bicubic", 0.95, squash=True),
    ],
    ids=["lite", "bilinear", "whole", "squash"],
)
def test_centre_and_normalise_equal_timms_transform(transform, size):
    """To the bit for tall and squashed images; wide ones may differ by a grey level in a few places."""
    image = noise(*size)
    got, expected = transform(image), timms(transform, image)
    exact = transform.squash or image.height > image.width or transform.interpolation != "bicubic"
    level = 1 / 255 / min(transform.std)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6 if exact else 1.01 * level)
    assert ((got - expected).abs() > 1e-6).float().mean() < (1e-9 if exact else 2e-3)


def test_a_batch_of_bytes_is_normalised_by_hand():
    """(byte / 255 - mean) / std: 0 -> -1, 255 -> 1, 51 -> -0.6 for mean = std = 0.5; channels last in memory."""
    pixels = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    pixels[1, :, :, 0], pixels[1, :, :, 1] = 255, 51
    got = Preprocessing(4, HALF, HALF).normalise(pixels)
    assert got.shape == (2, 3, 4, 4)
    assert got.is_contiguous(memory_format=torch.channels_last)
    expected = torch.tensor([[-1.0, -1, -1], [1, -0.6, -1]])[:, :, None, None].expand(2, 3, 4, 4)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert pixels.dtype == torch.uint8
    assert pixels.max() == 255


def test_augmentation_depends_on_the_seed_alone():
    transform, image = Preprocessing(16, HALF, HALF), noise(40, 30)
    torch.manual_seed(1)
    first = [transform.augmented(image, seed) for seed in range(5)]
    torch.manual_seed(2)
    again = [transform.augmented(image, seed) for seed in reversed(range(5))][::-1]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(not np.array_equal(first[i], first[j]) for i in range(5) for j in range(i))
    assert all(part.shape == (16, 16, 3) and part.dtype == np.uint8 for part in first)


def test_augmentation_leaves_the_global_generators_alone():
    torch.manual_seed(3)
    np.random.seed(3)
    expected = torch.rand(2), np.random.rand(2)
    torch.manual_seed(3)
    np.random.seed(3)
    Preprocessing(16, HALF, HALF).augmented(noise(40, 30), 7)
    assert torch.equal(torch.rand(2), expected[0])
    assert np.array_equal(np.random.rand(2), expected[1])


def test_augmentation_flips_half_the_time_and_crops_all_over():
    """On a slope from left to right a flip shows by its sign, and how dark the left end is tells where the crop was."""
    slope = np.tile(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], (64, 1, 3))
    transform, image = Preprocessing(16, HALF, HALF), Image.fromarray(slope)
    parts = [transform.augmented(image, seed).astype(int) for seed in range(200)]
    flipped = [part[8, -1, 0] < part[8, 0, 0] for part in parts]
    assert 70 <= sum(flipped) <= 130
    darkest = [part.min() for part in parts]
    assert min(darkest) < 20
    assert max(darkest) > 120
    spans = [part.max() - part.min() for part in parts]
    assert min(spans) < 0.5 * 255
    assert max(spans) > 0.9 * 255


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (1, 2)])
@pytest.mark.parametrize("squash", [False, True])
def test_tiny_and_long_images(size, squash):
    """Of a very long image the ends are cut off before it is resized; the centre is timm's, to a shade or two."""
    transform, image = Preprocessing(32, HALF, HALF, squash=squash), noise(*size)
    assert transform.centre(image).shape == (32, 32, 3)
    assert transform.augmented(image, 0).shape == (32, 32, 3)
    torch.testing.assert_close(transform(image), timms(transform, image), rtol=0, atol=2.1 / 127.5)


def test_a_line_of_pixels_does_not_fill_the_memory():
    """Resized as a whole, this one would take 256 * 256 * 20,000 pixels of 4 bytes, 5 GB."""
    resource = pytest.importorskip("resource")  # not on Windows
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Preprocessing(224, HALF, HALF).centre(Image.new("RGB", (20_000, 1))).shape == (224, 224, 3)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"


def test_images_of_other_modes_are_made_rgb():
    transform, grey = Preprocessing(8, HALF, HALF), noise(20, 10, "L")
    expected = transform(grey.convert("RGB"))
    assert torch.equal(transform(grey), expected)
    assert torch.equal(expected[0], expected[2])
    clear = Image.new("RGBA", (20, 10), (0, 0, 0, 0))
    assert torch.equal(transform(clear), torch.ones(3, 8, 8)), "transparent is white"


@pytest.mark.parametrize("size", [0, -224])
def test_bad_sizes(size):
    with pytest.raises(DissensusError, match=rf"at least one pixel per side; got size={size}: try 224"):
        Preprocessing(size, HALF, HALF)


@pytest.mark.parametrize("crop", [0, -0.5, 2, float("nan")])
def test_bad_crops(crop):
    with pytest.raises(DissensusError, match=r"crop must be within \(0, 1\], a share of the shorter side; got"):
        Preprocessing(224, HALF, HALF, crop=crop)


@pytest.mark.parametrize("squash", [False, True])
def test_description_is_plain_and_whole(squash):
    transform = Preprocessing(45, *IMAGENET, "bilinear", 0.9, squash)
    about = transform.describe()
    assert about["mean"] == [0.485, 0.456, 0.406]
    assert Preprocessing(**{k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}) == transform
