"""Trials: one pass over every set, on the device of the ensemble."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dissensus import Ensemble
from dissensus.adaptation import splits, trials
from dissensus.adaptation.candidates import DEEP, LOGITS
from dissensus.adaptation.trials import Bench, Store

pytestmark = pytest.mark.usefixtures("few")


@pytest.fixture
def bench(features, tmp_path):
    folds = splits.folds(features.labels.numpy(), np.arange(len(features)), 0)
    return Bench(features, folds, [{}], Store(tmp_path), 2, 0)


def test_each_set_is_run_once(bench, monkeypatch):
    rows, original = [], trials.fit
    forward = Ensemble.forward

    def fit(*arguments, **keywords):
        original(*arguments, **keywords)
        monkeypatch.setattr(Ensemble, "forward", lambda self, x: (rows.append(len(x)), forward(self, x))[1])

    monkeypatch.setattr(trials, "fit", fit)
    bench.trial(DEEP, 0, 1.0)
    assert sum(rows) == sum(map(len, bench.sets[0].values()))


def test_features_follow_the_ensemble_to_its_device(bench, monkeypatch):
    """As after training on a GPU, which meta stands for."""
    devices = set()

    def forward(self, x):
        devices.add(x.device.type)
        return torch.zeros(len(self), len(x), self.classes)

    def fit(ensemble, *rest, **keywords):
        ensemble.to("meta")
        monkeypatch.setattr(Ensemble, "forward", forward)

    monkeypatch.setattr(trials, "fit", fit)
    trial = bench.trial(DEEP, 0, 1.0)
    assert devices == {"meta"}
    assert set(trial.values) == set(LOGITS)
    labels = bench.sets[0]["id"].labels
    assert trial.correct.tolist() == (labels == 0).tolist(), "all logits are equal: the first class"


def test_a_trial_is_read_again(bench, features, tmp_path, monkeypatch):
    first = bench.trial(DEEP, 0, 0.25)
    monkeypatch.setattr(trials, "fit", None)
    again = Bench(features, bench.folds, [{}], Store(tmp_path), 2, 0).trial(DEEP, 0, 0.25)
    assert torch.equal(again.values["pds"]["classes"], first.values["pds"]["classes"])
    assert torch.equal(again.correct, first.correct)
