"""Soups of trained members: the loss that they are learned by, and when there is one at all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError, ShapeError, UnknownNameError
from dissensus.cli import main
from dissensus.evaluation import evaluate, pretrained_tail, saved, soup_weights, soups
from dissensus.evaluation.suite import SuiteSet
from dissensus.features import FeatureSet
from dissensus.functional import aggregates
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import Run, fit, new_ensemble
from tests.conftest import blobs, linear
from tests.evaluation.conftest import value

WEIGHTS = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def mlps(seed: int = 0) -> Ensemble:
    return Ensemble(tails.MLP(6, 3, hidden=8, gamma=None), members=4, seed=seed)


def cross_entropy(module: nn.Module, features: FeatureSet) -> Tensor:
    return nn.functional.cross_entropy(module(features.rows(slice(None))), features.labels)


@pytest.mark.parametrize("make", [linear, mlps])
def test_the_loss_is_the_cross_entropy_of_the_soup_and_so_is_its_gradient(make, monkeypatch):
    ensemble, held_out = make().double(), blobs(seed=4)
    monkeypatch.setattr(FeatureSet, "rows", lambda self, index, rows=FeatureSet.rows: rows(self, index).double())
    monkeypatch.setattr(soups, "batch_size", lambda ensemble, shape: 50)  # three batches, the last short
    loss = soups._Kitchen(ensemble, held_out, None).loss
    expected = cross_entropy(ensemble.soup(weights=WEIGHTS), held_out).detach()
    assert float(loss(WEIGHTS)) == pytest.approx(float(expected), rel=1e-12)
    weights = WEIGHTS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(weights), [weights])
    for i in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[i] = 1e-6
        with torch.no_grad():
            slope = float(loss(WEIGHTS + step) - loss(WEIGHTS - step)) / 2e-6
        assert float(gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("make", [linear, mlps])
def test_the_learned_soup_is_not_worse_than_others_on_held_out_data(make):
    ensemble, held_out = make(), blobs(seed=4, noise=2.0)
    fit(ensemble, blobs(noise=1.5), "sed-a2d", epochs=8, lr=0.05, batch_size=32, progress=False)
    made = soups.make_soups(ensemble, held_out)
    with torch.no_grad():
        losses = {name: float(cross_entropy(soup, held_out)) for name, soup in made.items()}
    assert losses["learned-soup"] <= losses["soup"] + 1e-6
    assert losses["learned-soup"] <= losses["greedy-soup"] + np.log(4) / len(held_out) + 1e-6
    again = soup_weights(ensemble, held_out)
    assert torch.equal(again, soup_weights(ensemble, held_out))
    torch.testing.assert_close(ensemble.soup(weights=again).state_dict(), made["learned-soup"].state_dict())


def test_a_member_that_knows_what_others_do_not_gets_the_largest_share():
    ensemble = linear()
    fit(ensemble, blobs(), "deep-ensemble", epochs=10, lr=0.05, batch_size=32, progress=False)
    with torch.no_grad():
        for name, stacked in ensemble.stacked().items():
            stacked[[0, 1, 3]] = torch.randn(
                stacked[[0, 1, 3]].shape, generator=torch.Generator().manual_seed(len(name))
            )
    weights = soup_weights(ensemble, blobs(seed=4))
    assert int(weights.argmax()) == 2
    assert soups.accuracy(ensemble.soup(weights=weights), blobs(seed=5)) > soups.accuracy(
        ensemble.soup(), blobs(seed=5)
    )


def test_permuted_members_make_the_same_soup(ensemble):
    held_out, order = blobs(seed=4, noise=2.0), [2, 0, 3, 1]
    permuted = linear()
    with torch.no_grad():
        for name, stacked in permuted.stacked().items():
            stacked.copy_(ensemble.stacked()[name][order])
    torch.testing.assert_close(
        soup_weights(permuted, held_out), soup_weights(ensemble, held_out)[order], rtol=0, atol=0.01
    )


def test_dropout_does_not_disturb_the_choice_and_modes_stay(train):
    ensemble = Ensemble(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), members=3).train()
    assert torch.equal(soup_weights(ensemble, train), soup_weights(ensemble, train))
    assert ensemble.training


def test_fallbacks_where_labels_decide_nothing(ensemble):
    held_out = blobs(seed=4)
    one_class = held_out.subset(held_out.labels == 1)
    for few in (one_class, held_out.subset([0])):
        assert soup_weights(ensemble, few).tolist() == [0.25] * 4
        assert soup_weights(ensemble, few, "wise", pretrained=ensemble.member(0)).tolist() == [0.125] * 4 + [0.5]
    single = linear(members=1)
    assert soup_weights(single, held_out).tolist() == [1.0]
    assert soup_weights(ensemble, None, "soup").tolist() == [0.25] * 4


def test_misuse_of_soup_weights(ensemble):
    unlabelled = FeatureSet.from_arrays(torch.zeros(5, 6))
    with pytest.raises(DataError, match="learned-soup is chosen on labelled samples; got none"):
        soup_weights(ensemble)
    with pytest.raises(DataError, match="the held-out set has no labels"):
        soup_weights(ensemble, unlabelled)
    with pytest.raises(ShapeError, match="features of width 6; held-out has rows of shape"):
        soup_weights(ensemble, blobs(width=7))
    with pytest.raises(DataError, match="the ensemble has 3 classes; held-out has label 4"):
        soup_weights(ensemble, blobs(classes=5))
    with pytest.raises(UnknownNameError, match="did you mean 'learned-soup'"):
        soup_weights(ensemble, blobs(), "learned_soup")
    with pytest.raises(DissensusError, match="wise mixes members with a pretrained tail; got none"):
        soup_weights(ensemble, blobs(), "wise")
    with pytest.raises(ShapeError, match=r"must have the members' layers, norm and classes; got .*'l2'"):
        soup_weights(ensemble, blobs(), "wise", pretrained=tails.Linear(6, 3))


def test_wise_is_the_best_mixture_with_a_pretrained_tail(ensemble, sets):
    held_out = blobs(seed=4, noise=2.0)
    other = fit(linear(members=1, seed=5), blobs(seed=9), "single", epochs=3, lr=0.05, batch_size=32, progress=False)
    tail, soup = other.member(0), ensemble.soup()
    accuracies = {}
    for tenth in range(11):
        mixed = tails.Linear(6, 3, "none")
        with torch.no_grad():
            for name, parameter in mixed.named_parameters():
                mine, theirs = soup.get_parameter(name), tail.get_parameter(name)
                parameter.copy_(tenth / 10 * mine + (1 - tenth / 10) * theirs)
        accuracies[tenth] = soups.accuracy(mixed, held_out)
    best = max(range(11), key=lambda tenth: (accuracies[tenth], -abs(tenth - 5), -tenth))
    weights = soup_weights(ensemble, held_out, "wise", pretrained=tail)
    assert float(weights[:-1].sum()) == pytest.approx(best / 10)
    frame = evaluate(ensemble, sets, held_out=held_out, pretrained=tail, score_names=["pds"], progress=False)
    expected = soups.accuracy(ensemble.soup(weights=weights, pretrained=tail), sets[2].features)
    assert value(frame, dataset="noisy-5", aggregate="wise", metric="accuracy") == pytest.approx(expected)
    with pytest.raises(ShapeError, match="a pretrained tail must have the members' layers"):
        evaluate(ensemble, sets, pretrained=tails.Linear(6, 4, "none"), progress=False)


def test_soups_that_lack_something_are_left_out(ensemble, frame):
    assert list(soups.make_soups(ensemble, None)) == ["soup"]
    assert list(soups.make_soups(ensemble, blobs())) == ["soup", "greedy-soup", "learned-soup"]
    assert list(soups.make_soups(ensemble, None, ensemble.member(1))) == ["soup", "wise"]
    assert "learned-soup" in set(frame["aggregate"])
    assert "wise" not in set(frame["aggregate"])


def test_your_own_choice_names_what_it_needs(ensemble, monkeypatch):
    monkeypatch.setattr(aggregates, "AGGREGATES", aggregates.AGGREGATES.copy())

    @aggregates.register("best member", kind="weights", held_out=True)
    def best_member(accuracy, count):
        return [max(range(count), key=lambda i: accuracy([i]))]

    weights = soup_weights(ensemble, blobs(seed=4), "best-member")
    assert sorted(weights.tolist()) == [0, 0, 0, 1]
    with pytest.raises(DissensusError, match="must be among count, accuracy, loss, labels; got members"):
        aggregates.register("odd", kind="weights")(lambda members: [0])


@pytest.fixture(scope="module")
def lite():
    return backbones.create("lite0", layers=1)


def like_imagenet(lite: backbones.Backbone, classes=None) -> FeatureSet:
    """Random features that say they are lite0's, with labels of ImageNet."""
    x = np.random.default_rng(0).random((64, 1280), dtype=np.float32)
    names = list(classes or lite.classes)
    return FeatureSet.from_arrays(x, np.arange(64) % 8, classes=names, provenance={"backbone": lite.describe()})


