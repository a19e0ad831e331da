"""Features in an .npz file: opened like a folder; a damaged one is one line."""

from __future__ import annotations

import numpy as np
import pytest

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet


def test_an_npz_file_is_opened_like_a_folder(tmp_path):
    rows = np.random.default_rng(0).normal(size=(6, 4))
    np.savez(tmp_path / "x.npz", features=rows, labels=["cat", "dog"] * 3, groups=[0, 1, 1] * 2, other=3)
    features = FeatureSet.open(tmp_path / "x.npz")
    assert np.allclose(features.rows(slice(None)).numpy(), rows)
    assert features.classes == ("cat", "dog")
    assert features.labels.tolist() == [0, 1] * 3
    assert features.groups.tolist() == [0, 1, 1] * 2
    np.savez(tmp_path / "x.npz", features=rows)
    assert FeatureSet.open(tmp_path / "x.npz").labels is None


def test_bad_files_are_one_line(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(DataError, match=r"there is no file .*x\.npz: give an \.npz"):
        FeatureSet.open(path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match=r"x\.npz cannot be read as \.npz"):
        FeatureSet.open(path)
    np.savez(path, values=np.zeros(3))
    with pytest.raises(DataError, match="it holds values"):
        FeatureSet.open(path)
