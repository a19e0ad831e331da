"""Features: what may enter a set, what comes back from memory and from disk, and what damage is noticed."""

import contextlib
import errno
import json
import os
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError
from dissensus.cli import main
from dissensus.features import FeatureSet, FeatureWriter
from dissensus.images import ImageSet
from dissensus.training import new_ensemble
from tests.damage import damages


def arrays(rows=50, shape=(6,), classes=5, seed=0):
    """Random features, labels in which every class occurs, and groups of two kinds."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, *shape)).astype(np.float32), np.arange(rows) % classes, np.arange(rows) % 2


def on_disk(folder, *, rows=50, shape=(6,), shard_rows=7, dtype="float32"):
    x, y, g = arrays(rows, shape)
    features = FeatureSet.from_arrays(x, y, groups=g, group_names=["land", "water"])
    return x, features.save(folder, dtype=dtype, shard_rows=shard_rows)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(match):
    """DataError whose one line matches."""
    return pytest.raises(DataError, match=rf"\A[^\n]*{match}[^\n]*\Z")


@pytest.fixture
def augmented():
    """Three passes over four samples: row 4 * p + i is sample i in pass p, and holds (i, p)."""
    x = np.array([(i, p) for p in range(3) for i in range(4)], np.float32)
    return FeatureSet.from_arrays(x, [0, 0, 1, 1] * 3, provenance={"passes": 3, "made": "by hand"})


# --- arrays in memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensor_of_any_float_dtype_gives_float32_rows(dtype):
    x = torch.arange(12).reshape(4, 3).to(dtype).requires_grad_()
    rows = FeatureSet.from_arrays(x).rows(slice(1, 3))
    assert rows.dtype == torch.float32
    assert not rows.requires_grad
    assert rows.tolist() == [[3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, ">f4", np.longdouble])
def test_other_numbers_become_float32(dtype):
    x = np.array([[0, 1], [1, 1]]).astype(dtype)
    assert FeatureSet.from_arrays(x).rows([1, 0]).tolist() == [[1, 1], [0, 1]]


def test_facts_of_a_set():
    x, y, g = arrays(rows=10, shape=(2, 3))
    features = FeatureSet.from_arrays(x, torch.from_numpy(y), groups=list(g), provenance={"model": "none"})
    assert len(features) == 10
    assert features.shape == (2, 3)
    assert features.width == 6
    assert features.labels.dtype == features.groups.dtype == torch.int64
    assert features.labels.tolist() == y.tolist()
    assert features.groups.tolist() == g.tolist()
    assert features.classes == ("0", "1", "2", "3", "4")
    assert features.group_names == ("0", "1")
    assert features.provenance == {"model": "none"}
    assert features.folder is None
    assert repr(features) == "FeatureSet(10 rows of shape (2, 3), 5 classes, 2 groups, in memory)"


@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_labels_may_be_names(kind, tmp_path):
    names = kind(["dog", "cat", "dog"])
    features = FeatureSet.from_arrays(np.ones((3, 2)), names, groups=kind(["x", "x", "w"]))
    assert (features.classes, features.labels.tolist()) == (("cat", "dog"), [1, 0, 1])
    assert (features.group_names, features.groups.tolist()) == (("w", "x"), [1, 1, 0])
    other = FeatureSet.from_arrays(np.ones((3, 2)), names, classes=["dog", "cow", "cat"])
    assert other.labels.tolist() == [0, 2, 0]
    with FeatureWriter(tmp_path / "f", shape=2, classes=["dog", "cat"]) as writer:
        writer.add(np.ones((3, 2)), names)
    assert FeatureSet.open(tmp_path / "f").labels.tolist() == [0, 1, 0]
    images = ImageSet.from_arrays(np.zeros((3, 4, 4), np.uint8), names)
    assert (images.classes, images.labels.tolist()) == (("cat", "dog"), [1, 0, 1])


def test_a_repr_says_what_the_rows_are(augmented, tmp_path):
    backbone = backbones.create("test_vit", "random", size=32)
    assert repr(augmented) == "FeatureSet(12 rows of shape (2,), 2 classes, 3 passes, in memory)"
    features = FeatureSet.from_arrays(np.ones((3, 2)), provenance={"backbone": backbone.describe()})
    expected = f"FeatureSet(3 rows of shape (2,), unlabelled, backbone test_vit, in '{tmp_path / 'f'}')"
    assert repr(features.save(tmp_path / "f")) == expected


def test_a_provenance_that_is_no_backbone_is_refused():
    with refused("provenance must be plain JSON; backbone.name: field required: correct the value"):
        FeatureSet.from_arrays(np.ones((3, 2)), provenance={"backbone": {}})


def test_names_that_no_file_can_hold_are_refused():
    with refused(r"names of classes and groups must be UTF-8; 'caf\\udce9' is not: rename it"):
        FeatureSet.from_arrays(np.ones((3, 2)), [0, 0, 0], classes=[os.fsdecode(b"caf\xe9")])


def test_class_counts_show_absent_classes():
    features = FeatureSet.from_arrays(np.ones((4, 2)), [2, 0, 2, 2], classes=["a", "b", "c"])
    assert features.class_counts.tolist() == [1, 0, 3]
    assert FeatureSet.from_arrays(np.ones((4, 2))).class_counts.tolist() == []


def test_unlabelled_set_has_no_labels():
    features = FeatureSet.from_arrays(np.ones((3, 2)))
    assert features.labels is None
    assert features.groups is None
    assert features.classes == ()
    assert "unlabelled" in repr(features)


def test_labels_are_copied():
    y = np.array([0, 1])
    features = FeatureSet.from_arrays(np.ones((2, 2)), y)
    y[:] = 9
    assert features.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.ones(3), r"features must be \(N, \.\.\.\); got \(3,\): .*features\[None\]"),
        (np.ones((0, 4)), r"at least one row; got \(0, 4\): "),
        (np.ones((4, 0)), r"at least one value per row; got \(4, 0\): "),
        (np.array([["a"]]), r"real numbers; got <U1: "),
        (np.array([[1j]]), r"real numbers; got complex128: "),
        (np.array([[1e300]]), r"finite in float32; 1 of 1 rows .* row 0: "),
    ],
)
def test_bad_features_are_refused(x, match):
    with refused(match):
        FeatureSet.from_arrays(x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_not_finite_rows_are_counted_and_the_first_is_named(bad, dtype):
    x = np.zeros((3000, 2000), dtype)  # more values than are checked at once
    x[2500, 3] = x[2500, 4] = x[2999, 1999] = bad
    with refused(r"2 of 3000 rows hold NaN or inf, the first is row 2500: "):
        FeatureSet.from_arrays(x)


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([0, 1], r"labels must be \(3,\), one per row; got \(2,\): "),
        ([[0], [1], [2]], r"labels must be \(3,\), one per row; got \(3, 1\): "),
        ([0.0, 1.0, 2.0], r"labels must be integers or names; got float64: "),
        (["cat", "dog", "cow"], r"labels must be among the 2 classes given; row 2 has 'cow': "),
        (["cat", None, "dog"], r"labels must be integers or names; got object: "),
        ([0, 1, 2], r"labels must lie in 0\.\.1 \(2 classes\); row 2 has 2: "),
        ([0, -1, 1], r"labels must lie in 0\.\.1 \(2 classes\); row 1 has -1: "),
    ],
)
def test_bad_labels_are_refused(labels, match):
    with refused(match):
        FeatureSet.from_arrays(np.ones((3, 2)), labels, classes=["cat", "dog"])


def test_a_stray_label_does_not_make_a_billion_classes():
    with refused(r"row 1 has 1000000000: "):
        FeatureSet.from_arrays(np.ones((2, 2)), [0, 10**9])


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ([0, 1], r"groups must be \(3,\), one per row; got \(2,\): "),
        ([0, 1, 2], r"\(2 groups\); row 2 has 2: "),
    ],
)
def test_bad_groups_are_refused(groups, match):
    with refused(match):
        FeatureSet.from_arrays(np.ones((3, 2)), groups=groups, group_names=["land", "water"])


# --- rows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["plain", "strided", "reversed", "read-only"])
def test_arrays_of_any_layout(layout, tmp_path):
    whole = arrays(rows=40)[0]
    x = {"plain": whole, "strided": whole[::2, ::3], "reversed": whole[::-1]}.get(layout, whole.copy())
    x.flags.writeable = layout != "read-only"
    features = FeatureSet.from_arrays(x)
    np.testing.assert_array_equal(features.rows([3, 1]), x[[3, 1]])
    np.testing.assert_array_equal(features.save(tmp_path / "f", dtype="float32").rows(slice(None)), x)


def test_rows_are_a_copy():
    x = np.ones((4, 2), np.float32)
    FeatureSet.from_arrays(x).rows(slice(None)).zero_()
    assert x.min() == 1


@pytest.mark.parametrize("stored", ["memory", "one shard", "shards"])
def test_every_kind_of_index(stored, tmp_path):
    x, features = on_disk(tmp_path / "f", shape=(2, 3), shard_rows=7 if stored == "shards" else 100)
    if stored == "memory":
        features = FeatureSet.from_arrays(x)
    two_d = np.array([[49, 0, 7], [6, 7, 7]])
    mask = np.arange(50) % 3 == 1
    for index in (
        slice(5, 30),
        slice(None, None, -3),
        two_d,
        mask,
        np.array([-1, 6, -50]),
        np.array(9),
        [],
        [8],
    ):
        expected = x[np.asarray(index, dtype=int) if isinstance(index, list) else index]
        asked = [index] if isinstance(index, slice | list) else [index, torch.from_numpy(index)]
        for one in asked:
            rows = features.rows(one)
            assert rows.dtype == torch.float32
            assert rows.shape == expected.shape
            np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("index", [[50], [-51], [0, 1000]])
def test_rows_out_of_range(index, tmp_path):
    _, features = on_disk(tmp_path / "f")
    with pytest.raises(IndexError, match=r"rows must lie in 0\.\.49"):
        features.rows(index)


@pytest.mark.parametrize("index", [[0.5], np.ones(49, bool)])
def test_rows_by_neither_integer_nor_mask(index):
    with refused(r"integers or a mask \(50,\)"):
        FeatureSet.from_arrays(arrays()[0]).rows(index)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.integers(1, 40), shard_rows=st.integers(1, 41))
def test_rows_across_shards_are_those_of_the_array(data, rows, shard_rows, tmp_path_factory):
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    folder = tmp_path_factory.mktemp("any") / "f"
    features = FeatureSet.from_arrays(x).save(folder, dtype="float32", shard_rows=shard_rows)
    shapes = hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=12)
    index = data.draw(hnp.arrays(np.int64, shapes, elements=st.integers(-rows, rows - 1)))
    np.testing.assert_array_equal(features.rows(index), x[index])
    shutil.rmtree(folder)


@pytest.mark.parametrize("batch_size", [1, 7, 20, 1000])
def test_batches_go_through_all_rows_in_order(batch_size, tmp_path):
    x, features = on_disk(tmp_path / "f")
    seen = list(features.batches(batch_size))
    assert all(len(rows) == at.stop - at.start <= batch_size for rows, at in seen)
    np.testing.assert_array_equal(torch.cat([rows for rows, _ in seen]), x)
    np.testing.assert_array_equal(np.concatenate([np.arange(50)[at] for _, at in seen]), np.arange(50))
    with refused("at least one row; got batch_size=0"):
        next(features.batches(0))


# --- subsets and splits ---------------------------------------------------------------------------------


def test_subset_of_a_subset(tmp_path):
    x, features = on_disk(tmp_path / "f")
    index, inner = np.array([40, 3, 3, 21, 8]), torch.tensor([4, 0, 1])
    sub = features.subset(index).subset(inner)
    places = index[inner]
    assert len(sub) == 3
    np.testing.assert_array_equal(sub.rows(slice(None)), x[places])
    np.testing.assert_array_equal(sub.rows([[2, -3]]), x[places[[[2, 0]]]])
    np.testing.assert_array_equal(sub.labels, places % 5)
    np.testing.assert_array_equal(sub.groups, places % 2)
    assert sub.classes == features.classes
    assert sub.group_names == ("land", "water")
    assert sub.folder == features.folder
    assert sub.fingerprint == features.subset(places).fingerprint
    assert all(a is b for a, b in zip(sub._parts, features._parts, strict=True))
    with pytest.raises(IndexError):
        sub.rows([3])


@pytest.mark.parametrize("index", [[], np.zeros((2, 2), int), np.zeros(50, bool)])
def test_subset_needs_a_list_of_rows(index):
    with refused("a subset needs a list of at least one row"):
        FeatureSet.from_arrays(arrays()[0]).subset(index)


def test_saved_subset_stands_alone(tmp_path):
    x, features = on_disk(tmp_path / "f")
    saved = features.subset([9, 2, 33]).save(tmp_path / "g", dtype="float32")
    np.testing.assert_array_equal(saved.rows(slice(None)), x[[9, 2, 33]])
    assert saved.labels.tolist() == [4, 2, 3]


def test_split_is_stratified_disjoint_and_repeatable():
    x = np.arange(100, dtype=np.float32)[:, None]
    features = FeatureSet.from_arrays(x, np.repeat([0, 1], [80, 20]))
    rest, held_out = features.split(0.25, seed=3)
    assert rest.class_counts.tolist() == [60, 15]
    assert held_out.class_counts.tolist() == [20, 5]
    rows = torch.cat([rest.rows(slice(None)), held_out.rows(slice(None))]).flatten()
    assert sorted(rows.tolist()) == list(range(100))
    assert held_out.fingerprint == features.split(0.25, seed=3)[1].fingerprint
    assert held_out.fingerprint != features.split(0.25, seed=4)[1].fingerprint


def test_split_of_an_unlabelled_set():
    rest, held_out = FeatureSet.from_arrays(arrays()[0]).split(0.1, seed=0)
    assert (len(rest), len(held_out)) == (45, 5)
    assert held_out.labels is None


@pytest.mark.parametrize(
    ("labels", "fraction", "match"),
    [
        ([0, 0, 0, 1], 0.5, r"2 rows of every class; class 'dog' has 1: "),
        (
            [0, 0, 1, 1],
            0.1,
            r"both sides of a split need a row of every class; got 0\.1 of 4 rows in 2 classes: ",
        ),
        ([0, 0, 1, 1], 1.0, r"between 0 and 1; got 1\.0: "),
    ],
)
def test_impossible_splits(labels, fraction, match):
    features = FeatureSet.from_arrays(np.ones((4, 2)), labels, classes=["cat", "dog"])
    with refused(match):
        features.split(fraction, seed=0)


# --- the folder -----------------------------------------------------------------------------------------


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
    assert len(list(features.folder.glob("*.safetensors"))) == -(-50 // shard_rows)
    assert {path.suffix for path in features.folder.iterdir()} == {".json", ".safetensors"}


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


def test_other_readers_open_the_shards(tmp_path):
    x, features = on_disk(tmp_path / "f", dtype="float16")
    shard = safetensors.numpy.load_file(tmp_path / "f" / "shard-00001.safetensors")
    assert {name: array.dtype.name for name, array in shard.items()} == {
        "features": "float16",
        "labels": "int64",
        "groups": "int64",
    }
    np.testing.assert_array_equal(shard["features"], x[7:14].astype(np.float16))
    np.testing.assert_array_equal(shard["labels"], np.arange(7, 14) % 5)
    assert all(part.flags.aligned for part in features._parts)


def test_index_says_what_is_there(tmp_path):
    on_disk(tmp_path / "f")
    index = json.loads((tmp_path / "f" / "index.json").read_text())
    assert index["format"] == "dissensus-features-2"
    assert index["written_by"].startswith("dissensus ")
    assert (index["count"], index["shape"], index["dtype"]) == (50, [6], "float32")
    assert [shard["rows"] for shard in index["shards"]] == [7] * 7 + [1]
    assert all(
        (tmp_path / "f" / shard["file"]).stat().st_size == shard["bytes"] and len(shard["sha256"]) == 64
        for shard in index["shards"]
    )


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
    assert len(features._parts) == 13
    np.testing.assert_array_equal(features.rows(slice(None)), x)


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        ((np.ones((2, 5)),), r"rows must have shape \(6,\); got \(5,\): "),
        ((np.full((2, 6), np.nan), [0, 1]), r"2 of 2 rows hold NaN or inf, the first is row 4: "),
        ((np.ones((2, 6)), [0, 7]), r"labels must lie in 0\.\.2 \(3 classes\); row 5 has 7: "),
        ((np.ones((2, 6)),), r"same columns; got features after labels, features: "),
        ((np.full((2, 6), -70000.0), [0, 1]), r"up to 65504; row 4 reaches 70000: use dtype='float32'"),
    ],
)
def test_writer_refuses_a_bad_batch_whole(batch, match, tmp_path):
    with FeatureWriter(tmp_path / "f", shape=(6,), classes=["a", "b", "c"], shard_rows=3) as writer:
        writer.add(np.zeros((4, 6)), [0, 1, 2, 0])
        with refused(match):
            writer.add(*batch)
        writer.add(np.ones((1, 6)), [1])
    features = FeatureSet.open(tmp_path / "f")
    assert features.rows(slice(None))[:, 0].tolist() == [0, 0, 0, 0, 1]
    assert features.labels.tolist() == [0, 1, 2, 0, 1]


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
        ("shard-00000.safetensors", "half-written: delete it first"),
        ("plan.json", "half-written: delete it first"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_not_touched(name, match, tmp_path):
    (tmp_path / name).write_text("mine")
    with refused(match):
        on_disk(tmp_path)
    assert contents(tmp_path) == {name: b"mine"}


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
        assert len(list(folder.glob("*.safetensors"))) == 3
        raise error
    assert list(tmp_path.rglob("*")) == ([folder.parent, folder] if existed else [])


def test_a_writer_without_rows_leaves_nothing(tmp_path):
    with refused("at least one row; none was added: "), FeatureWriter(tmp_path / "f", shape=6):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("good_syncs", [0, 3, 16, 17])  # 2 a file (itself, its folder): 8 shards, then the index
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


# --- damage ---------------------------------------------------------------------------------------------


def test_missing_and_other_folders(tmp_path):
    with refused(r"features are a folder; .*nowhere is not: check the path"):
        FeatureSet.open(tmp_path / "nowhere")
    with refused(r"holds index\.json; .* does not: check the path"):
        FeatureSet.open(tmp_path)


@pytest.mark.parametrize("text", ['{"format": "other"}', "[1]", "{}", '{"format": "dissens', "\x00", "3"])
def test_an_index_of_something_else(text, tmp_path):
    (tmp_path / "index.json").write_text(text)
    with refused(r"index\.json is damaged or of another version, "):
        FeatureSet.open(tmp_path)


def test_an_unfinished_folder_is_not_opened(tmp_path):
    on_disk(tmp_path / "f")
    (tmp_path / "f" / "index.json").unlink()
    with refused("never finished: run the same command again, or delete it"):
        FeatureSet.open(tmp_path / "f")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "dissensus-features-1"}, r"format: input should be 'dissensus-features-2', got 'dissensus-fea"),
        ({"count": 49}, "count must be the sum of the rows"),
        ({"shards": []}, "shards: tuple should have at least 1 item"),
        ({"shards": [{"file": "shard-00000.safetensors", "rows": 50, "bytes": "9", "sha256": "0" * 64}]}, "0.bytes: "),
        ({"columns": ["labels"]}, "columns must end with features"),
        ({"columns": ["features", "labels"]}, "columns must end with features"),
        ({"shards": [{}]}, "shards.0.file: field required"),
        ({"shards": None}, "shards: input should be a valid"),
        ({"surprise": 1}, "surprise: extra inputs are not permitted"),
        ({"provenance": {"passes": 3}}, "provenance.passes must divide count"),
        ({"shape": [3, 2]}, r"shard-00000\.safetensors must hold what index\.json says"),
        ({"dtype": "float16"}, r"shard-00000\.safetensors must hold what index\.json says"),
        ({"dtype": "float64"}, "dtype: input should be 'float16' or 'float32', got 'float64'"),
        ({"classes": ["a", "b"]}, r"shard-00000\.safetensors must .*, labels must lie in 0\.\.1 and reach from 0 to 4"),
    ],
)
def test_a_changed_index(change, match, tmp_path):
    on_disk(tmp_path)
    path = tmp_path / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refused(match):
        FeatureSet.open(tmp_path)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A folder whose provenance names a backbone, and its index."""
    backbone = backbones.create("test_vit", "random", size=32)
    x, y, g = arrays(rows=20, shape=backbone.shape, classes=2)
    provenance = {"backbone": backbone.describe(), "images": "a" * 64, "engine": "eager", "passes": 2, "bad": 0}
    folder = tmp_path_factory.mktemp("indexed") / "f"
    FeatureSet.from_arrays(x, y, groups=g, provenance=provenance).save(folder, shard_rows=10)
    return folder, json.loads((folder / "index.json").read_text())