def test_the_pretrained_tail_is_there_for_the_same_layers_norm_and_classes(lite, monkeypatch):
    features = like_imagenet(lite)
    about, ensemble = lite.describe(), new_ensemble(features, 2, tail="backbone")
    tail = pretrained_tail(ensemble, about, features.classes)
    assert torch.equal(tail.weight, lite.tail.weight)
    assert pretrained_tail(ensemble, about, features.classes[::-1]) is None
    monkeypatch.setattr(backbones, "restore", lambda about: pytest.fail("read"))
    assert pretrained_tail(ensemble, None, features.classes) is None
    assert pretrained_tail(ensemble, about | {"weights": "random"}, features.classes) is None
    assert pretrained_tail(new_ensemble(features, 2, norm="l2"), about, features.classes) is None
    few = like_imagenet(lite, classes=lite.classes[:8])
    assert pretrained_tail(new_ensemble(few, 2, tail="backbone"), about, few.classes) is None

    def gone(about):
        raise DissensusError("weights are not at hand")

    monkeypatch.setattr(backbones, "restore", gone)
    assert pretrained_tail(ensemble, about, features.classes) is None


def test_a_run_on_the_backbones_own_classes_has_wise(lite, tmp_path, capsys):
    features = like_imagenet(lite)
    options = {"epochs": 1, "scores": [], "progress": False}
    ensemble = new_ensemble(features, 2, tail="backbone", init="pretrained")
    fit(ensemble, features, "deep-ensemble", out=tmp_path / "run", **options)
    sets = [SuiteSet("id", "id", features)]
    frame = saved.evaluate_run(Run.open(tmp_path / "run"), ensemble, sets, suite="x", keep="nothing", progress=False)
    halved = ensemble.soup(weights=[0.25, 0.25, 0.5], pretrained=lite.tail)
    assert value(frame, dataset="id", aggregate="wise", metric="accuracy") == soups.accuracy(halved, features)
    features.save(tmp_path / "features")
    assert main(["evaluate", str(tmp_path / "run"), "--id", str(tmp_path / "features"), "--aggregate", "wise"]) == 0

    fit(new_ensemble(features, 2), features, "deep-ensemble", out=tmp_path / "other", **options)
    capsys.readouterr()
    command = ["evaluate", str(tmp_path / "other"), "--id", str(tmp_path / "features"), "--aggregate", "wise"]
    with pytest.raises(SystemExit, match="2"):
        main(command)
    err = capsys.readouterr().err.strip()
    assert "wise mixes members with the backbone's own tail; that of" in err
    assert "\n" not in err
