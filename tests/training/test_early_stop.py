"""Early stopping: what is held out, which weights are kept, exact resume."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric

from dissensus._core.errors import DataError, DissensusError
from dissensus.features import FeatureSet
from dissensus.training import METHODS, Run, fit
from dissensus.training.batches import Pool
from dissensus.training.early_stop import PATIENCE, EarlyStop, hold_out
from dissensus.training.options import Task, TrainOptions
from tests.conftest import blobs, linear
from tests.training.test_resume import Stop, break_off_after

OVERFITTING = {"epochs": 30, "batch_size": 16, "lr": 0.3, "weight_decay": 0.0, "schedule": "constant"}


def noisy(count: int = 90) -> FeatureSet:
    """A quarter of the labels is wrong: members that are trained for long fit the noise."""
    features = blobs(count)
    labels = features.labels.clone()
    labels[::4] = (labels[::4] + 1) % 3
    return FeatureSet.from_arrays(features.rows(slice(None)), labels)


def settings(**options):
    return TrainOptions(**options).resolve("sed-a2d", 4, Task(100))


@pytest.mark.parametrize("seed", range(3))
def test_a_share_of_every_class_is_held_out(seed):
    labels = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    features = FeatureSet.from_arrays(torch.arange(200.0)[:, None], labels.repeat(2))
    pool = Pool(features.subset(torch.arange(200), passes=2), torch.rand(100).double())
    kept, watched = hold_out(pool, settings(early_stop=0.2, seed=seed))
    assert watched.features.class_counts.tolist() == [20, 12, 8], "both passes"
    samples = [
        set(part.features.rows(slice(None)).flatten().long().remainder(100).tolist()) for part in (kept, watched)
    ]
    assert samples[0] | samples[1] == set(range(100))
    assert not samples[0] & samples[1]
    torch.testing.assert_close(watched.weight, pool.weight[sorted(samples[1])])
    again = hold_out(pool, settings(early_stop=0.2, seed=seed))[1]
    other = hold_out(pool, settings(early_stop=0.2, seed=seed + 1))[1]
    assert again.features.fingerprint == watched.features.fingerprint != other.features.fingerprint
    assert hold_out(pool, settings()) == (pool, None)


def test_the_value_is_the_members_mean_cross_entropy():
    ensemble, train, weight = linear(), blobs(30), torch.rand(30).double()
    early = EarlyStop(ensemble, ensemble.stacked(), Pool(train, weight), 40, Fabric(accelerator="cpu", devices=1))
    with torch.no_grad():
        logits = ensemble(train.rows(slice(None))).double()
    losses = torch.stack([F.cross_entropy(member, train.labels, reduction="none") for member in logits]).mean(0)
    assert early.check(1, 40) == pytest.approx(float((losses * weight).sum() / weight.sum()), rel=1e-5)
    assert early.check(2, 41) is not None


def test_the_best_weights_are_the_result(tmp_path):
    train = noisy()
    ensemble = fit(
        linear(), train, "deep-ensemble", **OVERFITTING, early_stop=0.3, out=tmp_path / "run", progress=False
    )
    run = Run.open(tmp_path / "run")
    values = [line["cross_entropy"] for line in run.metrics() if line["kind"] == "held-out"]
    assert len(values) == values.index(min(values)) + 1 + PATIENCE < 40, "it stopped"
    _, watched = hold_out(Pool(train), settings(early_stop=0.3))
    early = EarlyStop(ensemble, ensemble.stacked(), watched, 1, Fabric(accelerator="cpu", devices=1))
    assert early.check(1, 1) == pytest.approx(min(values), rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_stops_and_resumes_exactly(method, elsewhere, tmp_path, monkeypatch):
    recipe = METHODS[method]
    options = {
        **OVERFITTING, "early_stop": 0.2, "confidence": 0.8, "progress": False,
        "disagreement": elsewhere if recipe.takes_set else None,
    }  # fmt: skip
    members = recipe.members or 4
    whole = fit(linear(members), noisy(), method, **options)
    for steps in (3, 20, 15):
        with monkeypatch.context() as patch:
            break_off_after(patch, steps)
            with pytest.raises(Stop):
                fit(linear(members), noisy(), method, **options, out=tmp_path / "run", checkpoint_seconds=0)
    resumed = fit(linear(members), noisy(), method, **options, out=tmp_path / "run")
    for name, value in whole.stacked().items():
        assert torch.equal(value, resumed.stacked()[name])


def test_a_run_killed_after_it_stopped_takes_no_more_steps(tmp_path, monkeypatch):
    options = {**OVERFITTING, "early_stop": 0.3, "progress": False}
    whole = fit(linear(), noisy(), "deep-ensemble", **options)

    def killed(self, folder):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr("dissensus.models.ensemble.Ensemble.save", killed)
        with pytest.raises(Stop):
            fit(linear(), noisy(), "deep-ensemble", **options, out=tmp_path / "run")
    with monkeypatch.context() as patch:
        break_off_after(patch, 0)
        resumed = fit(linear(), noisy(), "deep-ensemble", **options, out=tmp_path / "run")
    for name, value in whole.stacked().items():
        assert torch.equal(value, resumed.stacked()[name])


def test_a_share_that_leaves_nothing_is_refused():
    features = FeatureSet.from_arrays(torch.randn(12, 6), torch.tensor([0] * 6 + [1] * 5 + [2]))
    with pytest.raises(DataError, match=r"^early_stop=0.01 of 12 samples is none: raise it, or leave it out$"):
        fit(linear(), features, early_stop=0.01, progress=False)
    with pytest.raises(DataError, match=r"^early_stop=0.5 holds out 1 of 2 samples, too many for some class: "):
        fit(linear(), features.subset(torch.tensor([5, 11])), early_stop=0.5, progress=False)
    with pytest.raises(DissensusError, match=r"early_stop must be within \[0, 0.5\]; got 0.7"):
        TrainOptions(early_stop=0.7)