HARMLESS = {  # another text where any will do; an origin that is not known; a norm, which a backbone has none of
    "unknown": ("written_by", "s.0", "name", "weights", "interpolation", "engine", "images", "norm"),
    "removed": ("provenance.backbone", "images", "engine", "passes", "bad", "hidden", "gamma", "eps", "norm"),
    "null": ("provenance.backbone", "tail", "images", "hidden"),
    "number": ("gamma",),
    "huge": ("tail.features", "tail.classes", "tail.hidden"),
}


def test_every_damage_of_the_index_is_one_line_that_names_file_and_field(indexed, capsys, tmp_path):
    folder, index = indexed
    for field, kind, text in damages(index):
        (folder / "index.json").write_text(text)
        if field.endswith(HARMLESS.get(kind, ("none",))):
            with contextlib.suppress(DissensusError):  # of a tail that cannot be
                new_ensemble(FeatureSet.open(folder), 2)
            continue
        with refused(f"{folder / 'index.json'} is damaged or of another version, ") as caught:
            FeatureSet.open(folder)
        line = str(caught.value)
        assert len(line) < 600, (field, kind)
        if kind == "removed" and "." not in field:
            with pytest.raises(SystemExit, match="2"):
                main(["train", str(folder), "--out", str(tmp_path / "run")])
            assert capsys.readouterr().err == f"dissensus: error: {line}\n"
        named = {field.partition(".")[0], "columns" if field.startswith("columns") else field.rpartition(".")[2]}
        assert kind in ("deep", "extra", "cut", "list") or any(name in line for name in named), (field, kind, line)
    (folder / "index.json").write_text(json.dumps(index))
    FeatureSet.open(folder, verify=True)


