"""The embedded suites: what is in them, and that no scan is in two sets."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dissensus import suites
from dissensus._core.errors import DissensusError
from dissensus.evaluation._evaluate import evaluate
from dissensus.evaluation.suite import Suite
from dissensus.features import FeatureSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.suites._scans import CORRUPTIONS, DISTORTIONS, corrupt

SEEDS = (0, 1)
every_suite = pytest.mark.parametrize("name", ["digits", "dominoes", "dominoes-95"])
every_seed = pytest.mark.parametrize("seed", SEEDS)


def pixel_suite(name: str, seed: int = 0) -> Suite:
    """The scans themselves, before any backbone."""
    return suites.load(name, seed=seed, **({"backbone": "pixels"} if name == "digits" else {}))


@cache
def load(name: str, seed: int = 0) -> Suite:
    return pixel_suite(name, seed)


def pixels(features: FeatureSet) -> NDArray[np.float32]:
    """(N, D)."""
    return features.rows(slice(None)).numpy()


def parts(suite: Suite) -> dict[str, FeatureSet]:
    """Every set of the suite by name."""
    assert suite.held_out is not None
    parts = {"train": suite.train, "held-out": suite.held_out}
    others = {"disagreement": suite.disagreement, "labels": suite.labels}
    parts |= {name: features for name, features in others.items() if features is not None}
    return parts | {s.name: s.features for s in suite.sets}


def scans(features: FeatureSet, half: slice = slice(None)) -> set[bytes]:
    """The distinct images, or distinct halves of images, as raw bytes."""
    return {row[half].tobytes() for row in pixels(features)}


@cache
def digit_of_scan() -> dict[bytes, int]:
    scans = load_digits()
    return {row.tobytes(): int(y) for row, y in zip((scans.data / 16).astype(np.float32), scans.target, strict=True)}


def test_no_two_scans_are_equal() -> None:
    assert len(digit_of_scan()) == 1797  # else parting scans would not part images


@every_suite
@every_seed
def test_every_set_is_float32_within_the_pixel_range_and_says_where_it_is_from(name: str, seed: int) -> None:
    suite = load(name, seed)
    assert suite.name == name
    assert suite.summary == suites.summary(name) != ""
    for set_name, features in parts(suite).items():
        x = pixels(features)
        assert features.shape == suite.train.shape
        assert x.min() >= 0
        assert x.max() <= 1
        assert (np.ptp(x, axis=1) > 0.1).all(), f"no image of {set_name} is blank"
        about = features.provenance
        assert (about["suite"], about["set"], about["seed"]) == (name.removesuffix("-95"), set_name, seed)
        assert sklearn.__version__ in about["data"]


@every_suite
def test_a_seed_gives_the_same_suite_and_another_seed_another(name: str) -> None:
    first, again, other = (parts(pixel_suite(name, seed)) for seed in (3, 3, 4))
    assert first.keys() == again.keys() == other.keys()
    for key in first.keys() - {"new-digits"}:  # all scans of two digits, whatever the seed
        assert first[key].fingerprint == again[key].fingerprint
        assert first[key].fingerprint != other[key].fingerprint, key


@every_suite
def test_a_negative_seed_is_refused(name: str) -> None:
    with pytest.raises(DissensusError, match=r"seed must be within 0\.\.2147483647; got -1"):
        suites.load(name, seed=-1)


@every_suite
def test_an_ensemble_is_evaluated_on_every_set(name: str) -> None:
    suite = load(name)
    ensemble = Ensemble(tails.create("linear", suite.train.width, len(suite.train.classes)), members=2)
    frame = evaluate(ensemble, suite.sets, held_out=suite.held_out, score_names=["pds"], progress=False)
    assert set(frame["dataset"]) == {s.name for s in suite.sets}


@every_seed
def test_digits_has_its_sets_roles_and_sizes(seed: int) -> None:
    suite = load("digits", seed)
    sizes = {name: len(features) for name, features in parts(suite).items()}
    shifts = {f"{name}-{severity}": f"C-{severity}" for name in CORRUPTIONS for severity in (1, 5)}
    assert {s.name: s.family for s in suite.sets if s.role == "shift"} == shifts
    assert [s.name for s in suite.sets if s.role == "ood"] == ["new-digits", "photos"]
    assert [s.name for s in suite.sets if s.role == "id"] == ["id"]
    others = {"train": 860, "held-out": 215, "id": 359, "new-digits": 363, "photos": 300, "disagreement": 645}
    assert sizes == others | dict.fromkeys(shifts, 359)
    assert suite.train.classes == ("0", "1", "2", "4", "5", "6", "7", "8")


@every_seed
def test_digits_parts_the_scans_and_labels_each_by_its_digit(seed: int) -> None:
    sets = parts(load("digits", seed))
    apart = [scans(sets[name]) for name in ("train", "held-out", "id", "new-digits")]
    assert sum(map(len, apart)) == len(set.union(*apart)) == 1797
    for name in ("train", "held-out", "id"):
        features = sets[name]
        assert features.labels is not None
        named = [int(features.classes[y]) for y in features.labels.tolist()]
        assert named == [digit_of_scan()[row.tobytes()] for row in pixels(features)]
    assert {digit_of_scan()[scan] for scan in scans(sets["new-digits"])} == {3, 9}
    assert sets["new-digits"].labels is None
    assert sets["photos"].labels is None
    assert not scans(sets["photos"]) & digit_of_scan().keys()


@every_seed
def test_digits_keeps_classes_in_proportion(seed: int) -> None:
    sets = parts(load("digits", seed))
    for name, share in (("train", 0.6), ("held-out", 0.15), ("id", 0.25)):
        counts = sets[name].class_counts.numpy()
        whole = np.bincount(load_digits().target)[[0, 1, 2, 4, 5, 6, 7, 8]]
        assert np.abs(counts - share * whole).max() <= 2


@every_seed
def test_a_shift_set_is_the_id_images_corrupted_further_off_at_severity_5(seed: int) -> None:
    sets = parts(load("digits", seed))
    clean, labels = pixels(sets["id"]), sets["id"].labels
    assert labels is not None
    for name in CORRUPTIONS:
        distance = {}
        for severity in (1, 5):
            shifted = sets[f"{name}-{severity}"]
            expected = corrupt(clean.reshape(-1, 8, 8), name, severity, seed)
            assert np.array_equal(pixels(shifted), expected.reshape(-1, 64))
            assert shifted.labels is not None
            assert torch.equal(shifted.labels, labels)
            distance[severity] = np.linalg.norm(pixels(shifted) - clean, axis=1).mean()
        assert 0 < distance[1] < 0.6 * distance[5]


def test_digits_disagrees_on_held_out_images_in_ways_that_are_not_tested() -> None:
    sets = parts(load("digits"))
    images = pixels(sets["held-out"]).reshape(-1, 8, 8)
    expected = np.concatenate([corrupt(images, name, 3) for name in DISTORTIONS]).reshape(-1, 64)
    assert np.array_equal(pixels(sets["disagreement"]), expected)
    assert sets["disagreement"].labels is None
    assert not CORRUPTIONS.keys() & DISTORTIONS.keys()


def test_digits_takes_the_severities_asked_for() -> None:
    suite = suites.load("digits", severities=(2,), backbone="pixels")
    names = [s.name for s in suite.sets if s.role == "shift"]
    assert names == [f"{name}-2" for name in CORRUPTIONS]


UPPER, LOWER = slice(0, 64), slice(64, 128)


def read(features: FeatureSet) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The upper and the lower digit of every image, looked up among the scans."""
    upper, lower = ([digit_of_scan()[row[half].tobytes()] for row in pixels(features)] for half in (UPPER, LOWER))
    return np.array(upper), np.array(lower)


