"""Feature sets: what may enter one, and what comes back from memory and from disk."""

import os
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dissensus import backbones
from dissensus.features import FeatureSet, FeatureWriter
from dissensus.images import ImageSet
from tests.features.samples import arrays, on_disk, refused


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
    assert sub._storage is features._storage, "not copied"
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
        assert bare._storage is features._storage, "not copied"
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