def test_an_index_does_not_lead_out_of_its_folder(tmp_path):
    on_disk(tmp_path / "f", shard_rows=50)
    shutil.move(tmp_path / "f" / "shard-00000.safetensors", tmp_path / "x")
    path = tmp_path / "f" / "index.json"
    path.write_text(path.read_text().replace("shard-00000.safetensors", "../x"))
    with refused(r"shards\.0\.file: string should match pattern"):
        FeatureSet.open(tmp_path / "f")


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_shard_of_another_size_is_named(damage, tmp_path):
    on_disk(tmp_path)
    shard = tmp_path / "shard-00003.safetensors"
    whole = shard.read_bytes()
    shard.unlink()
    if damage != "missing":
        shard.write_bytes(whole[:-1] if damage == "truncated" else whole + b"x")
    with refused(rf"{len(whole)} bytes; .*shard-00003\.safetensors is {damage}"):
        FeatureSet.open(tmp_path)


def test_a_flipped_byte_is_found_by_verify(tmp_path, capsys):
    _, features = on_disk(tmp_path)
    features.verify()
    shard = tmp_path / "shard-00005.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    FeatureSet.open(tmp_path)
    with refused(r"shard-00005\.safetensors is altered, its sha256 differs: "):
        FeatureSet.open(tmp_path, verify=True)
    with refused(r"shard-00005\.safetensors is altered"):
        features.subset([0]).verify()
    assert capsys.readouterr().err == ""
    with refused(r"shard-00005\.safetensors is altered"):
        features.verify(progress=True)
    assert "verify" in capsys.readouterr().err


