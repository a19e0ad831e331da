"""Trees of images that several tests of suites share."""

from __future__ import annotations

import pytest

from tests.trees import classes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    classes(root / "tiny-imagenet" / "train", count=20)
    classes(root / "tiny-imagenet" / "val", count=2)
    classes(root / "textures", ("banded", "bumpy"), count=2, side=96)
    return root
