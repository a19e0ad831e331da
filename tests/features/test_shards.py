"""Damage: every change of a feature folder is noticed, and reported in one line that names the file."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from dissensus import backbones
from dissensus._core import digests, documents
from dissensus._core.errors import DataError, DissensusError
from dissensus.cli import main
from dissensus.features import FeatureSet
from dissensus.training import new_ensemble
from tests.damage import damages
from tests.features.samples import arrays, flip, on_disk, refused


def test_missing_and_other_folders(tmp_path):
    with refused(r"features are a folder; .*nowhere is not: check the path"):
        FeatureSet.open(tmp_path / "nowhere")
    with refused(r"holds index\.json or img_emb/\*\.npy; .* does not: check the path"):
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


@pytest.mark.parametrize("name", ["plan.json", "plan.lock", "shard-00000.json", ".index.json.0a1b2c3d.tmp"])
def test_what_a_killed_command_leaves_is_not_taken_for_features(name, tmp_path):
    FeatureSet.from_arrays(arrays()[0]).save(tmp_path / "f")
    (tmp_path / "f" / "index.json").rename(tmp_path / "f" / name)
    with refused("never finished: run the same command again, or delete it"):
        FeatureSet.open(tmp_path / "f")


COLUMNS = ("number", "rows", "bytes", "sha256", "metadata_bytes", "metadata_sha256")
SHARD = dict(zip(COLUMNS, [[0], [50], [9], ["0" * 64], [9], ["0" * 64]], strict=True))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "dissensus-features-3"}, r"format: input should be 'dissensus-features-4', got 'dissensus-fea"),
        ({"count": 49}, "count must be the sum of the rows"),
        ({"shards": {name: [] for name in COLUMNS}}, "shards must be in ascending order, at least one"),
        ({"shards": {**SHARD, "bytes": ["9"]}}, r"shards\.bytes\.0: input should be a valid integer"),
        ({"shards": {**SHARD, "number": [-1]}}, r"shards\.number\.0: input should be greater than or equal to 0"),
        ({"shards": {**SHARD, "number": [2**63]}}, r"shards\.number\.0: input should be less than"),
        ({"shards": {**SHARD, "number": ["../../x"]}}, r"shards\.number\.0: input should be a valid integer"),
        ({"shards": {**SHARD, "rows": [25, 25]}}, "every column must have a value for every shard"),
        ({"shards": {**SHARD, "metadata_bytes": []}}, "every column must have a value for every shard"),
        ({"shards": {**SHARD, "metadata_bytes": [], "metadata_sha256": []}}, "must have metadata if there are columns"),
        ({"shards": {name: value * 2 for name, value in SHARD.items()}}, "shards must be in ascending order"),
        ({"shards": {**SHARD, "sha256": ["0" * 63]}}, r"shards\.sha256\.0: string should match pattern"),
        ({"columns": ["labels"]}, r"columns\.0: input should be 'image_path', 'label', 'group' or 'digest'"),
        (
            {"columns": ["group", "label"]},
            "columns must be among image_path, label, group, digest, each once, in order",
        ),
        (
            {"columns": ["label", "label"]},
            "columns must be among image_path, label, group, digest, each once, in order",
        ),
        ({"columns": []}, "shards must have metadata if there are columns"),
        ({"columns": ["group"]}, "class_counts must have one number per class, which sum to count"),
        ({"shards": {}}, r"shards\.number: field required"),
        ({"shards": None}, "shards: input should be an object"),
        ({"surprise": 1}, "surprise: extra inputs are not permitted"),
        ({"provenance": {"passes": 3}}, "provenance.passes must divide count"),
        ({"dtype": "float64"}, "dtype: input should be 'float16' or 'float32', got 'float64'"),
        ({"classes": ["a", "b"]}, "class_counts must have one number per class, which sum to count"),
        ({"class_counts": [10, 10, 10, 10, 9]}, "class_counts must have one number per class, which sum to count"),
    ],
)
def test_a_changed_index(change, match, tmp_path):
    on_disk(tmp_path)
    path = tmp_path / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refused(match):
        FeatureSet.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [3, 2]}, r"img_emb_00000\.npy is altered, it holds float32 \(50, 6\)"),
        ({"dtype": "float16"}, r"img_emb_00000\.npy is altered, it holds float32 \(50, 6\)"),
        ({"classes": list("abcde")}, r"every label must be among the 5 of the index; .*00000\.parquet has '0': "),
        ({"group_names": ["land"]}, r"every group must be among the 1 of the index; .*00000\.parquet has 'water': "),
        (
            {"columns": ["image_path", "label", "group"]},
            r"00000\.parquet is altered \(.*no column image_path; it has l",
        ),
    ],
)
def test_an_index_that_does_not_fit_the_shards_is_noticed_when_they_are_read(change, match, tmp_path, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    on_disk(tmp_path, shard_rows=50)
    path = tmp_path / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    features = FeatureSet.open(tmp_path)
    with refused(match):
        features.rows([0]), features.labels, features.groups, features.paths([0])


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A folder whose provenance names a backbone, and its index."""
    backbone = backbones.create("test_vit", "random", size=32)
    x, y, g = arrays(rows=20, shape=backbone.shape, classes=2)
    provenance = {"backbone": backbone.describe(), "images": "a" * 64, "engine": "eager", "passes": 2, "bad": 0}
    folder = tmp_path_factory.mktemp("indexed") / "f"
    FeatureSet.from_arrays(x, y, groups=g, provenance=provenance).save(folder, shard_rows=10)
    index = json.loads((folder / "index.json").read_text())
    del index["sha256"]
    return folder, index


