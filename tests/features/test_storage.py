"""Storage: a folder is opened without being read, and rows, labels and paths are read when asked for, no more."""

import gc
import os
import shutil
import weakref

import numpy as np
import pytest
import torch

from dissensus._core import digests
from dissensus.features import FeatureSet, FeatureWriter, _metadata, _storage, featureset
from tests.features.samples import arrays, flip, on_disk, refused


@pytest.fixture
def reads(monkeypatch):
    """The files that are opened from now on, by name, in order: features and metadata."""
    names = []
    original, opened = _storage.ShardFile, _metadata.opened

    def open_shard(path, *about, **options):
        names.append(path.name)
        return original(path, *about, **options)

    def open_metadata(path, *about):
        names.append(path.name)
        return opened(path, *about)

    monkeypatch.setattr(_storage, "ShardFile", open_shard)
    monkeypatch.setattr(_metadata, "opened", open_metadata)
    return names


def features_of(*numbers):
    return [f"img_emb_{number:05}.npy" for number in numbers]


def metadata_of(*numbers):
    return [f"metadata_{number:05}.parquet" for number in numbers]


# --- reading on demand ------------------------------------------------------------------------------------


def test_opening_reads_neither_features_nor_labels(tmp_path, reads):
    on_disk(tmp_path / "f")
    reads.clear()
    features = FeatureSet.open(tmp_path / "f")
    part = features.subset([3, 20, 49])
    facts = (len(features), features.shape, features.has_labels, features.has_groups, features.nbytes)
    assert facts == (50, (6,), True, True, 50 * 6 * 4)
    assert (part.has_labels, part.has_groups, features.unlabelled().has_labels) == (True, True, False)
    assert (len(repr(features)) > 0, len(part.fingerprint), features.paths([0])) == (True, 64, None)
    assert reads == []


def test_rows_open_the_shards_that_they_are_in_once(tmp_path, reads):
    x, features = on_disk(tmp_path / "f")
    reads.clear()
    for _ in range(2):
        np.testing.assert_array_equal(features.rows([20, 3, 15, 1]), x[[20, 3, 15, 1]])
    assert reads == features_of(0, 2)


def test_consecutive_rows_are_the_same_as_any_others(tmp_path):
    x, features = on_disk(tmp_path / "f")  # in shards of 7 rows
    np.testing.assert_array_equal(features.rows(slice(3, 48)), x[3:48])
    np.testing.assert_array_equal(features.rows(slice(0, 50)), x)
    np.testing.assert_array_equal(features.rows(np.r_[0:40, 41:45]), x[np.r_[0:40, 41:45]])
    np.testing.assert_array_equal(features.subset(range(49, -1, -1)).rows(slice(0, 50)), x[::-1])


