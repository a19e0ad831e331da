"""The raw material of `digits` and `dominoes`: scans of digits, patches of photographs, and ways to corrupt them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.datasets import load_digits, load_sample_images
from sklearn.model_selection import train_test_split

from dissensus._core.errors import DissensusError
from dissensus._core.registry import Registry

Images = NDArray[Any]  # (N, 8, 8), 0 is paper and 1 is ink
Rows = NDArray[np.int64]


def load_scans() -> tuple[Images, Rows]:
    """All scans, (1797, 8, 8) within [0, 1], and their digits (1797,)."""
    data = load_digits()
    return (data.images / 16).astype(np.float32), data.target.astype(np.int64)


def patches(count: int, seed: int) -> Images:
    """Grey patches of photographs at a third of their size, without overlap: (count, 8, 8), each over [0, 1].

    Flat patches, such as sky, are left out: scaled to that range, they would be noise.
    """
    grey = np.stack([photo.mean(2) / 255 for photo in load_sample_images().images])
    blocks = grey[:, :408, :624].reshape(-1, 17, 8, 3, 26, 8, 3)  # (patch, pixel, part of a pixel) per axis
    patches = blocks.mean((3, 6)).swapaxes(2, 3).reshape(-1, 8, 8)
    structured = patches[np.ptp(patches, axis=(1, 2)) > 0.2]
    rng = np.random.default_rng([seed, zlib.crc32(b"photos")])
    return _stretched(structured[np.sort(rng.choice(len(structured), count, replace=False))])


def split(rows: Rows, labels: Rows, shares: Sequence[float], seed: int) -> list[Rows]:
    """Split `rows` at random into these shares, stratified by label."""
    if not 0 <= seed < 2**31:
        raise DissensusError(f"seed must be within 0..2147483647; got {seed}")
    parts = []
    for i, share in enumerate(shares[:-1]):
        size = share / sum(shares[i:])
        part, rows = train_test_split(rows, train_size=size, random_state=seed, stratify=labels[rows])
        parts.append(np.sort(part))
    return [*parts, np.sort(rows)]


class Corruption(NamedTuple):
    """A function (images (N, 8, 8), strength, generator) -> images, and its strengths at severities 1 to 5."""

    apply: Callable[[Images, float, Generator], Images]
    strengths: tuple[float, float, float, float, float]


def corrupt(images: Images, name: str, severity: int, seed: int = 0) -> Images:
    """Images (N, 8, 8) within [0, 1] under one of CORRUPTIONS or DISTORTIONS, severity 1 (mild) to 5.

    Random draws depend on `name` and `seed` alone: severities differ in strength, not in the draws.

    Raises:
        DissensusError: For an unknown name, or a severity outside 1..5.
    """
    corruption = Registry("corruption", CORRUPTIONS | DISTORTIONS)[name]
    if severity not in range(1, 6):
        raise DissensusError(f"severity must be one of 1 to 5; got {severity}")
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    changed = corruption.apply(images, corruption.strengths[severity - 1], rng)
    return np.clip(changed, 0, 1).astype(images.dtype)


def _gaussian_noise(images: Images, deviation: float, rng: Generator) -> Images:
    return images + deviation * rng.standard_normal(images.shape)


def _impulse_noise(images: Images, share: float, rng: Generator) -> Images:
    hit, ink = rng.random((2, *images.shape))
    return np.where(hit < share, ink < 0.5, images)


def _blur(images: Images, sigma: float, rng: Generator) -> Images:
    blurred: Images = ndimage.gaussian_filter(images, (0, sigma, sigma))
    return blurred


def _fog(images: Images, density: float, rng: Generator) -> Images:
    haze = ndimage.gaussian_filter(rng.standard_normal(images.shape), (0, 1.5, 1.5))
    return (1 - density) * images + density * _stretched(haze)


def _rotation(images: Images, degrees: float, rng: Generator) -> Images:
    angles = np.radians(degrees) * rng.choice([-1, 1], len(images))
    return _warped(images, [[[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]] for a in angles])


def _translation(images: Images, pixels: float, rng: Generator) -> Images:
    angles = rng.uniform(0, 2 * np.pi, len(images))
    return _warped(images, [np.eye(2)] * len(images), pixels * np.stack([np.sin(angles), np.cos(angles)], 1))


def _shear(images: Images, slope: float, rng: Generator) -> Images:
    return _warped(images, [[[1, 0], [slope * side, 1]] for side in rng.choice([-1, 1], len(images))])


def _erase(images: Images, side: float, rng: Generator) -> Images:
    top, left = rng.integers(0, 9 - int(side), (2, len(images), 1, 1))
    row, column = np.indices((8, 8))
    return np.where(((row - top) // side == 0) & ((column - left) // side == 0), 0, images)


def _invert(images: Images, share: float, rng: Generator) -> Images:
    return images + share * (1 - 2 * images)


# The shifts of the test set. No change of contrast or brightness: a tail that normalises would not see it.
CORRUPTIONS = {
    "gaussian-noise": Corruption(_gaussian_noise, (0.1, 0.18, 0.26, 0.34, 0.42)),
    "impulse-noise": Corruption(_impulse_noise, (0.04, 0.1, 0.16, 0.22, 0.28)),
    "blur": Corruption(_blur, (0.5, 0.65, 0.8, 0.95, 1.1)),
    "fog": Corruption(_fog, (0.2, 0.32, 0.44, 0.56, 0.68)),
    "rotation": Corruption(_rotation, (8, 15, 22, 29, 36)),
    "translation": Corruption(_translation, (0.4, 0.75, 1.1, 1.45, 1.8)),
}
# Distortions of the disagreement set: none of them is in the test set.
DISTORTIONS = {
    "shear": Corruption(_shear, (0.2, 0.35, 0.5, 0.65, 0.8)),
    "erase": Corruption(_erase, (2, 3, 4, 5, 6)),
    "invert": Corruption(_invert, (0.6, 0.7, 0.8, 0.9, 1.0)),
}


def _warped(images: Images, matrices: Sequence[Any], moves: Any = 0.0) -> Images:
    """Transform every image by its own 2x2 matrix about its centre, then by its own shift in pixels."""
    m = np.asarray(matrices)
    offsets = np.array([3.5, 3.5]) - m @ np.array([3.5, 3.5]) - moves
    return np.stack(
        [
            ndimage.affine_transform(*each, order=1, mode="grid-constant")
            for each in zip(images, m, offsets, strict=True)
        ]
    )


def _stretched(images: Images) -> Images:
    """Scale the range of each image to [0, 1]."""
    low = images.min((1, 2), keepdims=True)
    result: Images = (images - low) / np.ptp(images, axis=(1, 2), keepdims=True)
    return result
