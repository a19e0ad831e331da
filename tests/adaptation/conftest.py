"""Small features and images to tune on."""

from __future__ import annotations

import numpy as np
import pytest

from dissensus import ImageSet, backbones, extract
from dissensus.adaptation import candidates, splits
from tests.conftest import blobs


@pytest.fixture
def few(monkeypatch):
    """Fewer and shorter trainings."""
    from dissensus.training import options

    monkeypatch.setattr(splits, "FOLDS", 1)
    monkeypatch.setattr(options, "UPDATES", 16)
    monkeypatch.setattr(options, "PASSES", 4)
    original = candidates.candidates
    for module in (candidates, __import__("dissensus.adaptation._tune", fromlist=["x"])):
        monkeypatch.setattr(module, "candidates", lambda features, norm=None: original(features, norm)[:5])


@pytest.fixture(scope="session")
def features():
    return blobs(400, classes=5)


@pytest.fixture(scope="session")
def pictures():
    """Images of three classes that a glance tells apart."""
    random = np.random.default_rng(0)
    labels = np.arange(180) % 3
    pixels = random.integers(0, 60, (180, 24, 24, 3))
    for i, label in enumerate(labels):
        pixels[i, 8 * label : 8 * label + 8] += 150
    return ImageSet.from_arrays(pixels.astype(np.uint8), labels)


@pytest.fixture(scope="session")
def extracted(pictures, tmp_path_factory):
    backbone = backbones.create("test_vit", "random", layers=1, size=32)
    return extract(pictures, backbone, tmp_path_factory.mktemp("f") / "features", workers=0, progress=False)
