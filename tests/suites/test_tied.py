"""pacs-tied: which images are in which set, what is extracted, and how pairs are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dissensus import suites
from dissensus.suites import tied
from tests.commands import refuse, run
from tests.suites.helpers import by_name, load, refused, roles
from tests.trees import TINY_FLAGS, classes

COUNTS = {"photo": 10, "sketch": 20, "cartoon": 12}


@pytest.fixture(scope="module")
def pacs(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pacs-tied")
    for style, count in COUNTS.items():
        classes(root / "pacs" / style, ("dog", "elephant", "giraffe"), count)
    return root


def test_train_is_tied_and_the_groups_are_not(pacs):
    suite = load("pacs-tied", pacs)
    assert suite.name == "pacs-tied"
    assert suite.summary.startswith("PACS: elephant photos and giraffe sketches in training")
    assert roles(suite) == {"id": "id", "groups": "groups"}
    groups = by_name(suite)["groups"].features
    names = ("elephant, photo", "elephant, sketch", "giraffe, photo", "giraffe, sketch")
    for features in (suite.train, suite.held_out, suite.labels, groups):
        assert features.classes == ("elephant", "giraffe")
        assert features.group_names == names
        assert torch.equal(features.groups // 2, features.labels)
    # half of each tied group; the others in two parts
    assert suite.train.groups.bincount(minlength=4).tolist() == [5, 0, 0, 10]
    assert suite.held_out.groups.bincount(minlength=4).tolist() == [1, 0, 0, 2]
    assert by_name(suite)["id"].features.groups.bincount(minlength=4).tolist() == [2, 0, 0, 4]
    assert groups.groups.bincount().tolist() == [2, 10, 5, 4]
    assert suite.labels.groups.bincount().tolist() == [2, 2, 2, 2], "as many of each as the smallest group allows"
    assert suite.disagree_on is suite.pool
    assert (len(suite.pool), suite.pool.labels, suite.pool.groups) == (8, None, None)


def test_sets_share_no_image(pacs):
    suite = load("pacs-tied", pacs)
    groups, inside = by_name(suite)["groups"], by_name(suite)["id"]
    rows = [{row.numpy().tobytes() for row in x.rows(slice(None))} for x in (
        suite.train, suite.held_out, suite.labels, groups.features,
    )]  # fmt: skip
    assert sum(map(len, rows)) == len(set.union(*rows)) == 18 + 8 + 21
    assert {row.numpy().tobytes() for row in inside.features.rows(slice(None))} < rows[3]


def test_images_are_those_of_the_rows(pacs):
    suite = load("pacs-tied", pacs)
    for images, features in (
        (suite.train_images, suite.train),
        *((s.images, s.features) for s in suite.sets),
    ):
        assert len(images) == len(features)
        for i, name in enumerate(images.names):
            style, kind, _ = name.split("/")
            assert features.group_names[features.groups[i]] == f"{kind}, {style}"
            assert features.classes[features.labels[i]] == kind
            assert images.image(i).size == (12, 12)


def test_styles_are_extracted_once_for_all_pairs(pacs, tmp_path, monkeypatch):
    first = load("pacs-tied", pacs, features=tmp_path)
    folder = tmp_path / "pacs-tied" / "test_vit-32px"
    assert sorted(path.name for path in folder.iterdir()) == ["photo", "sketch"]

    def no_engine(*args):
        raise AssertionError("nothing should be extracted again")

    monkeypatch.setattr("dissensus.backbones.engines.create", no_engine)
    other = load("pacs-tied:dog-photo+elephant-sketch", pacs, features=tmp_path)
    assert other.train.classes == ("dog", "elephant")
    again = load("pacs-tied:giraffe-sketch+elephant-photo", pacs, features=tmp_path)
    assert again.name == "pacs-tied:elephant-photo+giraffe-sketch", "sorted"
    assert again.train.fingerprint == first.train.fingerprint
    assert load("pacs-tied", pacs, features=tmp_path, seed=1).train.fingerprint != first.train.fingerprint


def test_an_unreadable_image_is_left_out(tmp_path):
    for style in ("photo", "sketch"):
        classes(tmp_path / style, ("elephant", "giraffe"), 20)
    (tmp_path / "photo" / "elephant" / "7.png").write_bytes(b"no image")
    suite = load("pacs-tied", tmp_path, features=tmp_path / "features", max_bad=0.1)
    sets = [suite.train, suite.held_out, by_name(suite)["groups"].features]
    assert sum(len(features) for features in sets) == 19 + 60 - len(suite.labels) - 12
    assert not any(name == "photo/elephant/7.png" for name in suite.train_images.names)


def test_seven_pairs_by_a_rule():
    assert suites.PAIRS == (
        "dog-photo+elephant-sketch", "elephant-photo+giraffe-sketch", "giraffe-photo+guitar-sketch",
        "guitar-photo+horse-sketch", "horse-photo+house-sketch", "house-photo+person-sketch", "person-photo+dog-sketch",
    )  # fmt: skip
    assert tied.DEFAULT in suites.PAIRS
    for pair in suites.PAIRS:
        assert suites.needs_root(f"pacs-tied:{pair}")
        assert suites.uses_backbone(f"pacs-tied:{pair}")
        assert suites.training(f"pacs-tied:{pair}") == suites.training("pacs-tied")
        assert "name" not in suites.accepted_options(f"pacs-tied:{pair}")


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("elefant-photo+giraffe-sketch", "unknown class of pacs-tied 'elefant': .*'elephant'.* known: dog, ele"),
        ("elephant-foto+giraffe-sketch", "unknown style of pacs-tied 'foto': .*known: art, cartoon, photo, sketch"),
        ("elephant-photo", "CLASS-STYLE.CLASS-STYLE, such as elephant-photo.giraffe-sketch; got 'elephant-photo'"),
        ("elephant+giraffe", "CLASS-STYLE.CLASS-STYLE, such as .*; got 'elephant.giraffe'"),
        ("", "CLASS-STYLE.CLASS-STYLE, .*; got ''"),
        ("dog-photo+dog-sketch", "two classes and two styles; got 'dog-photo.dog-sketch': change"),
        ("dog-photo+horse-photo", "two classes and two styles; got 'dog-photo.horse-photo': change"),
    ],
)  # fmt: skip
def test_a_wrong_pair_is_one_line(pair, message, pacs):
    with refused(message):
        load(f"pacs-tied:{pair}", pacs)


def test_what_is_missing_is_one_line(pacs, tmp_path):
    with refused("suite 'pacs-tied' reads images from a folder: name it with --root"):
        suites.load("pacs-tied")
    with refused("missing: .*pacs/art_painting or .*art_painting: unpack PACS"):
        load("pacs-tied:dog-photo+giraffe-art", pacs)
    with refused("needs class folders dog and horse; horse is not among those there, dog, elephant, giraffe: unpack"):
        load("pacs-tied:dog-photo+horse-sketch", pacs)
    with refused("shares features between sets and pairs; got --augment: leave it out"):
        load("pacs-tied", pacs, augment=2)
    with refused("features must be kept outside of the images"):
        load("pacs-tied", pacs, features=pacs / "pacs" / "photo" / "features")
    for style in ("photo", "sketch"):
        classes(tmp_path / style, ("elephant", "giraffe"), 9)
    with refused("needs 10 images of every class in every style; there are 9 of elephant, photo"):
        load("pacs-tied", tmp_path)


def test_suite_check_knows_pairs(pacs, capsys):
    code, out, err = run(capsys, "suite", "check", "pacs-tied", "--root", pacs)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[4:]] == [[name, name] for name in tied.SETS]
    assert "run it with: dissensus run --suite pacs-tied --root" in err
    code, out, err = run(capsys, "suite", "check", "pacs-tied:dog-photo+giraffe-art", "--root", pacs)
    assert code == 2
    assert "missing" in out
    assert "cannot be run without train and id" in err
    code, out, _ = run(capsys, "suite", "check", "pacs-tied:dog-photo+horse-sketch", "--root", pacs)
    assert code == 2
    assert "unusable" in out


def test_a_pair_is_run_and_evaluated_again(pacs, tmp_path, capsys):
    name = "pacs-tied:dog-photo+elephant-sketch"
    flags = ["--suite", name, "--root", pacs, "--features", tmp_path / "features"]
    command = ["run", *flags, "--out", tmp_path / "run", "--methods", "a2d", "--epochs", "1", *TINY_FLAGS]
    code, out, err = run(capsys, *command)
    assert code == 0, err
    assert "worst group" in out
    code, out, err = run(capsys, "evaluate", tmp_path / "run" / "a2d", *flags, "--no-progress")
    assert code == 0, err
    assert "worst group" in out
    assert "train on it with dissensus run --suite" in refuse(capsys, "train", name, "--out", tmp_path / "x")
