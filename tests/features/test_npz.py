"""Features in an .npz file: opened like a folder; a damaged one is one line."""

from __future__ import annotations

import io
import struct
import zipfile

import numpy as np
import pytest

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet, npz
from tests.hostile import BAD_HEADERS, npy


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
    path.write_bytes(archive(compressed=0, flags=1))  # encrypted
    with pytest.raises(DataError, match=r"x\.npz cannot be read as \.npz"):
        FeatureSet.open(path)
    path.write_bytes(archive(compressed=99))
    with pytest.raises(DataError, match=r"x\.npz cannot be read as \.npz"):
        FeatureSet.open(path)
    np.savez(path, values=np.zeros(3))
    with pytest.raises(DataError, match="it holds values"):
        FeatureSet.open(path)


def archive(compressed, flags=0):
    """An .npz whose directory states another compression, or that its member is encrypted."""
    file = io.BytesIO()
    np.savez(file, features=np.zeros((3, 2)))
    data = bytearray(file.getvalue())
    for mark, at in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        struct.pack_into("<HH", data, data.find(mark) + at, flags, compressed)
    return bytes(data)


@pytest.mark.parametrize("header", BAD_HEADERS)
def test_a_header_that_is_no_header_is_one_line(header, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as packed:
        packed.writestr("features.npy", npy(header))
    with pytest.raises(DataError, match=r"x\.npz cannot be read as \.npz"):
        FeatureSet.open(tmp_path / "x.npz")
    (tmp_path / "img_emb").mkdir()
    (tmp_path / "img_emb" / "img_emb_0.npy").write_bytes(npy(header))
    with pytest.raises(DataError, match=r"features must be \.npy files"):
        FeatureSet.open(tmp_path)


def test_an_array_that_fills_the_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, features=np.zeros((200_000, 4), np.float32))
    assert len(FeatureSet.open(path)) == 200_000
    monkeypatch.setattr(npz, "BOMB_BYTES", 2**20)
    monkeypatch.setattr(np, "load", opening_only(np.load))
    with pytest.raises(DataError, match=r"unpack to at most 100 times their size; features\.npy of .*x\.npz unpacks"):
        FeatureSet.open(path)


def opening_only(load):
    """`numpy.load` of a file whose arrays must not be read."""

    def opened(*arguments, **options):
        arrays = load(*arguments, **options)
        arrays.zip.open = None
        return arrays

    return opened
