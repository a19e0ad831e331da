"""Suites of features: corruptions, where features are kept, and what is never extracted twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from dissensus import suites
from dissensus._core.errors import DissensusError
from tests.suites.helpers import by_name, load, recipe_of, refused
from tests.trees import classes, image


def test_corruptions_are_computed_on_the_fly_the_same_each_time(tiny, tmp_path):
    text = yaml.safe_load((Path(suites.__file__).parent / "recipes" / "tiny-imagenet.yaml").read_text())
    text["sets"]["C"] |= {"corruption": ["brightness", "gaussian-noise"], "severities": 5}
    suite = load(recipe_of(tmp_path, yaml.safe_dump(text)), tiny, features=tmp_path / "one")
    again = load(tmp_path / "own.yaml", tiny, features=tmp_path / "two")
    other = load(tmp_path / "own.yaml", tiny, features=tmp_path / "two", seed=1)
    assert suite.name == "tiny-imagenet"
    names = ["C-brightness-5", "C-gaussian-noise-5"]
    assert [s.name for s in suite.sets if s.role == "shift"] == names
    clean = by_name(suite)["val"].features
    for name in names:
        features = by_name(suite)[name].features
        assert features.labels.equal(clean.labels)
        assert not np.allclose(features.rows(slice(None)), clean.rows(slice(None)), atol=1e-3)
        assert features.fingerprint == by_name(again)[name].features.fingerprint
    noisy = [by_name(each)[names[1]].features.fingerprint for each in (suite, other)]
    assert noisy[0] != noisy[1]
    assert suite.train.fingerprint != other.train.fingerprint
    assert suite.train.provenance["backbone"]["size"] == 32
    folder = tmp_path / "two" / "tiny-imagenet" / "test_vit-32px"
    assert {"train", "train-seed1", "val", "C-gaussian-noise-5-seed1"} <= {path.name for path in folder.iterdir()}


def test_the_extra_for_corruptions_is_missed_before_any_work(tiny, monkeypatch, tmp_path):
    def missing(*args, **rest):
        raise DissensusError("corruptions need imagecorruptions: pip install 'dissensus[corruptions]'")

    monkeypatch.setattr("dissensus.images.corruptions.corrupt", missing)
    with refused("corruptions need imagecorruptions: pip install"):
        load("tiny-imagenet", tiny, features=tmp_path / "features")
    assert not (tmp_path / "features").exists()


def test_features_are_not_kept_among_the_images(tmp_path):
    classes(tmp_path, count=5)
    with refused("features must be kept outside of the images; .*runs is inside .*: choose another --out"):
        load("folders", tmp_path, features=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def small(tmp_path):
    classes(tmp_path / "data" / "train", count=2)
    classes(tmp_path / "data" / "val", count=1)
    classes(tmp_path / "data" / "held-out", count=1)
    return tmp_path / "data"


def test_features_of_two_backbones_are_kept_apart_and_of_two_weights_refused(small, tmp_path, monkeypatch):
    keep = tmp_path / "features"
    first = load("folders", small, features=keep)
    other = load("folders", small, features=keep, size=48)
    assert first.train.fingerprint != other.train.fingerprint
    load("folders", small, features=keep, backbone="test_resnet")
    load("folders", small, features=keep, augment=2)
    load("folders", small, features=keep, layers=2)
    assert sorted(path.name for path in (keep / "folders").iterdir()) == [
        "test_resnet-32px", "test_vit-32px", "test_vit-32px-2layers", "test_vit-48px",
    ]  # fmt: skip
    assert (keep / "folders" / "test_vit-32px" / "train-2passes" / "index.json").is_file()
    with refused("holds other features .backbone crop is .* there, 0.5 here.: choose another folder, or delete it"):
        load("folders", small, features=keep, crop=0.5)
    image(small / "train" / "cat" / "new.png")
    with refused("holds other features .images is"):
        load("folders", small, features=keep)


def test_the_cache_is_never_in_the_way(small, cache):
    once = load("folders", small)
    for options in ({"crop": 0.5}, {"augment": 2}, {"dtype": "float32"}, {"seed": 1}):
        assert len(load("folders", small, **options).train)
    image(small / "train" / "cat" / "new.png")
    assert len(load("folders", small).train) == len(once.train) + 1
    assert cache in once.train.folder.parents


def test_a_second_load_extracts_nothing(small, monkeypatch):
    first = load("folders", small)

    def no_engine(*args):
        raise AssertionError("nothing should be extracted again")

    monkeypatch.setattr("dissensus.backbones.engines.create", no_engine)
    assert load("folders", small).train.fingerprint == first.train.fingerprint