@pytest.mark.parametrize("head", [b"\xff" * 8, b"\x00" * 8])
def test_a_garbled_header_is_named(head, tmp_path):
    on_disk(tmp_path)
    with open(tmp_path / "shard-00002.safetensors", "r+b") as file:
        file.write(head)
    with refused(r"shard-00002\.safetensors must hold what index\.json says; it is altered"):
        FeatureSet.open(tmp_path)


# --- fingerprints, pickles, memory ----------------------------------------------------------------------


@pytest.mark.parametrize("disk", [True, False])
def test_fingerprint_changes_with_any_part_of_the_set(disk, tmp_path):
    x, y, g = arrays()
    other_x, other_y, other_g = x.copy(), y.copy(), g.copy()
    other_x[30, 2] += 0.5
    other_y[7] = 0
    other_g[7] = 0
    names = {"classes": list("abcde"), "group_names": ["land", "water"]}
    sets = [
        FeatureSet.from_arrays(x, y, groups=g, **names),
        FeatureSet.from_arrays(other_x, y, groups=g, **names),
        FeatureSet.from_arrays(x, other_y, groups=g, **names),
        FeatureSet.from_arrays(x, y, groups=other_g, **names),
        FeatureSet.from_arrays(x, y, groups=g, **names | {"classes": list("abcdf")}),
        FeatureSet.from_arrays(x, y, **names),
        FeatureSet.from_arrays(x[::-1], y[::-1], groups=g[::-1], **names),
        FeatureSet.from_arrays(x.reshape(50, 2, 3), y, groups=g, **names),
    ]
    again = FeatureSet.from_arrays(x.copy(), y, groups=g, **names)
    if disk:
        sets = [features.save(tmp_path / str(i)) for i, features in enumerate(sets)]
        again = again.save(tmp_path / "again")
    prints = [features.fingerprint for features in sets]
    prints += [sets[0].subset(index).fingerprint for index in ([1, 2], [2, 1], [1, 2, 3])]
    assert len(set(prints)) == len(prints)
    assert all(len(one) == 64 for one in prints)
    assert again.fingerprint == prints[0]


