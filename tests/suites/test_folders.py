"""The suite `folders`: class folders, folders named by their roles, and what is set aside."""

from __future__ import annotations

import shutil

import pytest

from dissensus import suites
from dissensus.suites import _locate
from tests.suites.helpers import by_name, load, names_of, refused, roles
from tests.trees import classes, image, images


def test_folders_by_their_names(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "val", count=1)
    classes(tmp_path / "held-out", count=2)
    images(tmp_path / "disagreement", 5)
    classes(tmp_path / "shift" / "v1.0", count=1)
    classes(tmp_path / "shift" / "v1.1", count=1)
    classes(tmp_path / "ood" / "junk", ("a", "b"), count=1)
    images(tmp_path / "ood" / "junk" / "deep" / "er", 1)
    images(tmp_path / "ood" / "stars", 2)
    (tmp_path / "ood" / ".hidden").mkdir()
    (tmp_path / "notes").mkdir()
    suite = load("folders", tmp_path)
    assert roles(suite) == {"id": "id", "v1.0": "shift", "v1.1": "shift", "junk": "ood", "stars": "ood"}
    assert (len(suite.train), len(suite.held_out), len(suite.disagreement)) == (12, 6, 5)
    assert len(by_name(suite)["junk"].features) == 3
    assert suites.training("folders") == {}


BOTH_LACK = "no held-out/ and no id/, so it sets aside a fifth of each class to calibrate on and a fifth to test on ("


@pytest.mark.parametrize(
    ("layout", "folders", "sizes", "note"),
    [
        (".", [], (18, 6, 6), BOTH_LACK),
        ("train", [], (18, 6, 6), BOTH_LACK),
        ("train", ["id"], (24, 3, 6), "no held-out/, so it sets aside a fifth of each class to calibrate on ("),
        ("train", ["held-out"], (24, 6, 3), "no id/, so it sets aside a fifth of each class to test on ("),
        ("train", ["test", "held-out"], (30, 3, 3), None),
    ],
)
def test_what_folders_lack_is_set_aside_from_the_training_images(tmp_path, layout, folders, sizes, note):
    classes(tmp_path / layout, ("cat", "big dog", "eel"), count=10)
    for folder in folders:
        classes(tmp_path / folder, ("cat", "big dog", "eel"), count=1)
    messages: list[str] = []
    suite = load("folders", tmp_path, messages)
    assert (len(suite.train), len(by_name(suite)["id"].features), len(suite.held_out)) == sizes
    assert suite.train.classes == ("big dog", "cat", "eel")
    assert suite.train.class_counts.unique().numel() == 1, "each class in proportion"
    assert len(messages) == (note is not None)
    assert note is None or (
        note in messages[0] and f"(train {sizes[0]}, id {sizes[1]}, held-out {sizes[2]})" in messages[0]
    )
    sources, _ = _locate.locate(suites.recipe("folders", tmp_path), tmp_path)
    parts = [names_of(source.images) for source in sources if source.seeded]
    assert sum(map(len, parts)) == len(set().union(*parts)), "no image is in two sets"
    again, _ = _locate.locate(suites.recipe("folders", tmp_path), tmp_path)
    assert [source.images.names for source in sources] == [source.images.names for source in again]


def test_folders_too_small_to_hold_any_out(tmp_path):
    classes(tmp_path, count=3)
    messages: list[str] = []
    suite = load("folders", tmp_path, messages)
    assert (len(suite.train), len(by_name(suite)["id"].features), suite.held_out) == (6, 3, None)
    assert "too few images per class to take 60% to 80% of them: add images, or a folder held-out/" in messages[1]
    shutil.rmtree(tmp_path / "cat")
    classes(tmp_path / "two", count=2)
    with refused("needs its id set, .*; missing: .*two has too few images per class to take 80% to 100% of them: add"):
        load("folders", tmp_path / "two")


def test_two_sets_of_one_name_are_refused(tmp_path):
    classes(tmp_path / "train")
    classes(tmp_path / "shift" / "id")
    with refused("sets must have different names; .* has 'id' twice: rename one"):
        suites.recipe("folders", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: classes(r / "val", ["fox"]), "'id' .*those of the training set, cat, dog, eel; .*val has also fox"),
        (lambda r: shutil.rmtree(r / "val" / "eel"), "val lacks eel: add them, or write `subset: present`"),
        (lambda r: shutil.rmtree(r / "train" / "eel"), "those of the training set, cat, dog; .*val has also eel"),
        (lambda r: [shutil.rmtree(r / "train" / c) for c in ("cat", "eel")], "at least two classes; .*train has dog"),
        (lambda r: (shutil.rmtree(r / "val"), images(r / "val")), "role id need labels, such as class folders"),
        (lambda r: (shutil.rmtree(r / "train"), images(r / "train")), "role train need labels"),
        (lambda r: (shutil.rmtree(r / "train"), (r / "train").mkdir()), "'train' .*train holds none: check the path"),
        (lambda r: shutil.rmtree(r / "train"), "needs its train set, .*train; missing: move the .* or rename val"),
        (lambda r: (r / "ood" / "empty").mkdir(parents=True), "'empty' .* cannot be used: .*holds none"),
        (lambda r: (r / "val" / "fox").mkdir(), "'id' .*every class folder holds images; .*val/fox holds none"),
        (lambda r: image(r / "val" / "stray.png"), "images lie in class folders or all at the top; .*val has both"),
        (lambda r: images(r / "shift" / "flat"), "'flat' .*sets of role shift need labels"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_used_is_one_line(tmp_path, change, message):
    classes(tmp_path / "train", count=1)
    classes(tmp_path / "val", count=1)
    change(tmp_path)
    with refused(message):
        load("folders", tmp_path)


def test_roots_that_are_none(tmp_path):
    (tmp_path / "file").write_text("")
    for root in ("nowhere", "file"):
        for name in ("folders", "pacs"):
            with refused(f"--root must be a folder; .*{root} is not: check the path"):
                load(name, tmp_path / root)
    for name in ("folders", "pacs", "own.yaml"):
        for root in ({}, {"root": None}, {"root": ""}):
            with refused(f"suite '{name}' reads images from a folder: name it with --root DIR"):
                suites.load(name, **root)