@every_seed
def test_dominoes_label_is_the_lower_digit_and_group_adds_the_upper(seed: int) -> None:
    suite = load("dominoes", seed)
    for name, features in parts(suite).items():
        upper, lower = read(features)
        assert set(upper) <= {0, 1}
        assert set(lower) <= {7, 9}
        assert features.classes == ("7", "9")
        assert features.labels is not None
        assert np.array_equal(features.labels.numpy(), lower == 9)
        if features.groups is not None:
            assert np.array_equal(features.groups.numpy(), 2 * (lower == 9) + upper)
            assert features.group_names == ("7 under 0", "7 under 1", "9 under 0", "9 under 1")
        assert (features.groups is None) == (name == "id")


def test_dominoes_pool_is_balanced_and_its_labels_are_apart() -> None:
    suite = load("dominoes")
    assert suite.pool is not None
    assert suite.labels is not None
    assert (suite.pool.labels, suite.pool.groups, suite.pool.classes) == (None, None, ())
    assert suite.disagree_on is suite.pool
    assert np.array_equal(pixels(suite.pool), pixels(suite.labels))
    assert suite.labels.groups is not None
    assert len(set(suite.labels.groups.bincount().tolist())) == 1


def test_dominoes_95_is_tied_in_95_percent() -> None:
    suite, other = load("dominoes-95"), suites.load("dominoes", tie=0.95)
    assert suite.train.fingerprint == other.train.fingerprint
    assert suite.train.provenance["tie"] == 0.95


