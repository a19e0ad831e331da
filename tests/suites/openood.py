"""OpenOOD's data folder in small: image lists, and JPEGs where they say."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
from PIL import Image

CLASSES = ("n01440764", "n01443537", "n01498041")
LISTS = "benchmark_imglist/imagenet"


def picture(path: Path, label: int) -> None:
    """A JPEG of noise about a colour of its class; of its folder, if it is out of distribution."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tone = np.random.default_rng(label if label >= 0 else crc32(path.parent.name.encode())).uniform(40, 216, 3)
    noise = np.random.default_rng(crc32(path.name.encode())).normal(0, 12, (16, 16, 3))
    Image.fromarray(np.clip(tone + noise, 0, 255).astype(np.uint8)).save(path)


def listed(root: Path, name: str, base: str, lines: list[tuple[str, int]]) -> None:
    """Write a list, and the images that it names."""
    path = root / LISTS / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{place} {label}\n" for place, label in lines))
    for place, label in lines:
        picture(root / base / place, label)


def make(root: Path, each: int = 10) -> Path:
    """The lists of ImageNet-1K with three classes; `each` images of a class in training."""
    large, classic = "images_largescale", "images_classic"
    train = [(f"imagenet_1k/train/{c}/{c}_{i}.JPEG", y) for y, c in enumerate(CLASSES) for i in range(each)]
    listed(root, "train_imagenet", large, train)
    for part, start, count in (("val", 0, 24), ("test", 100, 24)):
        places = [f"imagenet_1k/val/ILSVRC2012_val_{start + i:08d}.JPEG" for i in range(count)]
        listed(root, f"{part}_imagenet", large, [(place, i % 3) for i, place in enumerate(places)])
    corrupted = [(f"imagenet_c/fog/{1 + i % 5}/ILSVRC2012_val_{100 + i:08d}.JPEG", i % 3) for i in range(9)]
    listed(root, "test_imagenet_c", large, corrupted)
    listed(root, "test_imagenet_r", large, [(f"imagenet_r/{CLASSES[i % 2]}/art_{i}.jpg", i % 2) for i in range(6)])
    listed(root, "test_imagenet_v2", large, [(f"imagenet_v2/{i % 3}/{i}.jpeg", i % 3) for i in range(6)])
    outside = {
        "ssb_hard": (large, "ssb_hard/n11622368/n11622368_{}.JPEG", 9),
        "ninco": (large, "ninco/amphiuma_means/amphiuma_means_{}.jpeg", 7),
        "inaturalist": (large, "inaturalist/images/{}.jpg", 8),
        "textures": (classic, "texture/banded/banded_{}.jpg", 6),
        "openimage_o": (large, "openimage_o/images/{}.jpg", 5),
    }
    for name, (base, place, count) in outside.items():
        listed(root, f"test_{name}", base, [(place.format(i), -1) for i in range(count)])
    return root