HARMLESS = {  # another text where any will do; an origin that is not known; a norm, which a backbone has none of
    "unknown": ("written_by", "s.0", "name", "weights", "interpolation", "engine", "images", "norm"),
    "removed": ("provenance.backbone", "images", "engine", "passes", "bad", "hidden", "gamma", "eps", "norm"),
    "null": ("provenance.backbone", "tail", "images", "hidden"),
    "number": ("gamma",),
    "huge": ("tail.features", "tail.classes", "tail.hidden"),
}


def test_every_damage_of_the_index_is_one_line_that_names_file_and_field(indexed, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
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
    monkeypatch.delenv("DISSENSUS_VERIFY")
    (folder / "index.json").write_text(documents.sealed(json.dumps(index)))
    FeatureSet.open(folder, verify=True)


def test_an_index_does_not_lead_out_of_its_folder(tmp_path):
    """It has numbers of shards; no number makes a path outside."""
    on_disk(tmp_path / "f", shard_rows=50)
    path = tmp_path / "f" / "index.json"
    index = json.loads(path.read_text())
    for number in ("/../x", "../x", -1, 1.5, None, 2**63):
        index["shards"]["number"] = [number]
        path.write_text(json.dumps(index))
        with refused(r"shards\.number\.0: input should be "):
            FeatureSet.open(tmp_path / "f")
    index["shards"]["number"] = [2**63 - 1]
    del index["sha256"]
    path.write_text(documents.sealed(json.dumps(index)))
    with refused(rf"{tmp_path}/f/img_emb/img_emb_{2**63 - 1}\.npy is missing"):
        FeatureSet.open(tmp_path / "f")


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
@pytest.mark.parametrize("file", ["img_emb/img_emb_00003.npy", "metadata/metadata_00003.parquet"])
def test_a_shard_of_another_size_is_named(damage, file, tmp_path):
    on_disk(tmp_path)
    shard = tmp_path / file
    whole = shard.read_bytes()
    shard.unlink()
    if damage != "missing":
        shard.write_bytes(whole[:-1] if damage == "truncated" else whole + b"x")
    with refused(rf"{len(whole)} bytes; .*{file} is {damage}"):
        FeatureSet.open(tmp_path)


@pytest.mark.parametrize("file", ["img_emb/img_emb_00005.npy", "metadata/metadata_00005.parquet"])
def test_a_flipped_byte_is_found_by_verify(file, tmp_path, capsys):
    _, features = on_disk(tmp_path)
    features.verify()
    flip(tmp_path / file)
    FeatureSet.open(tmp_path)
    with refused(rf"{file} is altered, its sha256 differs: "):
        FeatureSet.open(tmp_path, verify=True)
    with refused(rf"{file} is altered"):
        features.subset([0]).verify()
    assert capsys.readouterr().err == ""
    with refused(rf"{file} is altered"):
        features.verify(progress=True)
    assert "verify" in capsys.readouterr().err


@pytest.mark.parametrize("head", [b"\xff" * 8, b"\x00" * 8, b"PK\x03\x04", b"\x80\x04\x95\x00"])
def test_a_garbled_header_is_named(head, tmp_path):
    on_disk(tmp_path)
    with open(tmp_path / "img_emb" / "img_emb_00002.npy", "r+b") as file:
        file.write(head)
    features = FeatureSet.open(tmp_path)
    features.rows(slice(0, 14))
    with refused(r"img_emb_00002\.npy is altered, its sha256 differs"):
        features.rows([14])
    with digests.unverified(), refused(r"img_emb_00002\.npy is altered, "):
        features.rows([14])


def test_no_byte_of_a_header_or_of_metadata_gives_another_error(tmp_path, monkeypatch):
    """Whatever changes, values are read or one line names the file, even where nothing is verified."""
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    x, _ = on_disk(tmp_path, rows=7)
    outcomes = set()
    for file in ("img_emb/img_emb_00000.npy", "metadata/metadata_00000.parquet"):
        whole = (tmp_path / file).read_bytes()
        for at in range(128 if file.endswith("npy") else len(whole)):
            bits = (0x01, 0x08, 0x80, 0xFF)[at % 4]
            (tmp_path / file).write_bytes(whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :])
            features, problem = FeatureSet.open(tmp_path), f"{file} is as it was"
            try:
                rows, _, _ = features.rows(slice(None)), features.labels, features.groups
                assert rows.shape == x.shape
                outcomes.add("read")
            except DataError as error:
                problem = str(error)
                outcomes.add(file)
            assert file in problem
            assert "\n" not in problem
        (tmp_path / file).write_bytes(whole)
    assert outcomes == {"read", "img_emb/img_emb_00000.npy", "metadata/metadata_00000.parquet"}


@pytest.mark.parametrize("file", ["img_emb/img_emb_00001.npy", "metadata/metadata_00001.parquet"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_a_file_that_changes_after_opening_is_named(file, damage, tmp_path):
    x, features = on_disk(tmp_path)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).unlink()
    if damage != "missing":
        (tmp_path / file).write_bytes(b"" if damage == "empty" else whole[: len(whole) // 2])
    np.testing.assert_array_equal(features.rows([0, 20]), x[[0, 20]])
    with refused(rf"{file} is {'missing' if damage == 'missing' else 'altered|truncated'}"):
        features.rows([8]), features.labels


def test_metadata_of_another_number_of_rows_is_named(tmp_path):
    """Files of two folders that were mixed up."""
    on_disk(tmp_path / "f", shard_rows=20)
    features = FeatureSet.open(tmp_path / "f")
    tables = tmp_path / "f" / "metadata"
    shutil.copy(tables / "metadata_00002.parquet", tables / "metadata_00000.parquet")
    with refused(r"metadata_00000\.parquet is altered"):
        features.labels  # noqa: B018
    with (
        digests.unverified(),
        refused(r"metadata_00000\.parquet must have 20 rows, as its features; it has 10: copy it again"),
    ):
        features.labels  # noqa: B018
