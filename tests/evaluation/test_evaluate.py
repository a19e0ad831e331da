"""evaluate(): the frame's values against direct computation."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from dissensus._core.errors import DataError, DissensusError, ShapeError, UnknownNameError
from dissensus.evaluation import predictions, soups
from dissensus.evaluation._evaluate import COLUMNS, evaluate
from dissensus.evaluation.suite import SuiteSet
from dissensus.features import FeatureSet
from dissensus.functional import metrics, scores
from dissensus.functional.metrics import detection
from dissensus.training._fit import fit
from tests.conftest import blobs, linear
from tests.evaluation.conftest import value


def test_the_frame_is_tidy(frame):
    assert tuple(frame.columns) == COLUMNS
    assert not frame.isna().any().any()
    assert not frame.duplicated(list(COLUMNS[:-1])).any()
    assert set(frame["members"]) == {4}


def test_accuracies_are_those_of_members_ensemble_and_soup(frame, ensemble, sets):
    x, labels = sets[2].features.rows(slice(None)), sets[2].features.labels
    with torch.no_grad():
        logits = ensemble(x)
        soup = ensemble.soup()(x)
    single = (logits.argmax(-1) == labels).double().mean(1)
    expected = {
        "prediction": (logits.mean(0).argmax(-1) == labels).double().mean(),
        "probability": (logits.softmax(-1).mean(0).argmax(-1) == labels).double().mean(),
        "soup": (soup.argmax(-1) == labels).double().mean(),
        "members": single.mean(),
        "oracle": single.max(),
    }
    for aggregate, accuracy in expected.items():
        assert value(frame, dataset="noisy-5", aggregate=aggregate, metric="accuracy") == pytest.approx(float(accuracy))


def test_the_greedy_soup_is_not_worse_than_the_best_member_on_held_out_data(ensemble):
    held_out = blobs(seed=4)
    made = soups.make_soups(ensemble, held_out)
    single = [soups.accuracy(ensemble.member(i), held_out) for i in range(4)]
    assert soups.accuracy(made["greedy-soup"], held_out) >= max(single)


def test_detection_compares_each_set_with_the_id_set(frame, ensemble, sets):
    with torch.no_grad():
        inside, away = (scores.pds(ensemble(s.features.rows(slice(None)))) for s in (sets[0], sets[3]))
    for metric, expected in detection(inside, away).items():
        assert value(frame, dataset="away", score="pds", metric=metric) == pytest.approx(expected, abs=1e-6)
    assert value(frame, dataset="away", score="pds", metric="mean") == pytest.approx(float(away.mean()), rel=1e-5)
    assert frame[(frame["dataset"] == "id") & (frame["metric"] == "auroc")].empty
    assert frame[(frame["dataset"] == "away") & (frame["metric"] == "accuracy")].empty


def test_worst_group_stands_for_sets_with_groups(frame, ensemble, sets):
    x, labels, groups = sets[4].features.rows(slice(None)), sets[4].features.labels, sets[4].features.groups
    with torch.no_grad():
        hits = (ensemble(x).mean(0).argmax(-1) == labels).double()
    expected = min(float(hits[groups == g].mean()) for g in (0, 1))
    assert value(frame, dataset="halves", aggregate="prediction", metric="worst_group") == pytest.approx(expected)


def test_small_batches_give_the_same_frame(frame, ensemble, sets, monkeypatch):
    monkeypatch.setattr(predictions, "CHUNK_ELEMENTS", 4 * 3 * 7)  # seven samples at a time
    about = {"method": "sed-a2d", "active": 2, "diversity": 0.5, "seed": 0}
    again = evaluate(ensemble, sets, about=about, held_out=blobs(seed=4), progress=False)
    pd.testing.assert_frame_equal(again, frame, rtol=1e-4)


def test_a_subset_of_classes_is_masked_first_or_voted_as_the_authors_did(ensemble):
    """Only classes 0 and 2 occur; masking lets members choose between those, votes for class 1 are lost."""
    features = blobs(seed=1, noise=3.0)
    kept = features.subset(features.labels != 1)
    sets = [SuiteSet("id", "id", blobs(seed=2)), SuiteSet("part", "shift", kept, subset=(0, 2))]
    with torch.no_grad():
        logits = ensemble(kept.rows(slice(None)))
    masked = torch.tensor([0, 2])[logits[..., [0, 2]].mean(0).argmax(-1)]
    frame = evaluate(ensemble, sets, progress=False)
    expected = float((masked == kept.labels).double().mean())
    assert value(frame, dataset="part", aggregate="prediction", metric="accuracy") == pytest.approx(expected)

    shares = torch.nn.functional.one_hot(logits.argmax(-1), 3).sum(0)[:, [0, 2]]
    voted = torch.tensor([0, 2])[shares.argmax(-1)]
    frame = evaluate(ensemble, sets, protocol="vote", progress=False)
    expected = float((voted == kept.labels).double().mean())
    assert value(frame, dataset="part", aggregate="prediction", metric="accuracy") == pytest.approx(expected)
    with pytest.raises(DataError, match="outside the subset of classes: 2"):
        evaluate(ensemble, [sets[0], SuiteSet("part", "shift", kept, subset=(0, 1))], progress=False)


def test_a_registered_metric_is_in_the_frame(ensemble, sets, monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", metrics.METRICS.copy())

    @metrics.register(heading="errors", better="lower", percent=True)
    def errors(correct):
        return float(1 - correct.mean())

    frame = evaluate(ensemble, sets, score_names=["pds"], progress=False)
    for aggregate in ("prediction", "soup", "members"):
        where = {"dataset": "id", "aggregate": aggregate}
        assert value(frame, metric="errors", **where) == pytest.approx(1 - value(frame, metric="accuracy", **where))
    best = value(frame, dataset="id", aggregate="oracle", metric="accuracy")
    assert value(frame, dataset="id", aggregate="oracle", metric="errors") == pytest.approx(1 - best)


def test_a_users_own_score_is_evaluated_too(ensemble, sets):
    def own_spread(logits):
        return logits.std(dim=0).mean(dim=-1)

    scores.register(own_spread)
    try:
        frame = evaluate(ensemble, sets, score_names=["own_spread"], progress=False)
        assert 0 <= value(frame, dataset="away", score="own_spread", metric="auroc") <= 1
        assert set(frame["score"]) == {"", "own_spread", "pds", "unique"}
    finally:
        del scores.SCORES["own_spread"]


def test_fitted_scores_are_rows_like_others(ensemble, sets, frame):
    assert set(scores.of_features()) == set(ensemble.fitted)
    assert set(frame["score"]) >= {"", *scores.SCORES}
    x, inside = (sets[i].features.rows(slice(None)) for i in (3, 0))
    with torch.no_grad():
        away, near = (scores.compute("mahalanobis", ensemble(f), f, ensemble.fitted) for f in (x, inside))
    expected = metrics.detection(near, away)
    for metric in ("auroc", "fpr95"):
        found = value(frame, dataset="away", score="mahalanobis", metric=metric)
        assert found == pytest.approx(expected[metric], abs=1e-6)
    only = evaluate(ensemble, sets, score_names=["knn", "pds", "knn"], progress=False)
    assert set(only["score"]) == {"", "knn", "pds", "unique"}


def test_a_single_model_has_distances_too(sets):
    alone = fit(linear(members=1), blobs(), "single", epochs=5, lr=0.05, batch_size=32, progress=False)
    frame = evaluate(alone, sets, progress=False)
    assert value(frame, dataset="away", score="knn", metric="auroc") > 0.8


def test_a_score_that_is_not_fitted_is_left_out_or_refused(sets):
    plain = fit(linear(), blobs(), "deep-ensemble", epochs=1, scores=["mahalanobis"], progress=False)
    frame = evaluate(plain, sets, progress=False)
    assert set(frame["score"]) == {"", "mahalanobis", *scores.of_logits()}
    with pytest.raises(DissensusError, match="score 'knn' must be fitted to training features; this ensemble does not"):
        evaluate(plain, sets, score_names=["pds", "knn"])


def test_misuse(ensemble, sets):
    with pytest.raises(DataError, match="exactly one id set to compare with; got none"):
        evaluate(ensemble, sets[1:])
    with pytest.raises(DataError, match="'id' occurs 2 times"):
        evaluate(ensemble, [sets[0], SuiteSet("id", "ood", sets[3].features)])
    with pytest.raises(DataError, match="sets of role shift need labels; away has none"):
        evaluate(ensemble, [sets[0], SuiteSet("away", "shift", sets[3].features)])
    with pytest.raises(DataError, match="a groups set needs groups"):
        evaluate(ensemble, [sets[0], SuiteSet("g", "groups", blobs())])
    with pytest.raises(ShapeError, match="features of width 6; wide has"):
        evaluate(ensemble, [sets[0], SuiteSet("wide", "ood", blobs(width=7))])
    with pytest.raises(DataError, match="the ensemble has 3 classes; many has label 4"):
        evaluate(ensemble, [sets[0], SuiteSet("many", "shift", blobs(classes=5))])
    with pytest.raises(DataError, match=r"two or more different classes of the ensemble; part has 0, 7"):
        evaluate(ensemble, [sets[0], SuiteSet("part", "shift", blobs(), subset=(0, 7))])
    with pytest.raises(ShapeError, match="features of width 6; held-out has"):
        evaluate(ensemble, sets, held_out=blobs(width=7))
    named = FeatureSet.from_arrays(blobs().rows(slice(None)), blobs().labels, classes=["b", "a", "c"])
    with pytest.raises(DataError, match="those of the training set, a, b, c; named has b, a, c"):
        evaluate(ensemble, [sets[0], SuiteSet("named", "shift", named)], classes=["a", "b", "c"])
    assert not ensemble.training
    with pytest.raises(UnknownNameError, match="did you mean 'pds'"):
        evaluate(ensemble, sets, score_names=["pdss"])