@pytest.mark.parametrize("tie", [1.0, 0.95, 0.5])
def test_dominoes_ties_upper_to_lower_in_train_held_out_and_id_only(tie: float) -> None:
    sets = parts(suites.load("dominoes", tie=tie))
    for name in ("train", "held-out", "id"):
        upper, lower = read(sets[name])
        for label, digit in enumerate((7, 9)):
            share = (upper[lower == digit] == label).mean()
            assert abs(share - tie) <= 0.5 / (lower == digit).sum() + 1e-9
    for name in ("groups", "labels"):
        upper, lower = read(sets[name])
        assert (upper[lower == 7] == 0).mean() == (upper[lower == 9] == 0).mean() == 0.5


@every_seed
def test_dominoes_test_groups_are_balanced(seed: int) -> None:
    groups = next(s.features for s in load("dominoes", seed).sets if s.role == "groups")
    assert groups.groups is not None
    counts = groups.groups.bincount()
    assert len(counts) == 4
    assert counts.min() == counts.max() == 72


@every_seed
def test_dominoes_parts_have_scans_of_their_own(seed: int) -> None:
    sets = parts(load("dominoes", seed))
    for half in (UPPER, LOWER):
        test = scans(sets["id"], half) | scans(sets["groups"], half)
        apart = [test, *(scans(sets[name], half) for name in ("train", "held-out", "labels"))]
        assert sum(map(len, apart)) == len(set.union(*apart))
    assert scans(sets["id"], LOWER) == scans(sets["groups"], LOWER)


@pytest.mark.parametrize("tie", [0.4, 1.1, float("nan")])
def test_dominoes_refuses_a_tie_that_is_no_share(tie: float) -> None:
    with pytest.raises(DissensusError, match=r"within 0\.5\.\.1"):
        suites.load("dominoes", tie=tie)


@pytest.mark.slow
def test_digits_go_through_lite0_at_64_pixels_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few: dict[str, Any] = {"severities": (), "progress": False}  # the demo has all
    suite, plain = suites.load("digits", **few), suites.load("digits", severities=(), backbone="pixels")
    for name, features in parts(suite).items():
        same = parts(plain)[name]
        assert features.shape == (1280,)
        assert len(features) == len(same)
        assert (features.labels is None) == (same.labels is None)
        assert features.labels is None or same.labels is None or torch.equal(features.labels, same.labels)
        about = features.provenance["backbone"]
        assert (about["name"], about["size"], about["crop"], about["layers"]) == ("lite0", 64, 1.0, 1)
    assert suite.train.classes == plain.train.classes
    assert [(s.name, s.role, s.family) for s in suite.sets] == [(s.name, s.role, s.family) for s in plain.sets]

    def nothing(*args: Any) -> None:
        raise AssertionError("nothing should be extracted again")

    monkeypatch.setattr("dissensus.backbones.engines.create", nothing)
    again = suites.load("digits", **few)
    assert again.train.fingerprint == suite.train.fingerprint


def test_digits_through_a_backbone_of_ones_choice(tmp_path: Path) -> None:
    options = {"severities": (), "backbone": "test_vit", "weights": "random", "size": 32, "workers": 0}
    suite = suites.load("digits", features=tmp_path, layers=2, progress=False, **options)
    assert suite.train.shape == (64,)
    assert [s.name for s in suite.sets] == ["id", "new-digits", "photos"]
    assert (tmp_path / "digits" / "test_vit-32px-2layers" / "photos" / "index.json").is_file()
    with pytest.raises(DissensusError, match="unknown backbone 'lite9': did you mean 'lite"):
        suites.load("digits", backbone="lite9")
