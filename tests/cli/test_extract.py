"""dissensus extract as a user meets it: what it prints, what it leaves, and what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from PIL import Image

from dissensus.cli import main
from dissensus.features import FeatureSet
from dissensus.training._fit import fit
from tests.commands import refuse, run
from tests.images.samples import BAD, huge, noise, packed, plain, write

BACKBONE = ["--backbone", "test_vit", "--weights", "random", "--size", "32", "--workers", "0"]
KINDS = [data for data, _ in BAD.values()]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """12 images in two class folders."""
    return write(
        tmp_path_factory.mktemp("tree"), {f"{'dog' if i % 2 else 'cat'}/{i}.png": noise(seed=i) for i in range(12)}
    )


@pytest.fixture(scope="module")
def made(tree, tmp_path_factory):
    out = tmp_path_factory.mktemp("features") / "f"
    assert main(["extract", str(tree), "--out", str(out), *BACKBONE]) == 0
    return out


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_extract_says_what_it_does_and_prints_the_folder(tree, tmp_path, capsys):
    code, out, err = run(capsys, "extract", tree, "--out", tmp_path / "my f", *BACKBONE)
    assert code == 0
    assert out == f"{tmp_path / 'my f'}\n"
    lines = err.splitlines()
    assert lines[0] == "12 images (2 classes) through test_vit at 32 px: features 64, 0.0 MB in all"
    assert re.fullmatch(r"features of 12 images in \d s \(\d+ per second\)", lines[1])
    assert lines[2] == f"train on them with: dissensus train '{tmp_path / 'my f'}' --out runs/mine"
    features = FeatureSet.open(tmp_path / "my f")
    assert features.classes == ("cat", "dog")
    assert features.labels.tolist() == [0] * 6 + [1] * 6


def test_a_finished_folder_comes_back_at_once(tree, made, capsys):
    code, out, err = run(capsys, "extract", tree, "--out", made, *BACKBONE)
    assert (code, out) == (0, f"{made}\n")
    assert re.search(r"^features of 12 images in 0 s$", err, re.MULTILINE)  # no rate: nothing was done


def test_passes_are_trained_on(tree, tmp_path, capsys):
    assert run(capsys, "extract", tree, "--out", tmp_path / "f", *BACKBONE, "--augment", 3)[0] == 0
    features = FeatureSet.open(tmp_path / "f")
    assert (features.passes, len(features)) == (3, 36)
    code, _, err = run(capsys, "train", tmp_path / "f", "--out", tmp_path / "r", "--epochs", 4, "--no-progress")
    assert code == 0, err


def test_every_kind_of_source(tree, tmp_path, capsys):
    rows = [
        f"{'dog' if i % 2 else 'cat'}/{i}.png,{i % 2},{i % 3 == 0:d},{'val' if i > 8 else 'train'}" for i in range(12)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["file,label,place,split", *rows]))
    table = ["--base", tree, "--image-column", "file", "--label-column", "label", "--group-columns", "label", "place"]
    sources = {
        "flat": ([tree, "--unlabelled"], 12, None),
        "csv": ([tmp_path / "t.csv", *table, "--only", "split=val"], 3, 4),
        "tar": ([packed(tmp_path / "a.tar", {f"x/{i}.jpg": plain(kind="JPEG") for i in range(3)})], 3, None),
        "shrunk": ([tree, "--shrink", 16], 12, None),
    }
    for name, (given, count, groups) in sources.items():
        code, _, err = run(capsys, "extract", *given, "--out", tmp_path / name, *BACKBONE)
        assert code == 0, err
        features = FeatureSet.open(tmp_path / name)
        assert len(features) == count
        assert groups is None or len(features.group_names) == groups
    assert FeatureSet.open(tmp_path / "flat").labels is None
    same = FeatureSet.open(tmp_path / "flat").rows([0]) - FeatureSet.open(tmp_path / "shrunk").rows([0])
    assert same.abs().max() > 1e-3


def test_a_tar_with_twenty_bad_images(tmp_path, capsys):
    bad = {f"b/{i:03}.png": KINDS[i // 50 % len(KINDS)] for i in range(0, 1000, 50)}
    tar = packed(tmp_path / "a.tar", {f"b/{i:03}.png": noise((8, 8), seed=i % 9) for i in range(1000)} | bad)
    given = ["extract", tar, "--out", tmp_path / "f", *BACKBONE, "--shard-images", 100]
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if "error" in line]
    assert re.search(
        r"at most 10 of 1000 images may be unreadable; 12 are so far, such as b/000.png \(truncated\)", line
    )
    assert f"see {tmp_path / 'f' / 'bad.tsv'}; raise --max-bad" in line
    assert (tmp_path / "f" / "bad.tsv").read_text().count("\n") == 12
    kept = {path.relative_to(tmp_path / "f"): path.stat().st_mtime_ns for path in (tmp_path / "f").glob("*/*")}
    assert len(kept) == 2 * 5  # 2 bad ones a shard: the limit is passed in the sixth
    code, out, err = run(capsys, *given, "--max-bad", "2%")
    assert code == 0, err
    assert re.search(rf"features of 980 images in \d+ s; 20 could not be read: {tmp_path / 'f' / 'bad.tsv'}\n", err)
    listed = [line.split("\t")[0] for line in (tmp_path / "f" / "bad.tsv").read_text().splitlines()]
    assert listed == list(bad)
    assert {name: (tmp_path / "f" / name).stat().st_mtime_ns for name in kept} == kept
    assert names(tmp_path / "f") == ["bad.tsv", "img_emb", "index.json", "metadata"]
    assert names(tmp_path / "f" / "img_emb") == [f"img_emb_{i:05}.npy" for i in range(10)]
    assert names(tmp_path / "f" / "metadata") == [f"metadata_{i:05}.parquet" for i in range(10)]
    assert (
        "every image must be readable; b/000.png is not (truncated): fix it, or leave out --strict"
        in run(capsys, *given, "--strict", "--out", tmp_path / "g")[2]
    )


@pytest.mark.parametrize("text", ["150%", "-1", "abc", "", "nan", "2", "%"])
def test_impossible_shares(text, tree, tmp_path, capsys):
    line = refuse(capsys, "extract", tree, "--out", tmp_path / "f", f"--max-bad={text}", *BACKBONE)
    assert line == f"--max-bad must be a share such as 1% or 0.01; got {text}".strip()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--layers", 3], "layers must be 1, the classifier, or 2, the layer before it too; got 3"),
        (["--only", "x"], "--only takes COLUMN=VALUE; got 'x': write --only x=VALUE"),
        (["--backbone", "test_vitt"], "unknown backbone 'test_vitt': did you mean 'test_vit"),
        (["--size", 0], "at least one pixel per side; got size=0"),
        (["--weights", "none.safetensors"], "weights must be a local file; none.safetensors is not"),
        (["--engine", "steam"], "unknown engine 'steam'"),
        (["--view", "box-blur"], "unknown view 'box-blur': did you mean 'box_blur'?"),
        (["--view", "jigsaw", "--corruption", "fog"], "an image is corrupted or made a stand-in; got --corruption fog"),
        (["--devices", 0], "devices must be at least 1; got 0"),
        (["--out", ""], "images and --out must name something"),
        (["--classes-of", "nowhere"], "features are a folder; nowhere is not"),
        (["--base", "."], "base"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(options, match, tree, tmp_path, capsys):
    line = refuse(capsys, "extract", tree, "--out", tmp_path / "f", *BACKBONE, *options)
    assert match in line
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--corruption", "smog"], "unknown corruption 'smog': did you mean 'fog'?"),
        (["--corruption", "fog", "--severity", 9], "severity must be one of 1 to 5; got 9"),
        (["--severity", 2], "severity is of a corruption; got severity=2 and none: add --corruption"),
        (["--augment", -1], "augment must be at least 0; got -1"),
        (["--batch-size", 0], "batch_size must be at least 1; got 0"),
    ],
)
def test_mistakes_after_the_announcement(options, match, tree, tmp_path, capsys):
    code, out, err = run(capsys, "extract", tree, "--out", tmp_path / "f", *BACKBONE, *options)
    assert (code, out) == (2, "")
    assert f"dissensus: error: {match}" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "f").exists()


def test_classes_of_numbers_the_labels_as_in_training(tree, made, tmp_path, capsys):
    write(tmp_path / "val", {"dog/1.png": noise()})
    given = ["extract", tmp_path / "val", "--out", tmp_path / "f", "--classes-of", made]
    assert run(capsys, *given, *BACKBONE)[0] == 0
    features = FeatureSet.open(tmp_path / "f")
    assert features.classes == ("cat", "dog")
    assert features.labels.tolist() == [1]
    line = refuse(capsys, *given[:3], tmp_path / "g", *given[4:], *BACKBONE, "--size", 64)
    assert "features must come from one backbone" in line
    assert "size" in line
    write(tmp_path / "val", {"eel/1.png": noise()})
    line = refuse(capsys, *given[:3], tmp_path / "g", *given[4:], *BACKBONE)
    assert "eel" in line
    assert not (tmp_path / "g").exists()


def test_one_class_only_is_for_ood_sets(tmp_path, capsys):
    write(tmp_path / "tree", {"dog/1.png": noise(), "dog/2.png": noise(seed=1)})
    code, _, err = run(capsys, "extract", tmp_path / "tree", "--out", tmp_path / "f", *BACKBONE)
    assert code == 0
    assert "there is one class only, 'dog': training needs two, so use this as an ood set" in err


def test_places_without_images(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "tree", {"dog/1.png": noise(), "cat/notes.txt": b""})
    for where in ("empty", "nowhere", "tree/cat"):
        line = refuse(capsys, "extract", tmp_path / where, "--out", tmp_path / "f", *BACKBONE)
        assert str(tmp_path / where) in line
    assert not (tmp_path / "f").exists()


def test_an_empty_class_folder(tmp_path, capsys):
    write(tmp_path / "tree", {"dog/1.png": noise(), "cat/1.png": noise()})
    (tmp_path / "tree" / "eel").mkdir()
    line = refuse(capsys, "extract", tmp_path / "tree", "--out", tmp_path / "f", *BACKBONE)
    assert f"every class folder holds images; {tmp_path / 'tree' / 'eel'} holds none" in line


def test_all_images_bad_and_a_huge_one(tmp_path, capsys):
    write(tmp_path / "tree", {"a.png": b"", "b.png": b"text", "c.png": huge(40000, 40000)})
    given = ["extract", tmp_path / "tree", "--out", tmp_path / "f", *BACKBONE]
    _, _, err = run(capsys, *given)
    assert "error: at most 1 of 3 images may be unreadable; 3 are so far, such as a.png (empty file): see" in err
    code, _, err = run(capsys, *given, "--max-bad", "100%")
    assert code == 2
    assert "features need an image that can be read; none can, the first is a.png (empty file): see" in err
    assert "c.png\t40000 x 40000 pixels, more than the limit" in (tmp_path / "f" / "bad.tsv").read_text()
    write(tmp_path / "tree", {"d.png": plain()})  # other images now, but nothing of the old ones was done
    code, _, err = run(capsys, *given, "--max-bad", "75%")
    assert code == 0, err


def test_features_too_large_for_float16(tree, tmp_path, capsys):
    from safetensors.torch import save_file
    from timm import create_model

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = create_model("test_resnet")
    state = model.state_dict()
    last = [name for name in state if name.startswith("layer4") and name.endswith("weight") and state[name].ndim == 1]
    for name in last:
        state[name] = state[name] + 1e5
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "w.safetensors")
    given = ["extract", tree, "--out", tmp_path / "f", "--backbone", "test_resnet", "--size", 32, "--workers", 0]
    code, _, err = run(capsys, *given, "--weights", tmp_path / "w.safetensors")
    assert code == 2
    assert re.search(
        r"error: float16 holds values up to 65504; the features of cat/0.png reach .*: use --dtype float32", err
    )
    assert run(capsys, *given, "--weights", tmp_path / "w.safetensors", "--dtype", "float32")[0] == 0


def test_lite0_end_to_end(tmp_path, capsys):
    """Bright and dark images are told apart by a tail trained on features of the packaged backbone."""
    rng = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(low, low + 100, (70, 90, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "tree" / name / f"{i}.jpg")
    code, _, err = run(capsys, "extract", tmp_path / "tree", "--out", tmp_path / "f", "--size", 64, "--layers", 1)
    assert code == 0, err
    features = FeatureSet.open(tmp_path / "f")
    assert features.provenance["backbone"]["weights"] == "package"
    from dissensus.models import tails
    from dissensus.models.ensemble import Ensemble

    ensemble = fit(Ensemble(tails.Linear(features.width, 2), members=2), features, epochs=10, progress=False)
    with torch.no_grad():
        predicted = ensemble(features.rows(slice(None))).mean(0).argmax(-1)
    assert torch.equal(predicted, features.labels)
