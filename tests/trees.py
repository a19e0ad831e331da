"""Trees of tiny images for suites, and a tiny backbone to put them through."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import numpy as np
from PIL import Image

TINY = {"backbone": "test_vit", "weights": "random", "size": 32, "workers": 0, "progress": False}
TINY_FLAGS = ["--backbone", "test_vit", "--weights", "random", "--size", "32", "--workers", "0", "--no-progress"]


def image(path: Path, side: int = 12) -> Path:
    """A PNG of noise about a colour that goes with the name of its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tone = np.random.default_rng(crc32(path.parent.name.encode())).uniform(40, 216, 3)
    noise = np.random.default_rng(crc32(str(path).encode())).normal(0, 12, (side, side, 3))
    Image.fromarray(np.clip(tone + noise, 0, 255).astype(np.uint8)).save(path)
    return path


def images(folder: Path, count: int = 4, side: int = 12) -> list[Path]:
    return [image(folder / f"{i}.png", side) for i in range(count)]


def classes(folder: Path, names: Iterable[str] = ("cat", "dog", "eel"), count: int = 4, side: int = 12) -> Path:
    """A folder a class."""
    for name in names:
        images(folder / name, count, side)
    return folder
