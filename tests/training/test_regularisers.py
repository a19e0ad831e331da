"""Regularisers are looked up by name: your own trains, an unknown one is refused before anything is written."""

from __future__ import annotations

import pytest
import torch

from dissensus._core.errors import UnknownNameError
from dissensus.functional import losses, scores
from dissensus.functional.losses import Regulariser
from dissensus.training import methods
from dissensus.training._fit import fit
from dissensus.training.methods import Method
from tests.conftest import linear

QUICK = {"epochs": 8, "lr": 0.05, "batch_size": 32, "progress": False}


def weighted_a2d(logits, weights):
    return (weights * losses.a2d(logits)).sum()


@pytest.mark.parametrize("own", [Regulariser(losses.a2d), Regulariser(weighted_a2d, whole_batch=True)])
@pytest.mark.parametrize("method", ["sed-a2d", "a2d"])
def test_a_regulariser_of_yours_trains_as_the_built_in_one(own, method, train, elsewhere, monkeypatch):
    recipe = methods.METHODS[method]
    monkeypatch.setitem(losses.REGULARISERS, "own", own)
    monkeypatch.setitem(methods.METHODS, "mine", Method("mine", "own", recipe.disagree_on, recipe.active))
    options = {**QUICK, "disagreement": elsewhere if recipe.takes_set else None}
    expected, got = (fit(linear(), train, name, **options) for name in (method, "mine"))
    for name, value in expected.stacked().items():
        torch.testing.assert_close(got.stacked()[name], value, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_regulariser_of_yours_acts(train, monkeypatch):
    @losses.register
    def opposed(logits):
        return -logits.softmax(-1).std(0).mean(-1)

    try:
        monkeypatch.setitem(methods.METHODS, "mine", Method("members' probabilities differ", "opposed"))
        x = train.rows(slice(None))
        with torch.no_grad():
            low, high = (scores.pds(fit(linear(), train, "mine", diversity=d, **QUICK)(x)).mean() for d in (0, 5))
        assert high > low + 0.05
    finally:
        del losses.REGULARISERS["opposed"]


def test_an_unknown_regulariser_is_refused_before_anything_is_written(train, tmp_path, monkeypatch):
    monkeypatch.setitem(methods.METHODS, "mine", Method("a slip of the pen", "a2b", active=2))
    with pytest.raises(UnknownNameError, match="unknown regulariser 'a2b': did you mean 'a2d'"):
        fit(linear(), train, "mine", **QUICK, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