def test_a_pickle_of_a_folder_carries_no_features(tmp_path):
    x, features = on_disk(tmp_path / "f", rows=2000, shape=(50,), shard_rows=900)
    for one in (features, features.subset(np.arange(1500, 100, -1))):
        data = pickle.dumps(one)
        assert len(data) < 20_000 < x.nbytes
        twin = pickle.loads(data)
        assert torch.equal(twin.rows(slice(None)), one.rows(slice(None)))
        assert torch.equal(twin.labels, one.labels)
        assert twin.fingerprint == one.fingerprint
    memory = FeatureSet.from_arrays(x)
    assert torch.equal(pickle.loads(pickle.dumps(memory)).rows([3, 1]), memory.rows([3, 1]))


def anonymous_memory():
    """Bytes of this process that are not a cached part of a file."""
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon"))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc to measure memory")
def test_memory_does_not_grow_with_the_set(tmp_path):
    rows, width = 200_000, 512  # 205 MB in float16
    block = torch.randn(2000, width, generator=torch.Generator().manual_seed(0))
    with FeatureWriter(tmp_path / "f", shape=width, shard_rows=16384) as writer:
        for start in range(0, rows, len(block)):
            writer.add(block, torch.arange(start, start + len(block)) % 10)
    del writer
    before = anonymous_memory()
    features = FeatureSet.open(tmp_path / "f")
    peak, total = anonymous_memory(), 0
    for x, _ in features.batches(2000):
        total += len(x)
        peak = max(peak, anonymous_memory())
    for x, _ in features.subset(torch.randperm(rows)[:50_000]).batches(1000):
        total += len(x)
        peak = max(peak, anonymous_memory())
    assert total == 250_000
    assert peak - before < 40e6


