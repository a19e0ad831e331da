"""Features at a URL, here in fsspec's memory: the same values as in a folder, and the same errors."""

import pickle
import uuid

import fsspec
import numpy as np
import pytest
import torch

from dissensus import backbones
from dissensus.features import FeatureSet, FeatureWriter, _storage, extract
from dissensus.images import ImageSet
from tests.features.samples import arrays, contents, on_disk, refused


@pytest.fixture
def url():
    """A folder of its own in memory."""
    root = f"memory://{uuid.uuid4().hex}"
    yield f"{root}/features"
    fs = fsspec.filesystem("memory")
    if fs.exists(root):
        fs.rm(root, recursive=True)


def stored(url):
    """The files at a URL, by path under it."""
    fs, root = fsspec.core.url_to_fs(url)
    return {path.removeprefix(f"{root}/"): fs.cat_file(path) for path in fs.find(root)}


def change(url, name, data):
    fs, root = fsspec.core.url_to_fs(url)
    if data is None:
        fs.rm_file(f"{root}/{name}")
    else:
        fs.pipe_file(f"{root}/{name}", data)


def test_a_saved_set_comes_back(url, tmp_path):
    x, features = on_disk(url)
    np.testing.assert_array_equal(features.rows(slice(None)), x)
    np.testing.assert_array_equal(features.rows([[49, 0], [7, 7]]), x[[[49, 0], [7, 7]]])
    np.testing.assert_array_equal(features.labels, np.arange(50) % 5)
    np.testing.assert_array_equal(features.groups, np.arange(50) % 2)
    assert features.class_counts.tolist() == [10] * 5
    assert str(features.folder) == url
    assert f"in '{url}'" in repr(features)
    features.verify()
    part = FeatureSet.open(url, verify=True).subset([40, 3])
    np.testing.assert_array_equal(part.rows(slice(None)), x[[40, 3]])
    np.testing.assert_array_equal(part.labels, [0, 3])
    _, local = on_disk(tmp_path / "f")
    assert stored(url) == contents(tmp_path / "f")
    assert features.fingerprint == local.fingerprint


def test_a_writer_of_paths_and_batches(url):
    x, y, _ = arrays(rows=20)
    with FeatureWriter(url, shape=6, dtype="float32", shard_rows=8) as writer:
        for start in range(0, 20, 5):
            at = slice(start, start + 5)
            writer.add(x[at], y[at], paths=[f"{i}.png" for i in range(start, start + 5)])
            with refused("holds index|never finished"):
                FeatureSet.open(url)
    features = FeatureSet.open(url)
    np.testing.assert_array_equal(features.rows(slice(None)), x)
    assert features.paths([19, 2]) == ["19.png", "2.png"]
    names = {f"img_emb/img_emb_{i:05}.npy" for i in range(3)} | {f"metadata/metadata_{i:05}.parquet" for i in range(3)}
    assert stored(url).keys() == {"index.json", *names}


def test_the_same_values_in_another_process(url):
    """A pickle holds the URL and the rows, no features."""
    x, features = on_disk(url)
    part = features.subset([40, 3])
    data = pickle.dumps(part)
    assert x[40].tobytes() not in data
    twin = pickle.loads(data)
    assert torch.equal(twin.rows(slice(None)), part.rows(slice(None)))
    assert twin.fingerprint == part.fingerprint


def test_few_copies_of_shards_are_kept(url, monkeypatch):
    monkeypatch.setattr(_storage, "COPIES", 700)  # a shard has 7 * 6 * 4 + 128 bytes
    original, copies = _storage.local_copy, []

    def local_copy(path):
        copies.append(path.name)
        return original(path)

    x, _ = on_disk(url)
    features = FeatureSet.open(url)
    monkeypatch.setattr(_storage, "local_copy", local_copy)
    for row in (0, 7, 0, 14, 0, 7):
        rows = slice(row, row + 4)  # more than half of a shard
        np.testing.assert_array_equal(features.rows(rows), x[rows])
    assert [name[8:13] for name in copies] == ["00000", "00001", "00002", "00001"]


def test_few_rows_of_a_large_set_are_requested_alone(url, monkeypatch):
    monkeypatch.setattr(_storage, "COPIES", 700)
    monkeypatch.setattr(_storage, "local_copy", None)
    x, _ = on_disk(url)
    features = FeatureSet.open(url)
    for rows in ([0], [8, 9, 12], [48, 3, 3, 21], [-2]):
        np.testing.assert_array_equal(features.rows(rows), x[rows])
    change(url, "img_emb/img_emb_00001.npy", b"short")
    with refused("img_emb_00001.npy is truncated: copy or write it again"):
        features.rows([8])
    change(url, "img_emb/img_emb_00001.npy", None)
    with refused("img_emb_00001.npy is missing: copy or write it again"):
        features.rows([8])


