"""Scores of one of several backbones: names, weights, and the same values as on the backbone alone."""

from __future__ import annotations

import pytest
import torch

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.functional import expressions, scores
from dissensus.functional.fitted import Rows
from dissensus.functional.parts import PartScore, parts_of, spread
from tests.conftest import blobs

FITTED = ("mahalanobis@a", "feature_norm@a", "gaussian@a", "mahalanobis@b", "feature_norm@b", "gaussian@b")


def test_a_fitted_score_is_of_every_backbone_and_one_of_logits_of_all_members():
    names, weights = spread(("mahalanobis", "pds", "knn@b"), (2.0, 1.0, 0.5), ("a", "b", "c"))
    assert names == ("mahalanobis@a", "mahalanobis@b", "mahalanobis@c", "pds", "knn@b")
    assert weights == (2, 2, 2, 3, 0.5), "three backbones count three times"
    assert spread(("pds",), (1.0,), ()) == (("pds",), (1.0,)), "one backbone: as it is"
    assert spread(("pds",), (1.0,), ("a", "b")) == (("pds",), (1.0,)), "the weight of a score alone does not matter"
    assert parts_of(FITTED) == ("a", "b")


def test_the_default_is_the_usual_one_on_every_backbone():
    names, weights = expressions.choose(None, FITTED)
    assert dict(zip(names, weights, strict=True)) == {
        "mahalanobis@a": 4, "mahalanobis@b": 4, "ensemble_entropy": 4, "feature_norm@a": 1, "feature_norm@b": 1
    }  # fmt: skip
    assert expressions.default_score(FITTED, alone=True) == "pds"
    assert expressions.choose("gaussian", FITTED)[0] == ("gaussian@a", "gaussian@b")


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ("pds@a", "a score of logits is of all members, whatever their backbone; got pds@a: write pds"),
        ("gaussian@c", "'gaussian@c' must be fitted"),
        ("knn", "'knn@a' must be fitted"),
        ("gaussian+gaussian@a", "scores to combine must differ"),
        ("gausian@a", "did you mean 'gaussian'"),
    ],
)
def test_scores_that_cannot_be(score, words):
    with pytest.raises(DissensusError, match=words):
        expressions.choose(score, FITTED)
    with pytest.raises(UnknownNameError):
        scores.SCORES["@a"]


def test_a_part_has_the_values_of_its_backbone_alone():
    train = blobs()
    score = scores.SCORES["mahalanobis"]
    fitted = score(score.fit(Rows(train, train.labels, 3), train.labels))
    x, logits = blobs(20, seed=3).rows(slice(None)), torch.randn(5, 20, 3)
    joined = torch.cat([torch.randn(20, 4), x, torch.randn(20, 2)], 1)
    part = PartScore(fitted, slice(4, 10), (6,), slice(1, 3))
    assert scores.is_fitted("mahalanobis@b")
    value = scores.compute("mahalanobis@b", logits, joined, {"mahalanobis@b": part})
    torch.testing.assert_close(value, fitted(x, logits[1:3]))
    with pytest.raises(DissensusError, match="fitted with its run"):
        PartScore.fit(Rows(train, train.labels, 3), train.labels)
