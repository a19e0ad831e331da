"""Jigsaws of the training images as a disagreement set: in Python, and by --disagreement self."""

from __future__ import annotations

import pytest
import torch

from dissensus import backbones, extract
from dissensus.features import FeatureSet
from dissensus.images import ImageSet, standins
from dissensus.suites.destroyed import destroyed_views
from dissensus.training import Run
from tests.commands import refuse, run
from tests.suites.helpers import load, refused
from tests.trees import TINY_FLAGS, classes

QUICK = ["--epochs", "1", "--no-progress"]


def disagreement(folder) -> str | None:
    return Run.open(folder).settings["disagreement"]


@pytest.fixture
def photos(tmp_path):
    return classes(tmp_path / "photos", count=8, side=32)


@pytest.fixture
def features(photos, tmp_path):
    backbone = backbones.create("test_vit", "random", 1, size=32)
    return extract(ImageSet.find(photos), backbone, tmp_path / "features", workers=0, progress=False)


def test_the_view_is_among_the_views():
    assert standins.DESTROYING in standins.VIEWS


def test_views_are_jigsaws_of_every_image_beside_the_features(features, photos, tmp_path, monkeypatch):
    views = destroyed_views(features, ImageSet.find(photos), workers=0, progress=False)
    assert views.folder == tmp_path / "features-jigsaw"
    assert (len(views), views.shape, views.labels, views.groups) == (24, features.shape, None, None)
    backbone = backbones.create("test_vit", "random", 1, size=32)
    expected = extract(ImageSet.find(photos), backbone, tmp_path / "x", view="jigsaw", workers=0, progress=False)
    assert torch.equal(views.rows(slice(None)), expected.rows(slice(None)))

    def no_engine(*args):
        raise AssertionError("nothing should be extracted again")

    monkeypatch.setattr("dissensus.backbones.engines.create", no_engine)
    again = destroyed_views(features, ImageSet.find(photos), progress=False)
    assert again.fingerprint == views.fingerprint


def test_views_of_a_subset_are_in_the_cache(features, photos, cache):
    some = ImageSet.find(photos).subset([3, 9, 20])
    views = destroyed_views(features.subset([3, 9, 20]), some, workers=0, progress=False)
    assert len(views) == 3
    assert cache in views.folder.parents


def test_other_images_or_no_backbone_are_refused(features, photos, tmp_path):
    other = classes(tmp_path / "other", count=8, side=16)
    with refused("images must be those that the features were extracted from"):
        destroyed_views(features, ImageSet.find(other))
    with refused("need the backbone of the features; these name none"):
        destroyed_views(FeatureSet.from_arrays(torch.ones(24, 3)), ImageSet.find(photos))


@pytest.mark.parametrize("method", ["a2d", "sed-a2d"])
def test_train_disagrees_on_views_of_its_own_images(method, features, photos, tmp_path, capsys):
    command = ["train", features.folder, "--method", method, *QUICK]
    flags = ["--disagreement", "self", "--images", photos]
    code, _, err = run(capsys, *command, *flags, "--out", tmp_path / "run")
    assert code == 0, err
    views = FeatureSet.open(tmp_path / "features-jigsaw")
    assert disagreement(tmp_path / "run") == views.fingerprint


def test_train_misuse_is_one_line(features, photos, tmp_path, capsys):
    command = ["train", features.folder, "--out", tmp_path / "run", *QUICK]
    own = ["--disagreement", "self"]
    assert "makes views of the training images; there are none: add --images DIR" in refuse(
        capsys, *command, "--method", "a2d", *own
    )
    assert "--images are for --disagreement self" in refuse(capsys, *command, "--images", photos)
    assert "single take no disagreement set; got --disagreement self: leave it out" in refuse(
        capsys, *command, "--method", "single", *own, "--images", photos
    )
    assert "add --images DIR" in refuse(
        capsys, "train", "dominoes", "--out", tmp_path / "run", "--method", "a2d", *own, *QUICK
    )
    assert not (tmp_path / "run").exists()


def test_run_gives_the_views_to_every_method_that_takes_a_set(photos, tmp_path, capsys):
    command = ["run", "--root", photos, "--out", tmp_path / "run", "--epochs", "1", *TINY_FLAGS]
    code, _, err = run(capsys, *command, "--disagreement", "self", "--methods", "single", "a2d", "sed-a2d")
    assert code == 0, err
    views = FeatureSet.open(tmp_path / "run" / "features" / "folders" / "test_vit-32px" / "train-jigsaw")
    prints = [disagreement(tmp_path / "run" / method) for method in ("single", "a2d", "sed-a2d")]
    assert prints == [None, views.fingerprint, views.fingerprint]


def test_run_misuse_is_one_line(photos, tmp_path, capsys):
    command = ["run", "--out", tmp_path / "run", *QUICK, "--disagreement", "self", "--methods"]
    assert "single, deep-ensemble take no disagreement set" in refuse(
        capsys, *command, "single", "deep-ensemble", "--root", photos
    )
    assert "there are none: use a suite of images" in refuse(capsys, *command, "a2d", "--suite", "dominoes")


def test_a_study_has_a2d_where_the_suite_has_no_set(photos, tmp_path, capsys):
    root = tmp_path / "root"
    classes(root / "shift" / "odd", count=2)
    photos.rename(root / "train")
    flags = ["--suite", "folders", "--root", root, "--features", tmp_path / "features", *TINY_FLAGS, "--epochs", "1"]
    command = ["study", "generalization", *flags, "--quick", "--out", tmp_path / "study"]
    code, out, err = run(capsys, *command, "--disagreement", "self")
    assert code == 0, err
    assert "a2d" in [line.split()[0] for line in out.splitlines() if line.strip()]
    assert (tmp_path / "features" / "folders" / "test_vit-32px" / "train-jigsaw").is_dir()


def test_a_pair_of_pacs_has_images_to_make_views_of(tmp_path):
    for style in ("photo", "sketch"):
        classes(tmp_path / style, ("elephant", "giraffe"), 10)
    suite = load("pacs-tied", tmp_path)
    views = destroyed_views(suite.train, suite.train_images, workers=0, progress=False)
    assert (len(views), views.shape) == (len(suite.train), suite.train.shape)
