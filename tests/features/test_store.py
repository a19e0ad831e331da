"""The folder: what was written comes back, other programs read it, and it is whole or not there at all."""

import errno
import hashlib
import json
import os

import numpy as np
import pandas as pd
import pytest
import torch

from dissensus.features import FeatureSet, FeatureWriter
from tests.features.samples import arrays, contents, on_disk, refused


@pytest.mark.parametrize("shard_rows", [1, 7, 50, 65536])
def test_round_trip_float32_is_exact(shard_rows, tmp_path):
    x, features = on_disk(tmp_path / "a" / "b", shape=(2, 3), shard_rows=shard_rows)
    np.testing.assert_array_equal(features.rows(slice(None)), x)
    np.testing.assert_array_equal(features.labels, np.arange(50) % 5)
    np.testing.assert_array_equal(features.groups, np.arange(50) % 2)
    assert features.shape == (2, 3)
    assert features.classes == ("0", "1", "2", "3", "4")
    assert features.group_names == ("land", "water")
    assert features.folder == tmp_path / "a" / "b"
    shards = range(-(-50 // shard_rows))
    names = [f"img_emb/img_emb_{i:05}.npy" for i in shards] + [f"metadata/metadata_{i:05}.parquet" for i in shards]
    assert sorted(contents(features.folder)) == sorted(["index.json", *names])


def test_round_trip_float16_rounds_to_nearest(tmp_path):
    x, features = on_disk(tmp_path / "f", dtype="float16")
    np.testing.assert_array_equal(features.rows(slice(None)), x.astype(np.float16).astype(np.float32))
    np.testing.assert_allclose(features.rows(slice(None)), x, rtol=2**-11, atol=1e-7)


def test_unlabelled_round_trip(tmp_path):
    features = FeatureSet.from_arrays(arrays()[0]).save(tmp_path / "f")
    assert features.labels is None
    assert features.groups is None
    assert features.classes == ()
    assert features.class_counts.tolist() == []
    assert sorted(contents(tmp_path / "f")) == ["img_emb/img_emb_00000.npy", "index.json"]
    assert not (tmp_path / "f" / "metadata").exists()


def test_other_readers_open_the_shards(tmp_path):
    """NumPy, pandas, Polars and DuckDB read the same values without us."""
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    x, y, g = arrays()
    names, kinds = ["ant", "bee", "cat", "dog", "élan"], ["land", "water"]
    with FeatureWriter(tmp_path / "f", shape=6, classes=names, group_names=kinds, shard_rows=7) as writer:
        writer.add(x, y, g, paths=[f"{i}.png" for i in range(50)])
    shards = sorted((tmp_path / "f" / "img_emb").glob("*.npy"))
    mapped = [np.load(path, mmap_mode="r", allow_pickle=False) for path in shards]
    assert all(part.dtype == np.float16 and part.flags.aligned for part in mapped)
    np.testing.assert_array_equal(np.concatenate(mapped), x.astype(np.float16))
    expected = pd.DataFrame(
        {
            "image_path": [f"{i}.png" for i in range(50)],
            "label": [names[i] for i in y],
            "group": [kinds[i] for i in g],
        }
    )
    tables = tmp_path / "f" / "metadata"
    ours = pd.concat(map(pd.read_parquet, sorted(tables.glob("*.parquet"))), ignore_index=True)
    pd.testing.assert_frame_equal(ours, expected, check_dtype=False)
    assert polars.read_parquet(tables / "*.parquet").to_dict(as_series=False) == expected.to_dict("list")
    rows = duckdb.sql(f"select * from '{tables}/*.parquet'").fetchall()
    assert sorted(rows) == sorted(expected.itertuples(index=False, name=None))
    counts = duckdb.sql(f"select label, count(*) from '{tables}/*.parquet' group by label order by label").fetchall()
    assert counts == list(zip(names, FeatureSet.open(tmp_path / "f").class_counts.tolist(), strict=True))


def test_index_says_what_is_there(tmp_path):
    on_disk(tmp_path / "f")
    index = json.loads((tmp_path / "f" / "index.json").read_text())
    assert index["format"] == "dissensus-features-4"
    assert index["written_by"].startswith("dissensus ")
    assert (index["count"], index["shape"], index["dtype"]) == (50, [6], "float32")
    assert index["columns"] == ["label", "group"]
    assert index["class_counts"] == [10] * 5
    shards = index["shards"]
    assert (shards["number"], shards["rows"]) == ([*range(8)], [7] * 7 + [1])
    for kind, prefix in (("img_emb", ""), ("metadata", "metadata_")):
        data = [path.read_bytes() for path in sorted((tmp_path / "f" / kind).iterdir())]
        assert shards[f"{prefix}bytes"] == [*map(len, data)]
        assert shards[f"{prefix}sha256"] == [hashlib.sha256(each).hexdigest() for each in data]


def test_writer_takes_batches_of_any_size(tmp_path):
    x, y, _ = arrays(rows=100)
    provenance = {"model": "vit", "crop": 0.875, "seen": [1, 2]}
    with FeatureWriter(tmp_path / "f", shape=6, dtype="float32", shard_rows=16, provenance=provenance) as writer:
        for a, b in [(0, 3), (3, 3), (3, 16), (16, 17), (17, 80), (80, 100)]:
            writer.add(torch.from_numpy(x[a:b]), y[a:b])
    assert writer.count == 100
    features = FeatureSet.open(tmp_path / "f", verify=True)
    np.testing.assert_array_equal(features.rows(slice(None)), x)
    np.testing.assert_array_equal(features.labels, y)
    assert features.classes == ("0", "1", "2", "3", "4")
    assert features.provenance == provenance
    with refused("rows are added in a `with"):
        writer.add(x, y)


def test_wide_rows_get_smaller_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("dissensus.features.writer.SHARD_BYTES", 100)
    x, features = on_disk(tmp_path / "f", shard_rows=1000)  # 24 bytes a row
    assert len(list((tmp_path / "f" / "img_emb").iterdir())) == 13
    np.testing.assert_array_equal(features.rows(slice(None)), x)


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        ((np.ones((2, 5)),), r"rows must have shape \(6,\); got \(5,\): "),
        ((np.full((2, 6), np.nan), [0, 1]), r"2 of 2 rows hold NaN or inf, the first is row 4: "),
        ((np.ones((2, 6)), [0, 7]), r"labels must lie in 0\.\.2 \(3 classes\); row 5 has 7: "),
        ((np.ones((2, 6)),), r"same columns; got features, paths after labels, features, paths: "),
        ((np.full((2, 6), -70000.0), [0, 1]), r"up to 65504; row 4 reaches 70000: use dtype='float32'"),
        ((np.ones((2, 6)), [0, 1], [0, 1]), r"got labels, groups, features, paths after labels, features, paths"),
        ((np.ones((2, 6)), [0, 1], None, ["a"]), r"every row has one of the paths; got 1 for 2 rows: "),
        ((np.ones((2, 6)), [0, 1], None, ["a", "caf\udce9"]), r"paths must be UTF-8; 'caf\\udce9' is not: rename"),
    ],
)
def test_writer_refuses_a_bad_batch_whole(batch, match, tmp_path):
    with FeatureWriter(tmp_path / "f", shape=(6,), classes=["a", "b", "c"], shard_rows=3) as writer:
        writer.add(np.zeros((4, 6)), [0, 1, 2, 0], paths=["a", "b", "c", "d"])
        features, labels, groups, paths = (*batch, None, None, None)[:4]
        with refused(match):
            writer.add(features, labels, groups, paths=["e", "f"] if paths is None else paths)
        writer.add(np.ones((1, 6)), [1], paths=["g"])
    features = FeatureSet.open(tmp_path / "f")
    assert features.rows(slice(None))[:, 0].tolist() == [0, 0, 0, 0, 1]
    assert features.labels.tolist() == [0, 1, 2, 0, 1]
    assert features.paths(slice(None)) == ["a", "b", "c", "d", "g"]