# --- passes ---------------------------------------------------------------------------------------------


def test_passes_come_from_the_provenance(augmented, tmp_path):
    assert augmented.passes == 3
    assert augmented.save(tmp_path / "f", shard_rows=5).passes == 3
    assert FeatureSet.from_arrays(np.ones((4, 2))).passes == 1
    assert FeatureSet.from_arrays(np.ones((4, 2))).save(tmp_path / "g").passes == 1


@pytest.mark.parametrize("passes", [0, -1, 5, 1.5, "2", None])
def test_passes_must_part_the_rows_evenly(passes, augmented):
    with refused("passes must divide the number of rows; got .* of 12 rows: "):
        FeatureSet.from_arrays(np.ones((12, 2)), provenance={"passes": passes})
    if isinstance(passes, int):
        with refused("passes must divide the number of rows"):
            augmented.subset(slice(None), passes=passes)


@pytest.mark.parametrize("stored", [False, True])
def test_split_keeps_the_passes_of_a_sample_together(stored, augmented, tmp_path):
    features = augmented.save(tmp_path / "f", shard_rows=5) if stored else augmented
    for seed in range(5):
        parts = features.split(0.5, seed)
        samples = []
        for part in parts:
            assert part.passes == 3
            x = part.rows(slice(None)).view(3, 2, 2)
            assert (x[..., 1] == torch.arange(3)[:, None]).all()  # one whole pass after the other,
            assert (x[..., 0] == x[0, :, 0]).all()  # of the same samples in the same order
            assert part.labels.view(3, 2).tolist() == [[0, 1]] * 3
            samples.append({*x[0, :, 0].tolist()})
        assert samples[0] | samples[1] == {0, 1, 2, 3}
        assert not samples[0] & samples[1]
        assert torch.equal(features.split(0.5, seed)[0].rows(slice(None)), parts[0].rows(slice(None)))


