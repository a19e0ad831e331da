"""Folders that clip-retrieval wrote: img_emb/*.npy and metadata/*.parquet without an index."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from dissensus.features import FeatureSet
from tests.features.samples import refused

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
TEXT = ["dog", "cat", "élan", "dog", "cat", "cat", "dog", "dog", "dog", "cat", "dog", "cat"]
SIZES = (5, 0, 4, 3)  # rows of each shard; clip-retrieval writes empty ones too


def clip_folder(folder, columns=None, *, digits=1, dtype=np.float16, x=X):
    """Write `x` as clip-retrieval does, with these columns of metadata; none without metadata."""
    start = 0
    for i, size in enumerate(SIZES):
        for name in ("img_emb", "metadata") if columns is not None else ("img_emb",):
            (folder / name).mkdir(parents=True, exist_ok=True)
        number = f"{i:0{digits}}"
        np.save(folder / "img_emb" / f"img_emb_{number}.npy", x[start : start + size].astype(dtype))
        if columns is not None:
            table = pd.DataFrame({name: values[start : start + size] for name, values in columns.items()})
            if not size:
                table = table.astype(pd.DataFrame(columns).dtypes)
            table.to_parquet(folder / "metadata" / f"metadata_{number}.parquet")
        start += size
    return folder


@pytest.mark.parametrize("digits", [1, 4])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_features_with_labels_in_text(digits, dtype, tmp_path):
    columns = {"image_path": [f"{i}.jpg" for i in range(12)], "caption": ["x"] * 12, "label": TEXT}
    features = FeatureSet.open(clip_folder(tmp_path, columns, digits=digits, dtype=dtype))
    assert (len(features), features.shape, features.nbytes) == (12, (4,), 12 * 4 * np.dtype(dtype).itemsize)
    np.testing.assert_array_equal(features.rows(slice(None)), X.astype(dtype).astype(np.float32))
    assert features.classes == ("cat", "dog", "élan")
    assert [features.classes[i] for i in features.labels] == TEXT
    assert features.class_counts.tolist() == [5, 6, 1]
    assert (features.groups, features.group_names, features.provenance, features.passes) == (None, (), {}, 1)
    np.testing.assert_array_equal(features.rows([11, 0, 5]), features.rows(slice(None))[[11, 0, 5]])
    assert features.subset([11, 0]).labels.tolist() == [0, 1]
    features.verify()  # nothing was recorded
    assert len(features.save(tmp_path / "ours").labels) == 12


def test_shards_are_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "img_emb").mkdir()
    for i in range(12):
        np.save(tmp_path / "img_emb" / f"img_emb_{i}.npy", np.full((1, 2), i, np.float32))
    assert FeatureSet.open(tmp_path).rows(slice(None))[:, 0].tolist() == [*range(12)]


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16])
def test_numbers_as_labels_are_names_in_numerical_order(kind, tmp_path):
    labels = np.array([10, 9, 2, 10, 9, 2, 2, 2, 9, 10, 100, 2]).astype(kind)
    features = FeatureSet.open(clip_folder(tmp_path, {"label": labels}))
    assert features.classes == ("2", "9", "10", "100")
    assert [int(features.classes[i]) for i in features.labels] == labels.tolist()
    assert features.class_counts.tolist() == [5, 3, 3, 1]


@pytest.mark.parametrize("column", ["label", "class", "cls"])
def test_columns_that_are_taken_for_labels(column, tmp_path):
    assert FeatureSet.open(clip_folder(tmp_path, {"url": TEXT, column: TEXT})).classes == ("cat", "dog", "élan")


def test_another_column_of_labels(tmp_path):
    clip_folder(tmp_path, {"caption": ["a", "b"] * 6, "label": TEXT, "score": np.ones(12)})
    assert FeatureSet.open(tmp_path).classes == ("cat", "dog", "élan")
    features = FeatureSet.open(tmp_path, label_column="caption")
    assert (features.classes, features.labels.tolist()) == (("a", "b"), [0, 1] * 6)
    assert features.fingerprint != FeatureSet.open(tmp_path).fingerprint
    with refused(r"has no column 'captions': choose label_column among caption, label, score"):
        FeatureSet.open(tmp_path, label_column="captions")
    with refused(r"a score must be text or a whole number; .*metadata_0\.parquet has double: convert the column"):
        FeatureSet.open(tmp_path, label_column="score")


def test_folders_without_labels_or_metadata(tmp_path):
    clip_folder(tmp_path / "captions", {"caption": TEXT})
    clip_folder(tmp_path / "bare")
    for folder in (tmp_path / "captions", tmp_path / "bare"):
        features = FeatureSet.open(folder)
        assert (features.labels, features.classes, features.has_labels, len(features)) == (None, (), False, 12)
        assert features.paths([0]) is None
        assert features.class_counts.tolist() == []
    with refused(r"label_column is a column of metadata/\*\.parquet; .*bare has none: leave it out"):
        FeatureSet.open(tmp_path / "bare", label_column="label")


def test_a_label_column_is_for_folders_without_an_index(tmp_path):
    FeatureSet.from_arrays(X, TEXT).save(tmp_path / "f")
    with refused(r"label_column is for folders without index\.json; .* has one"):
        FeatureSet.open(tmp_path / "f", label_column="label")


def test_metadata_that_polars_wrote(tmp_path):
    polars = pytest.importorskip("polars")
    clip_folder(tmp_path, {"label": TEXT})
    kinds = [polars.String, polars.Categorical, polars.String, polars.Enum(["cat", "dog", "élan"])]
    for path, kind in zip(sorted((tmp_path / "metadata").iterdir()), kinds, strict=True):
        polars.read_parquet(path).with_columns(polars.col("label").cast(polars.String).cast(kind)).write_parquet(path)
    features = FeatureSet.open(tmp_path)
    assert [features.classes[i] for i in features.labels] == TEXT


def test_pickles_open_the_folder_again(tmp_path):
    clip_folder(tmp_path, {"caption": ["a", "b"] * 6, "label": TEXT})
    whole = FeatureSet.open(tmp_path, label_column="caption")
    other = whole.relabelled(np.arange(12) % 3, ["x", "y", "z"])
    for features in (whole, whole.subset([7, 2]), whole.unlabelled(), other, other.subset([4, 2])):
        data = pickle.dumps(features)
        assert X.astype(np.float16)[7].tobytes() not in data
        twin = pickle.loads(data)
        assert torch.equal(twin.rows(slice(None)), features.rows(slice(None)))
        assert (twin.classes, twin.fingerprint) == (features.classes, features.fingerprint)
        assert twin.has_labels == features.has_labels
        assert not features.has_labels or torch.equal(twin.labels, features.labels)


def test_fingerprints_differ_where_values_or_labels_do(tmp_path):
    prints, changed = [], X.copy()
    changed[2, 1] += 1
    other = ["cat", *TEXT[1:]]
    for i, (x, labels) in enumerate([(X, TEXT), (changed, TEXT), (X, other), (X[::-1], TEXT)]):
        prints.append(FeatureSet.open(clip_folder(tmp_path / str(i), {"label": labels}, x=x)).fingerprint)
    assert len(set(prints)) == 4
    assert FeatureSet.open(clip_folder(tmp_path / "again", {"label": TEXT})).fingerprint == prints[0]


# --- damage -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gone", "match"),
    [
        ("metadata/metadata_2.parquet", "number 2 of .* is in img_emb but not in metadata: copy the folder again"),
        ("img_emb/img_emb_2.npy", "number 2 of .* is in metadata but not in img_emb: copy the folder again"),
    ],
)
def test_a_missing_file_is_named(gone, match, tmp_path):
    (clip_folder(tmp_path, {"label": TEXT}) / gone).unlink()
    with refused(f"every shard has features and metadata; {match}"):
        FeatureSet.open(tmp_path)


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.ones((4, 3), np.float16), r"all shards must hold rows of float16 \(4,\); .*_2\.npy holds float16 \(4, 3\)"),
        (np.ones((4, 4), np.float32), r"all shards must hold rows of float16 \(4,\); .*_2\.npy holds float32 \(4, 4\)"),
        (np.ones(4, np.float16), r"all shards must hold rows of float16 \(4,\); .*_2\.npy holds float16 \(4,\)"),
        (np.ones((4, 4), np.float16, order="F"), r"numbers in C order; .*img_emb_2\.npy is not: save it again"),
        (np.full((4, 4), None), r"numbers in C order; .*img_emb_2\.npy is not: save it again"),
        (np.ones((3, 4), np.float16), r"metadata_2\.parquet must have 3 rows, as its features; it has 4"),
    ],
)
def test_shards_of_different_kinds(array, match, tmp_path):
    np.save(clip_folder(tmp_path, {"label": TEXT}) / "img_emb" / "img_emb_2.npy", array)
    with refused(match):
        FeatureSet.open(tmp_path)


@pytest.mark.parametrize("dtype", [np.float64, np.int32, ">f4"])
def test_features_of_another_dtype(dtype, tmp_path):
    with refused(r"features are float16 or float32; .* holds .*: convert them"):
        FeatureSet.open(clip_folder(tmp_path, dtype=dtype))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: b"", r"features must be \.npy files; .*img_emb_2\.npy cannot be read"),
        (lambda data: b"PK\x03\x04" + data[4:], r"features must be \.npy files; .*img_emb_2\.npy cannot be read"),
        (lambda data: data[:20], r"features must be \.npy files; .*img_emb_2\.npy cannot be read"),
        (lambda data: data.replace(b"'shape'", b"'sha\0e'"), r"must be \.npy files; .*img_emb_2\.npy cannot be read"),
        (lambda data: data[:-1], r"of 160 bytes, as their header says; .*img_emb_2\.npy is truncated, 159"),
        (lambda data: data + b"x", r"of 160 bytes, as their header says; .*img_emb_2\.npy is altered, 161"),
    ],
)
def test_damaged_features_are_named(change, match, tmp_path):
    path = clip_folder(tmp_path, {"label": TEXT}) / "img_emb" / "img_emb_2.npy"
    path.write_bytes(change(path.read_bytes()))
    with refused(match):
        FeatureSet.open(tmp_path)


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data[:-9], lambda data: data[:-1] + b"x"])
@pytest.mark.parametrize("number", [0, 2])
def test_damaged_metadata_is_named(change, number, tmp_path):
    path = clip_folder(tmp_path, {"label": TEXT}) / "metadata" / f"metadata_{number}.parquet"
    path.write_bytes(change(path.read_bytes()))
    with refused(rf"metadata must be Parquet as written; .*metadata_{number}\.parquet is altered"):
        FeatureSet.open(tmp_path).labels  # noqa: B018


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ([*TEXT[:6], None, *TEXT[7:]], r"every row must have a label; 1 of .*metadata_2\.parquet have none: complete"),
        ([True, False] * 6, r"a label must be text or a whole number; .*has bool: convert the column"),
    ],
)
def test_labels_that_are_missing_or_of_another_type(labels, match, tmp_path):
    with refused(match):
        FeatureSet.open(clip_folder(tmp_path, {"label": labels}))


def test_labels_of_two_types(tmp_path):
    path = clip_folder(tmp_path, {"label": TEXT}) / "metadata" / "metadata_2.parquet"
    pd.DataFrame({"label": [1, 2, 3, 4]}).to_parquet(path)
    with refused("labels must be all text or all numbers; column 'label' has both: convert it"):
        FeatureSet.open(tmp_path)
    pd.DataFrame({"other": [1, 2, 3, 4]}).to_parquet(path)
    with refused(r"metadata_2\.parquet is altered \(.*no column label; it has other"):
        FeatureSet.open(tmp_path)


def test_files_without_a_number_of_their_own(tmp_path):
    clip_folder(tmp_path)
    np.save(tmp_path / "img_emb" / "img_emb_02.npy", X)
    with refused(r"every shard has its own number; img_emb_0?2\.npy and img_emb_0?2\.npy share one: remove one"):
        FeatureSet.open(tmp_path)
    (tmp_path / "img_emb" / "img_emb_02.npy").rename(tmp_path / "img_emb" / "all.npy")
    with refused(r"shards are numbered, as in img_emb_0\.npy; got all\.npy: rename or remove it"):
        FeatureSet.open(tmp_path)


def test_a_folder_without_rows(tmp_path):
    (tmp_path / "img_emb").mkdir()
    with refused(r"holds index\.json or img_emb/\*\.npy; .* does not: check the path"):
        FeatureSet.open(tmp_path)
    np.save(tmp_path / "img_emb" / "img_emb_0.npy", np.ones((0, 4), np.float32))
    with refused(r"a feature set needs at least one row; .* has none: check where it comes from"):
        FeatureSet.open(tmp_path)