def test_float16_keeps_its_largest_value(tmp_path):
    features = FeatureSet.from_arrays(np.array([[65504.0, -65504.0], [0, 1]]))
    assert features.save(tmp_path / "f").rows([0]).tolist() == [[65504.0, -65504.0]]
    high = FeatureSet.from_arrays(np.array([[0.0, 1], [1, 65505]]))
    with refused(r"row 1 reaches 65505: use dtype='float32'"):
        high.save(tmp_path / "g")
    assert not (tmp_path / "g").exists()
    assert high.save(tmp_path / "g", dtype="float32").rows([1]).tolist() == [[1, 65505]]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "bfloat16"}, r"float16 or float32; got dtype='bfloat16': "),
        ({"shard_rows": 0}, r"at least one row; got shard_rows=0: "),
        ({"provenance": {"model": object()}}, r"provenance must be plain JSON; "),
    ],
)
def test_writer_options(options, match, tmp_path):
    with refused(match):
        FeatureWriter(tmp_path / "f", shape=6, **options)
    assert not (tmp_path / "f").exists()


# --- writing whole or not at all ------------------------------------------------------------------------


def test_a_taken_folder_is_refused_and_not_touched(tmp_path):
    _, features = on_disk(tmp_path / "f")
    before = contents(tmp_path)
    with refused(r"written once; .*f holds some: "):
        features.save(tmp_path / "f")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("notes.txt", r"holds 'notes\.txt': choose another"),
        ("metadata/notes.txt", r"holds 'metadata/notes\.txt': choose another"),
        ("img_emb/photo.png", r"holds 'img_emb/photo\.png': choose another"),
        ("img_emb/img_emb_00000.npy", "half-written: delete it first"),
        ("metadata/metadata_00000.parquet", "half-written: delete it first"),
        ("img_emb", "half-written: delete it first"),
        ("plan.json", "half-written: delete it first"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_not_touched(name, match, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with refused(match):
        on_disk(tmp_path)
    assert contents(tmp_path) == {name: b"mine"}


def test_temporary_files_of_a_killed_writer_are_removed(tmp_path):
    left = ["img_emb/.img_emb_00000.npy.0a1b2c3d.tmp", "metadata/.metadata_00000.parquet.0a1b2c3d.tmp"]
    for name in [*left, ".index.json.0a1b2c3d.tmp", "plan.lock"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("half")
    x, features = on_disk(tmp_path, shard_rows=50)
    np.testing.assert_array_equal(features.rows(slice(None)), x)
    names = ["img_emb/img_emb_00000.npy", "index.json", "metadata/metadata_00000.parquet"]
    assert sorted(contents(tmp_path)) == names


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "f").write_text("mine")
    for folder in (tmp_path / "f", tmp_path / "f" / "below"):
        with refused("features are a folder; .*f is a file: choose another|cannot write .*below: Not a directory"):
            on_disk(folder)
        with refused("features are a folder"):
            FeatureSet.open(folder)
    assert contents(tmp_path) == {"f": b"mine"}


def test_an_empty_folder_is_used(tmp_path):
    x, features = on_disk(tmp_path)
    np.testing.assert_array_equal(features.rows(slice(None)), x)


@pytest.mark.parametrize("rows", [3, 5])  # before and after the first shard
def test_two_writers_do_not_share_a_folder(rows, tmp_path):
    with FeatureWriter(tmp_path / "f", shape=2, shard_rows=4) as first:
        first.add(np.ones((rows, 2)))
        with refused("is being written by another command"), FeatureWriter(tmp_path / "f", shape=2):
            pass
    assert len(FeatureSet.open(tmp_path / "f")) == rows


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_writer_leaves_nothing(existed, error, tmp_path):
    folder = tmp_path / "a" / "f"
    if existed:
        folder.mkdir(parents=True)
    with pytest.raises(error), FeatureWriter(folder, shape=6, shard_rows=3) as writer:  # noqa: PT012
        writer.add(arrays(rows=10)[0])
        assert len(list((folder / "img_emb").glob("*.npy"))) == 3
        raise error
    assert list(tmp_path.rglob("*")) == ([folder.parent, folder] if existed else [])


def test_a_writer_without_rows_leaves_nothing(tmp_path):
    with refused("at least one row; none was added: "), FeatureWriter(tmp_path / "f", shape=6):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("good_syncs", [0, 2, 5, 32, 33])  # 2 per file (itself, its folder): 8 * 2 files, the index
def test_a_full_disk_leaves_the_folder_as_before(code, good_syncs, tmp_path, monkeypatch):
    calls, sync = [], os.fsync

    def fsync(handle):
        calls.append(handle)
        if len(calls) > good_syncs:
            raise OSError(code, os.strerror(code))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with refused(f"cannot write .*: {os.strerror(code)}; free some space or choose another folder"):
        on_disk(tmp_path / "f")
    assert len(calls) == good_syncs + 1
    assert not list(tmp_path.iterdir())


def test_a_failed_write_cannot_be_ignored(tmp_path, monkeypatch):
    def fsync(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    x = arrays(rows=10)[0]
    with refused("that has not failed"), FeatureWriter(tmp_path / "f", shape=6, shard_rows=3) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with refused("No space left on device"):
                writer.add(x)
        with refused("that has not failed"):
            writer.add(x)
    assert not list(tmp_path.iterdir())
