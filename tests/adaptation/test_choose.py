"""The choice: the default is left for a gain beyond noise only, accuracy is kept, and what is enough is said."""

from __future__ import annotations

import pytest
import torch

from dissensus.adaptation.candidates import DEEP, INCUMBENT, SINGLE, Candidate, candidates, eligible, expressions
from dissensus.adaptation.choose import Entry, accurate, choose
from dissensus.adaptation.rank import Ranked
from dissensus.functional.expressions import DEFAULT_SCORE, score_names
from dissensus.models import tails
from tests.conftest import blobs

SMOOTH = Candidate("deep-ensemble", label_smoothing=0.1)
OTHER = "4*mahalanobis+2*pds+feature_norm"
RIGHT = torch.ones(1000)


def entry(candidate, score, classes, jigsaw=None, *, noise=0.0, wrong=0):
    """An entry with these AUROCs, whose difference to others has this standard error."""
    kinds = {"classes": classes, "jigsaw": classes if jigsaw is None else jigsaw}
    correct = RIGHT.clone()
    correct[:wrong] = 0
    return Entry(candidate, score, Ranked(kinds, kinds, torch.tensor([noise, 0.0]), torch.empty(0)), correct, 1.0, 1.0)


def plain(value=0.9, deep=0.85, single=0.8):
    return [
        entry(INCUMBENT, DEFAULT_SCORE, value),
        entry(DEEP, DEFAULT_SCORE, deep),
        entry(SINGLE, DEFAULT_SCORE, single),
    ]


def chosen(entries):
    choice = choose(entries, DEFAULT_SCORE)
    return choice.entry.candidate, choice.entry.score


def test_the_default_stays_without_a_gain():
    choice = choose(plain(), DEFAULT_SCORE)
    assert (choice.entry.candidate, choice.entry.score) == (INCUMBENT, DEFAULT_SCORE)
    assert choice.reason.startswith(f"The default score is kept, sed-a2d with {DEFAULT_SCORE}: nothing has a higher")


def test_a_gain_beyond_noise_is_taken():
    entries = [*plain(), entry(INCUMBENT, OTHER, 0.92, noise=0.005)]
    assert chosen(entries) == (INCUMBENT, OTHER)
    reason = choose(entries, DEFAULT_SCORE).reason
    assert reason.startswith(f"Chosen: sed-a2d with {OTHER}, with a mean AUROC of 0.920 on the stand-ins, +0.020 ±")


@pytest.mark.parametrize(("value", "noise", "why"), [(0.92, 0.01, "within noise"), (0.9015, 0.0, "too small")])
def test_a_gain_within_noise_is_not(value, noise, why):
    entries = [*plain(), entry(INCUMBENT, OTHER, value, noise=noise)]
    assert chosen(entries) == (INCUMBENT, DEFAULT_SCORE)
    assert f", {why}." in choose(entries, DEFAULT_SCORE).reason


def test_a_gain_that_costs_another_kind_is_not_taken():
    entries = [*plain(), entry(INCUMBENT, OTHER, 0.88, 0.96)]
    assert chosen(entries) == (INCUMBENT, DEFAULT_SCORE)
    assert "but it loses 0.020 on classes" in choose(entries, DEFAULT_SCORE).reason


def test_another_ensemble_must_gain_over_the_default_with_its_best_score():
    better = entry(INCUMBENT, OTHER, 0.94)
    assert chosen([*plain(), better, entry(SMOOTH, OTHER, 0.941)]) == (INCUMBENT, OTHER)
    assert chosen([*plain(), better, entry(SMOOTH, OTHER, 0.96)]) == (SMOOTH, OTHER)


@pytest.mark.parametrize("score", ["pds", "ensemble_entropy", "mahalanobis", "4*mahalanobis+2*pds"])
def test_a_score_that_does_not_see_far_inputs_is_not_chosen(score):
    assert not eligible(score)
    assert chosen([*plain(), entry(INCUMBENT, score, 0.99)]) == (INCUMBENT, DEFAULT_SCORE)


def test_an_inaccurate_ensemble_is_not_chosen():
    inaccurate = entry(SMOOTH, OTHER, 0.99, wrong=20)
    assert SMOOTH not in accurate([*plain(), inaccurate])
    assert chosen([*plain(), inaccurate]) == (INCUMBENT, DEFAULT_SCORE)
    assert chosen([*plain(), entry(SMOOTH, OTHER, 0.99, wrong=4)]) == (SMOOTH, OTHER)


def test_an_inaccurate_default_is_left_for_the_best_of_the_others():
    entries = plain()
    entries[0] = entry(INCUMBENT, DEFAULT_SCORE, 0.9, wrong=30)
    choice = choose(entries, DEFAULT_SCORE)
    assert choice.entry.candidate == DEEP
    assert "less accurate" in choice.reason


def test_it_says_when_less_is_enough():
    assert "A single model is enough" in choose(plain(single=0.9), DEFAULT_SCORE).reason
    reason = choose(plain(deep=0.899), DEFAULT_SCORE).reason
    assert "A single model is not as good: 0.800" in reason
    assert "A deep ensemble is enough here: 0.899" in reason
    assert "enough" not in choose(plain(), DEFAULT_SCORE).reason
    entries = plain(single=0.9)
    entries[2] = entry(SINGLE, DEFAULT_SCORE, 0.9, wrong=50)
    assert "A single model is not as good" in choose(entries, DEFAULT_SCORE).reason


def test_candidates_begin_with_the_default_and_suit_the_features():
    made = candidates(blobs())
    assert made[:3] == [INCUMBENT, DEEP, SINGLE]
    assert len(set(made)) == len(made) == len({each.name for each in made})
    assert {"layer", "none"} <= {each.norm for each in made}
    assert {"layer", "l2"} <= {each.norm for each in candidates(blobs(), "none")}
    assert "mlp" in {each.tail for each in made}
    for each in made:
        each.options(0).suited(each.method)
        each.ensemble(blobs(), 3, 0)


def test_an_mlp_is_not_tried_where_it_is_expensive(monkeypatch):
    """Its cost grows with the number of classes."""
    two, many = blobs(200, classes=2), blobs(200, classes=100)
    parameters = [sum(p.numel() for p in tails.create("mlp", 6, c).parameters()) for c in (2, 100)]
    monkeypatch.setattr("dissensus.adaptation.candidates.MLP_COST", 200 * parameters[1] - 1)
    assert "mlp" in {each.tail for each in candidates(two)}
    assert "mlp" not in {each.tail for each in candidates(many)}


def test_expressions_begin_with_the_default_and_need_what_was_fitted():
    everything = expressions(("mahalanobis", "relative_mahalanobis", "knn", "feature_norm"))
    assert everything[0] == DEFAULT_SCORE
    assert len(everything) == len(set(everything))
    assert sum(map(eligible, everything)) > 10
    few = expressions(("knn",))
    assert few[0] == "pds"
    assert {"knn", "pds"} <= set(few)
    assert not any("mahalanobis" in score_names(text)[0] for text in few)