def test_ranges_that_are_announced_are_the_bytes_that_are_read(tmp_path, monkeypatch):
    x, features = on_disk(tmp_path / "f")  # in shards of 7 rows
    announced = []

    def fadvise(file, start, length, advice):
        announced.append(os.pread(file, length, start))

    monkeypatch.setattr(os, "posix_fadvise", fadvise, raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    features.expect([range(3, 20), range(49, 50)])
    assert b"".join(announced) == np.r_[x[3:20], x[49:]].tobytes()
    assert len(announced) == 4  # one per shard


def test_class_counts_are_in_the_index(tmp_path, reads):
    x = np.ones((20, 2))
    features = FeatureSet.from_arrays(x, np.arange(20) % 3, classes=list("abcd")).save(tmp_path / "f", shard_rows=6)
    reads.clear()
    assert features.class_counts.tolist() == [7, 7, 6, 0]
    assert reads == []
    assert features.subset([0, 3, 4]).class_counts.tolist() == [2, 1, 0, 0]
    assert reads == metadata_of(0)  # of a subset, from its labels
    assert features.relabelled(np.arange(20) % 2, ["e", "f"]).class_counts.tolist() == [10, 10]
    assert features.unlabelled().class_counts.tolist() == []


def test_labels_of_a_large_set_are_read_by_shard(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(featureset, "WHOLE", 10)
    _, features = on_disk(tmp_path / "f")
    y = np.arange(50) % 5
    reads.clear()
    asked = np.array([[15, 1], [-1, 20]])
    labels = features.labels_at(asked)
    assert labels.dtype == torch.int64
    np.testing.assert_array_equal(labels, y[asked])
    assert reads == metadata_of(0, 2, 7)
    part = features.subset(np.arange(49, 20, -1))
    reads.clear()
    np.testing.assert_array_equal(part.labels_at(slice(0, 2)), y[[49, 48]])
    assert reads == metadata_of(6)  # 7 is known
    np.testing.assert_array_equal(part.class_counts, np.bincount(y[21:]))
    np.testing.assert_array_equal(features.labels, y)
    reads.clear()
    np.testing.assert_array_equal(features.labels_at([7, 40]), y[[7, 40]])
    np.testing.assert_array_equal(features.relabelled(y[::-1].copy(), list("abcde")).labels_at([0, 1]), [4, 3])
    assert reads == []


def test_labels_of_a_small_set_are_read_at_once(tmp_path, reads):
    _, features = on_disk(tmp_path / "f", shard_rows=25)
    reads.clear()
    np.testing.assert_array_equal(features.labels_at([3, 1]), [3, 1])
    assert reads == metadata_of(0, 1)
    np.testing.assert_array_equal(features.labels, np.arange(50) % 5)
    assert reads == metadata_of(0, 1)


def test_labels_at_needs_labels():
    with refused("labels are needed; this set has none: give labels when making it"):
        FeatureSet.from_arrays(np.ones((3, 2))).labels_at([0])


def test_codes_of_few_shards_are_kept(tmp_path, reads, monkeypatch):
    monkeypatch.setattr(featureset, "WHOLE", 10)
    monkeypatch.setattr(_storage, "CODES", 2)
    on_disk(tmp_path / "f")
    features = FeatureSet.open(tmp_path / "f")
    reads.clear()
    for row in (0, 7, 0, 14, 7, 0):  # of shards 0, 1, 0, 2, 1, 0: two are kept
        assert features.labels_at([row]).item() == row % 5
    assert reads == metadata_of(0, 1, 2, 1, 0)


def test_no_more_shards_are_open_at_once_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(_storage, "OPEN", 3)
    original, files, most = _storage.ShardFile, weakref.WeakSet(), []

    def open_shard(*about, **options):
        files.add(file := original(*about, **options))
        most.append(len(files))
        return file

    x, _ = on_disk(tmp_path / "f")
    features = FeatureSet.open(tmp_path / "f")
    monkeypatch.setattr(_storage, "ShardFile", open_shard)
    gc.collect()  # files of other sets
    before = os.listdir("/dev/fd")
    for _ in range(2):
        np.testing.assert_array_equal(features.rows(slice(None)), x)
    gc.collect()
    assert len(most) == 16  # 8 shards in turn: none of them is still open the second time
    assert max(most) == 4  # three, and the one that replaces the oldest
    assert len(files) == len(os.listdir("/dev/fd")) - len(before) == 3


# --- verification -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True])
def test_an_altered_shard_is_noticed_at_the_next_read_of_it_and_only_there(known, tmp_path):
    x, features = on_disk(tmp_path / "f")
    if known:
        features.rows(slice(None))
    flip(tmp_path / "f" / "img_emb" / "img_emb_00003.npy")
    others = np.delete(np.arange(50), slice(21, 28))
    np.testing.assert_array_equal(features.rows(others), x[others])
    np.testing.assert_array_equal(features.labels, np.arange(50) % 5)
    for rows in (features, features.subset([25])):
        with refused(r"img_emb_00003\.npy is altered, its sha256 differs: "):
            rows.rows(slice(None))
    with digests.unverified():
        assert (features.rows(slice(None)).numpy() != x).sum() == 1


def test_altered_metadata_is_noticed_when_labels_or_paths_are_read(tmp_path):
    with FeatureWriter(tmp_path / "f", shape=2, shard_rows=4) as writer:
        writer.add(np.ones((10, 2)), np.arange(10), paths=[str(i) for i in range(10)])
    features = FeatureSet.open(tmp_path / "f")
    flip(tmp_path / "f" / "metadata" / "metadata_00002.parquet")
    assert features.rows(slice(None)).sum() == 20
    assert features.paths([0, 7]) == ["0", "7"]
    assert features.subset([0, 7]).labels.tolist() == [0, 7]
    with refused(r"metadata_00002\.parquet is altered, its sha256 differs: "):
        features.labels  # noqa: B018
    with refused(r"metadata_00002\.parquet is altered, its sha256 differs: "):
        features.paths([9])


def test_a_shard_is_verified_when_it_is_opened_and_when_its_date_changes(tmp_path, monkeypatch):
    _, features = on_disk(tmp_path / "f")
    original, hashed = digests.of_file, []

    def of_file(path):
        hashed.append(path.name)
        return original(path)

    monkeypatch.setattr(digests, "of_file", of_file)
    for _ in range(2):
        features.rows([0, 8])
    assert hashed == features_of(0, 1)
    os.utime(tmp_path / "f" / "img_emb" / "img_emb_00001.npy", (1, 1))
    for each in (features, features, FeatureSet.open(tmp_path / "f")):
        each.rows([8])
    assert hashed == features_of(0, 1, 1)  # long settled, so not for the second set
    features.verify()
    assert len(hashed) == 3 + 15


@pytest.mark.parametrize("rows", [7, 50])
def test_a_shard_that_is_truncated_between_two_reads_is_one_line(rows, tmp_path):
    """Rows of a mapped file would end the process with SIGBUS."""
    x, features = on_disk(tmp_path / "f", shard_rows=rows)
    path = tmp_path / "f" / "img_emb" / "img_emb_00000.npy"
    np.testing.assert_array_equal(features.rows([0, 5]), x[[0, 5]])
    size = path.stat().st_size
    os.truncate(path, size - 1)
    with refused(rf"{size} bytes; .*img_emb_00000\.npy is truncated, {size - 1}: copy or write it again"):
        features.rows([0, 5])


def test_a_shard_that_is_truncated_during_a_read_is_one_line(tmp_path, monkeypatch):
    _, features = on_disk(tmp_path / "f", shard_rows=50)
    features.rows([0])
    path = tmp_path / "f" / "img_emb" / "img_emb_00000.npy"
    state = _storage.State.of(path)
    monkeypatch.setattr(_storage.State, "of", lambda file: state)  # of the file before
    os.truncate(path, 400)
    for rows in ([3, 49, 7], slice(10, 40)):
        with refused(r"img_emb_00000\.npy is truncated: copy or write it again"):
            features.rows(rows)


def test_a_set_in_memory_has_nothing_to_verify():
    features = FeatureSet.from_arrays(np.ones((3, 2)))
    features.verify()
    assert features.rows([0]).tolist() == [[1, 1]]


# --- paths ------------------------------------------------------------------------------------------------


def test_paths_of_rows(tmp_path, reads):
    names = [f"klasse/ü {i}.png" for i in range(20)]
    with FeatureWriter(tmp_path / "f", shape=2, shard_rows=6) as writer:
        for start in range(0, 20, 5):
            writer.add(np.ones((5, 2)), paths=names[start : start + 5])
    features = FeatureSet.open(tmp_path / "f")
    assert features.labels is None
    reads.clear()
    assert features.paths([13, -1, 0, 13]) == [names[13], names[19], names[0], names[13]]
    assert reads == metadata_of(0, 2, 3)
    assert features.paths(slice(None)) == names
    assert features.paths(np.arange(20) % 7 == 0) == names[::7]
    assert features.paths(np.array([[1, 2], [3, 4]])) == names[1:5]
    assert features.paths(np.array(8)) == [names[8]]
    assert features.paths([]) == []
    assert features.subset([4, 9]).subset([1]).paths(slice(None)) == [names[9]]
    assert features.unlabelled().paths([3]) == [names[3]]
    with pytest.raises(IndexError):
        features.paths([20])


def test_paths_that_are_not_known(tmp_path):
    features = FeatureSet.from_arrays(arrays()[0])
    assert features.paths([0]) is None
    assert features.save(tmp_path / "f").paths([0]) is None


def test_a_copy_keeps_paths_digests_labels_and_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(featureset, "TEXTS", 7)  # so that the rows are copied in several parts
    paths, digests = [f"{i}.png" for i in range(20)], [f"{i:032x}" for i in range(20)]
    labels, x = np.arange(20) % 3, np.arange(40.0).reshape(20, 2)
    with FeatureWriter(tmp_path / "f", shape=2, shard_rows=6) as writer:
        writer.add(x, labels, labels % 2, paths=paths, digests=digests)
    features = FeatureSet.open(tmp_path / "f")
    assert features.digests([3, -1]) == [digests[3], digests[19]]
    order = np.random.default_rng(0).permutation(20)[:17]
    for chosen, rows in ((features, np.arange(20)), (features.subset(order), order)):
        copy = chosen.save(tmp_path / f"copy{len(rows)}", shard_rows=5)
        assert copy.paths(slice(None)) == [paths[i] for i in rows]
        assert copy.digests(slice(None)) == [digests[i] for i in rows]
        np.testing.assert_array_equal(copy.labels, labels[rows])
        np.testing.assert_array_equal(copy.groups, labels[rows] % 2)
        np.testing.assert_array_equal(copy.rows(slice(None)), x[rows])
    with FeatureWriter(tmp_path / "g", shape=2) as writer:
        writer.add(x, paths=paths)
        with refused("got features, paths, digests after features, paths: "):
            writer.add(x, paths=paths, digests=digests)
        with refused("every row has one of the digests; got 19 for 20 rows: "):
            writer.add(x, paths=paths, digests=digests[1:])
    assert FeatureSet.open(tmp_path / "g").save(tmp_path / "h").digests([0]) is None


def test_paths_of_metadata_that_was_exchanged(tmp_path):
    for name, count in (("f", 5), ("g", 3)):
        with FeatureWriter(tmp_path / name, shape=2) as writer:
            writer.add(np.ones((count, 2)), paths=list("abcde")[:count])
    features = FeatureSet.open(tmp_path / "f")
    metadata = "metadata/metadata_00000.parquet"
    shutil.copy(tmp_path / "g" / metadata, tmp_path / "f" / metadata)
    with refused(r"metadata_00000\.parquet is altered"):
        features.paths([0])
    with (
        digests.unverified(),
        refused(r"metadata_00000\.parquet must have 5 rows, as its features; it has 3: copy it again"),
    ):
        features.paths([0])


# --- names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["labels", "groups"])
def test_names_that_occur_twice_keep_their_numbers(kind, tmp_path):
    """ImageNet has two classes "crane" and two "maillot"."""
    names, codes = ["crane", "dog", "crane", "maillot", "maillot"], np.array([2, 0, 4, 1, 3, 2, 0])
    given = {"labels": "classes", "groups": "group_names"}
    memory = FeatureSet.from_arrays(np.ones((7, 2)), **{kind: codes, given[kind]: names})
    features = memory.save(tmp_path / "f", shard_rows=3)
    assert getattr(features, given[kind]) == tuple(names)
    np.testing.assert_array_equal(getattr(features, kind), codes)
    np.testing.assert_array_equal(getattr(features.subset([5, 2]), kind), [2, 4])
    again = features.save(tmp_path / "g")
    np.testing.assert_array_equal(getattr(again, kind), codes)
    if kind == "labels":
        assert features.class_counts.tolist() == [2, 1, 2, 1, 1]
        assert features.labels_at([3, 0]).tolist() == [1, 2]


def test_numbers_as_names_are_names(tmp_path):
    """Names such as "3" are no codes, even if other classes share a name."""
    features = FeatureSet.from_arrays(np.ones((4, 2)), [0, 1, 2, 3], classes=["3", "0", "1", "2"])
    assert features.save(tmp_path / "f").labels.tolist() == [0, 1, 2, 3]
    twice = FeatureSet.from_arrays(np.ones((4, 2)), [0, 1, 2, 3], classes=["3", "0", "3", "0: 3"])
    assert twice.save(tmp_path / "g").labels.tolist() == [0, 1, 2, 3]


def test_other_labels_than_those_stored(tmp_path):
    _, features = on_disk(tmp_path / "f")
    other = np.arange(50) % 3
    for each in (features.relabelled(other, list("abc")), features.unlabelled().relabelled(other, list("abc"))):
        assert each.has_labels
        np.testing.assert_array_equal(each.labels, other)
        np.testing.assert_array_equal(each.subset([4, 8]).labels, [1, 2])
        assert each.class_counts.tolist() == [17, 17, 16]
        assert each.classes == ("a", "b", "c")
        assert each.fingerprint != features.relabelled(other, list("abd")).fingerprint
        assert not each.unlabelled().has_labels
