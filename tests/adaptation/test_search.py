"""Search: it keeps to its budget, times a training on any features, and pools what all folds have."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from dissensus import FeatureSet
from dissensus._core.errors import DissensusError
from dissensus.adaptation import search, splits, stand_ins
from dissensus.adaptation.candidates import DEEP
from dissensus.adaptation.search import NO_TIME, Clock, Search
from dissensus.adaptation.trials import Bench, Store
from tests.adaptation.tuning import quiet, ticking, trained
from tests.conftest import blobs

pytestmark = pytest.mark.usefixtures("few")


def test_a_budget_ends_the_search_with_the_default_at_hand(features, monkeypatch):
    ticking(monkeypatch)
    tuned = quiet(features, budget=550)
    assert tuned.reason == f"{NO_TIME} The budget ended the search after 4 of 8 trainings."
    assert tuned.method == "sed-a2d"
    assert tuned.frame["ensemble"].nunique() == 4
    assert set(tuned.frame["share"]) == {0.25}


def test_a_budget_too_small_is_one_line(features):
    with pytest.raises(DissensusError, match=r"must cover the training of the winner, about .* s here") as caught:
        quiet(features, budget=0.001)
    assert "\n" not in str(caught.value)


def test_the_first_training_must_fit_into_the_budget(features, monkeypatch):
    """It is expected to take as long as the winner's, in each of the folds."""
    monkeypatch.setattr(Clock, "reserve", lambda self, *rest: setattr(self, "reserved", 1000.0))
    seen = trained(monkeypatch)
    tuned = quiet(features, budget=1240)
    assert seen == ["sed-a2d"], "the winner"
    assert tuned.reason == f"{NO_TIME} The budget ended the search after 0 of 8 trainings."
    assert tuned.document.lines == ()
    assert quiet(features, budget=1300).document.lines != ()


def test_features_sorted_by_class_are_timed(monkeypatch):
    monkeypatch.setattr(search, "PROBE", 1)
    labels = np.repeat([0, 1, 2], 1000)
    clock = Clock(1e6)
    clock.reserve(FeatureSet.from_arrays(np.eye(3)[labels], labels), 2, 0)
    assert clock.reserved > 0


@pytest.mark.parametrize(
    "labels", [np.repeat([0, 1], 50), np.arange(100) % 2, np.arange(100) == 99, np.arange(100) != 99]
)
def test_a_part_to_time_has_two_classes(labels):
    features = FeatureSet.from_arrays(np.ones((100, 2)), labels.astype(int))
    for count in (2, 9, 200):
        rows = search._some(features, count)
        assert len(set(rows.tolist())) == min(count, 100)
        assert len(torch.unique(features.labels[rows])) == 2


def test_timing_a_training_does_not_warn(features):
    """It is meant to be short, so that it could go on is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Clock(1e6).reserve(features, 3, 0)


@pytest.mark.filterwarnings("ignore:the score")
@pytest.mark.parametrize(("counts", "seed"), [([1] * 20 + [2] * 4, 76), ([1] * 20 + [2] * 4 + [3], 2)])
def test_a_score_must_be_fitted_in_every_fold(counts, seed, monkeypatch):
    """In the first or second fold, every class that is kept has a single sample: mahalanobis cannot be fitted."""
    monkeypatch.setattr(splits, "FOLDS", 3)
    labels = np.repeat(np.arange(len(counts)), counts)
    x = np.eye(25)[labels] + 0.1 * np.random.default_rng(0).normal(size=(len(labels), 25))
    tuned = quiet(FeatureSet.from_arrays(x, labels), seed=seed, held_out=blobs(60, width=25))
    assert "knn" in set(tuned.frame["score"])
    assert not tuned.frame["score"].str.contains("mahalanobis").any()
    assert tuned.detector.predict(x).score.isfinite().all()


def test_a_fold_may_lack_the_classes(features, tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "FOLDS", 2)
    first, second = splits.folds(features.labels.numpy(), np.arange(len(features)), 0)
    folds, places = [first, replace(second, outside=second.outside[:0])], [np.arange(20)] * 2
    views = [{"jigsaw": features.subset(fold.inside[:20])} for fold in folds]
    bench = Bench(features, folds, views, Store(tmp_path), 2, 0)
    weights, rank = [], search.rank
    monkeypatch.setattr(search, "rank", lambda *rest: (weights.append(rest[-1]), rank(*rest))[1])
    entries = Search(bench, places, Clock(None), False, str)._measure(DEEP, 0.25)
    assert set(entries[0].ranked.kinds) == {"classes", "jigsaw"}
    assert weights[0] == {"classes": 0.5, "jigsaw": 0.25}
    assert weights[-1] == {"jigsaw": 0.25}


def test_views_are_made_while_there_is_time(extracted, pictures, tmp_path):
    def views(has_time):
        rows = np.arange(4)
        return stand_ins.extract_views(
            extracted, pictures, rows, tmp_path, seed=0, progress=False, notify=str, has_time=has_time
        )

    answers = itertools.chain([True, True], itertools.repeat(False))
    assert list(views(lambda: next(answers))) == ["jigsaw", "speckle"]
    assert list(views(lambda: False)) == ["jigsaw", "speckle"], "what is there takes no time"
    assert list(views(lambda: True)) == ["jigsaw", "speckle", "box_blur", "recolour"]


def test_a_budget_ends_the_making_of_views_and_a_larger_one_continues(extracted, pictures, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        ticking(patch)
        tuned = quiet(extracted, images=pictures, out=tmp_path / "run", budget=250)
    assert tuned.reason.startswith(NO_TIME)
    assert tuned.document.stand_ins == ()
    again = quiet(extracted, images=pictures, out=tmp_path / "run")
    assert again.document.stand_ins == ("classes", "jigsaw", "speckle", "box_blur", "recolour")