def test_split_of_passes_counts_samples_not_rows():
    features = FeatureSet.from_arrays(np.ones((9, 2)), [0, 0, 1] * 3, classes=["a", "b"], provenance={"passes": 3})
    with refused("a split needs 2 rows of every class; class 'b' has 1: "):
        features.split(0.5, 0)


def test_a_subset_has_one_pass_by_default(augmented, tmp_path):
    part = augmented.subset([0, 1, 2, 5])
    assert part.passes == 1
    two = augmented.subset([0, 2, 4, 6], passes=2)
    assert two.passes == 2
    assert two.subset([0, 2], passes=2).passes == 2
    saved = part.save(tmp_path / "one")  # not by what its provenance says of the whole
    assert (saved.passes, saved.provenance) == (1, {"passes": 1, "made": "by hand"})
    assert two.save(tmp_path / "two").passes == 2


def test_unlabelled_is_a_view_without_labels_and_groups(tmp_path):
    memory = FeatureSet.from_arrays(
        arrays()[0], np.arange(len(arrays()[0])) % 3, groups=np.arange(len(arrays()[0])) % 2
    )
    for features in (memory, memory.save(tmp_path / "f"), memory.subset([4, 1, 2]), memory.unlabelled()):
        bare = features.unlabelled()
        assert (bare.labels, bare.groups, bare.classes, bare.group_names) == (None, None, (), ())
        assert torch.equal(bare.rows(slice(None)), features.rows(slice(None)))
        assert bare._parts is features._parts, "not copied"
        twin = pickle.loads(pickle.dumps(bare))
        assert (twin.labels, twin.fingerprint) == (None, bare.fingerprint)
        assert bare.unlabelled() is bare
        assert bare.subset([1, 0]).labels is None
    assert memory.unlabelled().fingerprint == FeatureSet.from_arrays(arrays()[0]).fingerprint


@pytest.mark.parametrize("stored", [False, True])
def test_pickles_keep_passes(stored, augmented, tmp_path):
    features = augmented.save(tmp_path / "f") if stored else augmented
    for each in (features, features.subset([0, 2, 4, 6], passes=2), features.split(0.5, 0)[0], features.subset([1])):
        again = pickle.loads(pickle.dumps(each))
        assert again.passes == each.passes
        assert again.fingerprint == each.fingerprint
        assert torch.equal(again.rows(slice(None)), each.rows(slice(None)))


def test_fingerprint_changes_with_passes(augmented, tmp_path):
    x, y = augmented.rows(slice(None)), augmented.labels
    prints = {FeatureSet.from_arrays(x, y, provenance={"passes": passes}).fingerprint for passes in (1, 2, 3)}
    assert len(prints) == 3
    assert augmented.subset([0, 2, 4, 6]).fingerprint != augmented.subset([0, 2, 4, 6], passes=2).fingerprint
    assert augmented.save(tmp_path / "f").fingerprint == FeatureSet.open(tmp_path / "f").fingerprint
