"""A small run on clouds, and one on images through a small random backbone."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dissensus import backbones
from dissensus.features import extract
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from tests.conftest import blobs, linear


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A small run on clouds, and more of the same clouds."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(linear(), blobs(), "sed-a2d", diversity=0.1, label_smoothing=0.1, epochs=10, lr=1e-2, batch_size=32, out=folder,
        progress=False)  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def more():
    return blobs(400, seed=7)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A run on images through a small random backbone, with its image files."""
    root = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for c, colour in enumerate(("red", "blue")):
        for i in range(40):
            pixels = generator.integers(0, 90, (40, 40, 3), np.uint8)
            pixels[..., 2 * c] += 150
            (root / "images" / colour).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / "images" / colour / f"{i:02d}.png")
    backbone = backbones.create("resnet10t", "random", layers=1, size=32)
    images = ImageSet.find(root / "images")
    features = extract(images, backbone, root / "features", workers=0, progress=False)
    ensemble = Ensemble(tails.create("linear", features.width, 2), members=3)
    fit(ensemble, features, "deep-ensemble", epochs=5, lr=1e-2, batch_size=16, out=root / "run", progress=False)
    return root
