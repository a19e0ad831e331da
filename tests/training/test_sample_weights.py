"""Sample weights: a weight of k is k copies, in the objectives, in a step and in training; ones change nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from dissensus._core.errors import DataError, RunError, ShapeError
from dissensus.features import FeatureSet
from dissensus.functional import losses
from dissensus.functional.fused import cross_entropy_a2d
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import methods
from dissensus.training._fit import fit
from dissensus.training.batches import Batches, Pool
from dissensus.training.options import Settings
from dissensus.training.step import Batch, Stepper
from tests.conftest import blobs, linear
from tests.processes import one_and_two_processes

QUICK = {"epochs": 3, "lr": 0.05, "batch_size": 32, "label_smoothing": 0.1, "confidence": 0.8, "progress": False}
COUNTS = torch.tensor([0, 1, 3, 2, 0, 1])


def draw(M: int, B: int, C: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(M, B, C, dtype=torch.float64, generator=generator)
    return logits, torch.randint(C, (B,), generator=generator)


def some_weights(*shape: int, seed: int = 1) -> Tensor:
    return 0.1 + torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def same(first: Ensemble, second: Ensemble) -> bool:
    pairs = zip(first.stacked().values(), second.stacked().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("regulariser", ["a2d", "divdis"])
def test_a_weight_in_the_definition_is_so_many_copies(regulariser):
    logits, labels = draw(3, 6, 4)
    weighted = losses.sed(logits, labels, 0.7, 0.1, regulariser, sample_weight=COUNTS)
    copies = losses.sed(logits.repeat_interleave(COUNTS, 1), labels.repeat_interleave(COUNTS), 0.7, 0.1, regulariser)
    assert weighted.item() == pytest.approx(copies.item(), rel=1e-12)
    scaled = losses.sed(logits, labels, 0.7, 0.1, regulariser, sample_weight=COUNTS / 7)
    assert scaled.item() == pytest.approx(copies.item(), rel=1e-6)


def test_hardness_with_weights_by_hand():
    """Losses a, b with weights 1, 3: alpha = loss / ((a + 3b)/4)^2."""
    logits = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    a, b = losses.ensemble_cross_entropy(logits, labels).tolist()
    got = losses.hardness(logits, labels, torch.tensor([1.0, 3.0]))
    assert got.tolist() == pytest.approx([a / ((a + 3 * b) / 4) ** 2, b / ((a + 3 * b) / 4) ** 2], rel=1e-12)


def test_weights_of_another_shape_are_refused():
    logits, labels = draw(2, 3, 4)
    with pytest.raises(ShapeError, match=r"sample_weight must be \(3,\)"):
        losses.sed(logits, labels, 0.5, sample_weight=torch.ones(4))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("diversity", [0.0, 0.7])
@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 5, 2), (4, 6, 5), (3, 7, 3)])
def test_fused_with_weights_equals_the_definition(smoothing, diversity, shape):
    logits, labels = draw(*shape)
    weight = some_weights(shape[1])
    weight[0] = weight[0] if shape[1] == 1 else 0.0
    mean_one = weight / weight.mean()
    leaf = logits.clone().requires_grad_()
    loss = losses.sed(leaf, labels, diversity, smoothing, sample_weight=weight)
    (grad,) = torch.autograd.grad(loss, leaf)
    alpha = diversity / 2 * mean_one * losses.hardness(logits, labels, weight) if diversity else None
    fused = cross_entropy_a2d(logits, labels, weights=alpha, sample_weight=mean_one, label_smoothing=smoothing)
    assert fused.loss.item() == pytest.approx(loss.item(), rel=1e-10)
    torch.testing.assert_close(fused.grad, grad, rtol=1e-10, atol=1e-13)


def test_fused_with_weights_of_each_members_own_batch():
    logits, _ = draw(3, 4, 5)
    labels = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(3))
    weight = some_weights(3, 4)
    weight = weight / weight.mean(-1, keepdim=True)
    smoothing = torch.tensor([0.0, 0.1, 0.5], dtype=torch.float64)
    fused = cross_entropy_a2d(logits, labels, sample_weight=weight, label_smoothing=smoothing)
    leaf = logits.clone().requires_grad_()
    terms = torch.cat([losses.cross_entropy(leaf[i : i + 1], labels[i], float(smoothing[i])) for i in range(3)])
    (grad,) = torch.autograd.grad((weight * terms).mean(), leaf)
    torch.testing.assert_close(fused.grad, grad, rtol=1e-10, atol=1e-14)


def make_settings(method: str, members: int = 4, **changes) -> Settings:
    plain = {
        "method": method, "members": members, "active": 4, "diversity": 0.7, "main": "active", "hardness": "active",
        "epochs": 1, "lr": 0.1, "batch_size": 20, "weight_decay": 0.0, "label_smoothing": 0.0, "optimizer": "sgd",
        "schedule": "constant", "clip": None, "confidence": 0.9, "seed": 0, "precision": "32-true",
    }  # fmt: skip
    return Settings(**{**plain, **changes})


@pytest.mark.parametrize("method", ["sed-a2d", "sed-divdis", "two-stage"])
def test_a_step_is_the_gradient_of_the_weighted_definition(method, train, elsewhere):
    ensemble = linear().double()
    x, labels, there = train.rows(slice(0, 20)).double(), train.labels[:20], elsewhere.rows(slice(0, 15)).double()
    weight, there_weight = some_weights(20), some_weights(15, seed=2)
    weight, there_weight = weight / weight.mean(), there_weight / there_weight.mean()
    leaves = {name: value.detach().clone().requires_grad_() for name, value in ensemble.stacked().items()}
    logits = ensemble.run(leaves, x)
    if method == "two-stage":
        own = (weight * losses.cross_entropy(logits, labels)).mean()
        loss = own + 0.35 * (there_weight * losses.a2d(ensemble.run(leaves, there))).mean()
        batch = Batch(x, labels, 20, there, 15, sample_weight=weight, elsewhere_weight=there_weight)
    else:
        loss = losses.sed(logits, labels, 0.7, regulariser=methods.METHODS[method].regulariser, sample_weight=weight)
        batch = Batch(x, labels, 20, sample_weight=weight)
    grads = torch.autograd.grad(loss, list(leaves.values()))
    stepper = Stepper(ensemble, make_settings(method), Fabric(accelerator="cpu", devices=1))
    statistics = stepper(batch, torch.arange(4), 1.0)
    assert statistics[0].item() == pytest.approx(loss.item(), rel=1e-10)
    expected = (weight * losses.cross_entropy(logits, labels)).mean()
    assert statistics[1].item() == pytest.approx(expected.item(), rel=1e-10)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        torch.testing.assert_close(ensemble.stacked()[name], leaf - 0.1 * grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", methods.METHODS)
@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_weights_of_one_train_bit_for_bit_the_same(method, tail, train, elsewhere):
    recipe = methods.METHODS[method]
    options = {**QUICK, "disagreement": elsewhere if recipe.takes_set else None}
    if tail == "mlp":
        options |= {"epochs": 8, "lr": 0.01, "confidence": 0.5}

    def trained(**more) -> Ensemble:
        return fit(
            Ensemble(tails.create(tail, 6, 3, "none"), members=recipe.members or 4), train, method, **options, **more
        )

    plain = trained()
    assert same(plain, trained(sample_weight=np.ones(120)))
    assert same(plain, trained(sample_weight=[0.3] * 120))
    other = trained(sample_weight=torch.arange(1, 121))
    assert not same(plain, other)


@pytest.mark.parametrize("method", ["deep-ensemble", "sed-a2d", "sed-divdis", "two-stage"])
def test_scale_does_not_matter_and_weight_zero_is_absence(method, train):
    weight = some_weights(120)
    once = fit(linear(), train, method, **QUICK, sample_weight=weight)
    scaled = fit(linear(), train, method, **QUICK, sample_weight=weight * 1e-7 / 3)
    for name, value in once.stacked().items():
        torch.testing.assert_close(scaled.stacked()[name], value, rtol=1e-3, atol=1e-4)
    kept = torch.arange(120) % 5 > 0
    without = fit(linear(), train.subset(kept), method, **QUICK, sample_weight=weight[kept])
    assert same(without, fit(linear(), train, method, **QUICK, sample_weight=weight * kept))


@pytest.mark.parametrize("method", ["sed-a2d", "sed-divdis"])
def test_of_one_batch_a_weight_is_so_many_copies(method, train):
    counts = torch.arange(120) % 4
    options = {**QUICK, "epochs": 30, "lr": 0.01, "batch_size": 1000}
    weighted = fit(linear(), train, method, **options, sample_weight=counts)
    copies = fit(linear(), train.subset(torch.arange(120).repeat_interleave(counts)), method, **options)
    for name, value in copies.stacked().items():
        torch.testing.assert_close(weighted.stacked()[name], value, rtol=1e-3, atol=1e-4)


def test_heavy_samples_decide(train):
    """Two thirds of the labels are wrong; with weight on the right ones the ensemble learns those."""
    wrong = torch.arange(120) % 9 >= 3  # every class has both
    labels = torch.where(wrong, (train.labels + 1) % 3, train.labels)
    mixed = FeatureSet.from_arrays(train.rows(slice(None)), labels)
    accuracy = []
    for weight in (torch.where(wrong, 0.01, 1.0), None):
        ensemble = fit(linear(), mixed, **{**QUICK, "epochs": 30}, sample_weight=weight)
        with torch.no_grad():
            found = ensemble(train.rows(slice(None))).mean(0).argmax(-1)
        accuracy.append(float((found == train.labels).double().mean()))
    assert accuracy[0] > 0.85
    assert accuracy[1] < 0.5


def test_passes_share_a_samples_weight():
    one, weight = blobs(12), torch.arange(12.0)
    x = torch.cat([one.rows(slice(None)) + 100 * p for p in range(2)])
    features = FeatureSet.from_arrays(x, one.labels.repeat(2), provenance={"passes": 2})
    pool = Pool.of(features, weight)
    assert (len(pool.features), pool.features.passes) == (22, 2)  # the first sample is gone from both
    batches = Batches(pool, None, make_settings("sed-a2d", batch_size=11), Fabric(accelerator="cpu", devices=1))
    for epoch in range(2):
        batch = batches(epoch, torch.arange(4))
        distances = torch.cdist(batch.x - 100 * epoch, one.rows(slice(None)))
        torch.testing.assert_close(batch.sample_weight, weight[distances.argmin(1)] / weight[1:].mean())
        assert distances.amin(1).max() < 1e-3


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(119), r"must be \(120,\), one per sample; got \(119,\)"),
        (np.ones((120, 1)), r"got \(120, 1\)"),
        (1.0, r"got \(\)"),
        (np.r_[-1.0, np.ones(119)], "at least 0; 1 of 120 are not"),
        (np.r_[np.nan, np.inf, np.ones(118)], "finite and at least 0; 2 of 120 are not"),
        (np.zeros(120), "must not all be zero"),
        (["heavy"] * 120, "must be numbers"),
    ],
)
def test_weights_that_are_none_are_refused(weight, message, train):
    with pytest.raises(DataError, match=message) as caught:
        fit(linear(), train, **QUICK, sample_weight=weight)
    assert "\n" not in str(caught.value)


def test_one_class_left_by_the_weights_is_refused(train):
    with pytest.raises(DataError, match="at least two classes"):
        fit(linear(), train, **QUICK, sample_weight=train.labels == 1)


def test_a_run_knows_its_weights(train, tmp_path):
    """Zeros elsewhere are other weights, though what is left weighs the same."""
    first, second = torch.ones(120), torch.ones(120)
    first[0] = second[1] = 0
    out = tmp_path / "run"
    trained = fit(linear(), train, **QUICK, sample_weight=first, out=out)
    assert same(trained, fit(linear(), train, **QUICK, sample_weight=first, out=out))
    for other in (second, None):
        with pytest.raises(RunError, match="another run"):
            fit(linear(), train, **QUICK, sample_weight=other, out=out)


SCRIPT = """
def train(method, out, fabric):
    fit(linear(), blobs(121), method, epochs=4, batch_size=32, lr=0.05, out=out, fabric=fabric,
        sample_weight=torch.arange(121) % 7, confidence=0.9, progress=False)
"""


@pytest.mark.slow
def test_one_and_two_processes_agree_on_weighted_samples(tmp_path):
    one_and_two_processes(SCRIPT, tmp_path, ("sed-a2d", "sed-divdis", "deep-ensemble", "two-stage"))