@pytest.mark.parametrize("name", ["img_emb/img_emb_00001.npy", "metadata/metadata_00001.parquet"])
def test_a_shard_that_vanishes(name, url):
    x, features = on_disk(url)
    change(url, name, None)
    with refused(f"bytes; {url}/{name} is missing: copy or write it again"):
        FeatureSet.open(url)
    with refused(f"{url}/{name} is missing: copy or write it again"):
        features.verify()
    np.testing.assert_array_equal(features.rows([0]), x[[0]])
    with refused(f"{url}/{name} is missing: copy or write it again"):
        features.rows([8]), features.labels


@pytest.mark.parametrize("name", ["img_emb/img_emb_00001.npy", "metadata/metadata_00001.parquet"])
def test_a_shard_that_is_altered(name, url):
    x, features = on_disk(url)
    whole = stored(url)[name]
    change(url, name, whole[:-1] + bytes([whole[-1] ^ 1]))
    with refused(f"{url}/{name} is altered, its sha256 differs"):
        FeatureSet.open(url, verify=True)
    np.testing.assert_array_equal(features.rows([0]), x[[0]])
    with refused(f"{url}/{name} is altered, its sha256 differs"):
        features.rows([8]), features.labels
    change(url, name, whole[:-1])
    with refused(f"{len(whole)} bytes; {url}/{name} is truncated, {len(whole) - 1}"):
        FeatureSet.open(url)


def test_an_occupied_url_is_refused_and_not_touched(url):
    _, features = on_disk(url)
    before = stored(url)
    with refused(f"features are written once; {url} holds some: "):
        features.save(url)
    assert stored(url) == before
    change(url, "index.json", None)
    with refused(f"{url} is half-written: delete it first"):
        features.save(url)
    change(url, "notes.txt", b"mine")
    with refused(f"{url} holds 'notes.txt': choose another"):
        features.save(url)
    before.pop("index.json")
    assert stored(url) == {**before, "notes.txt": b"mine"}


def test_a_missing_url(url):
    with refused(f"features are a folder; {url} is not: check the path"):
        FeatureSet.open(url)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_writer_leaves_nothing(error, url):
    with pytest.raises(error), FeatureWriter(url, shape=6, shard_rows=3) as writer:  # noqa: PT012
        writer.add(arrays(rows=10)[0])
        assert len(stored(url)) >= 3
        raise error
    assert stored(url) == {}


def test_what_a_killed_writer_leaves_is_not_taken_for_features(url):
    writer = FeatureWriter(url, shape=6, shard_rows=3)
    writer.__enter__()
    writer.add(arrays(rows=10)[0])  # unlabelled: nothing else tells it from a folder of clip-retrieval
    with refused("never finished: run the same command again, or delete it"):
        FeatureSet.open(url)
    with refused(f"{url} is half-written: delete it first"), FeatureWriter(url, shape=6):
        pass
    with refused("never finished: run the same command again, or delete it"):
        FeatureSet.open(url)


def test_clip_retrieval_at_a_url(url):
    fs, root = fsspec.core.url_to_fs(url)
    for i in range(2):
        with fs.open(f"{root}/img_emb/img_emb_{i}.npy", "wb") as file:
            np.save(file, np.full((3, 2), i, np.float16))
    features = FeatureSet.open(url)
    assert features.rows(slice(None))[:, 0].tolist() == [0, 0, 0, 1, 1, 1]


def test_an_extraction_to_a_url_has_the_bytes_of_a_local_one(url, tmp_path):
    backbone = backbones.create("test_vit", "random", size=32)
    pixels = np.random.default_rng(0).integers(0, 256, (10, 40, 40, 3), dtype=np.uint8)
    images = ImageSet.from_arrays(pixels, np.arange(10) % 3)
    options = {"workers": 0, "progress": False, "shard_images": 4}
    local = extract(images, backbone, tmp_path / "f", **options)
    for _ in range(2):  # the second time it is there
        features = extract(images, backbone, url, **options)
        assert torch.equal(features.rows(slice(None)), local.rows(slice(None)))
        assert stored(url) == contents(tmp_path / "f")
