"""Objectives against the paper's formulas, and the closed forms against the definitions."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError, ShapeError, UnknownNameError
from dissensus.functional import losses
from dissensus.functional.fused import cross_entropy_a2d
from tests import reference


def draw(M: int, B: int, C: int, *, scale: float = 2.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(M, B, C, dtype=torch.float64, generator=generator)
    return logits, torch.randint(C, (B,), generator=generator)


SHAPES = st.tuples(st.integers(2, 6), st.integers(1, 5), st.integers(2, 7))


@given(shape=SHAPES, scale=st.sampled_from([0.0, 0.1, 2.0, 30.0]), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a2d_is_the_papers_formula(shape, scale, seed):
    logits, _ = draw(*shape, scale=scale, seed=seed)
    np.testing.assert_allclose(losses.a2d(logits), reference.pairwise_a2d(logits.numpy()), rtol=1e-10, atol=1e-12)


def test_a2d_by_hand():
    """p^1 = (3/4, 1/4), p^0 = (1/4, 3/4); y = argmax p^1 = 0: -log(3/4 * 3/4 + 1/4 * 1/4) = -log(5/8)."""
    three = math.log(3)
    logits = torch.tensor([[[0.0, three]], [[three, 0.0]]], dtype=torch.float64)
    assert losses.a2d(logits).item() == pytest.approx(-math.log(5 / 8), abs=1e-15)


def test_a2d_stays_finite_where_members_are_certain_and_agree():
    """Both certain of class 0 by a gap of 1e4: 1 - p = exp(-1e4), so A2D = -log(2 exp(-1e4)) = 1e4 - log 2."""
    logits = torch.tensor([[[1e4, 0.0]], [[1e4, 0.0]]], dtype=torch.float64, requires_grad=True)
    value = losses.a2d(logits)
    value.sum().backward()
    assert value.item() == pytest.approx(1e4 - math.log(2), rel=1e-12)
    assert torch.isfinite(logits.grad).all()


def test_a2d_is_least_where_members_disagree():
    agree = torch.tensor([[[5.0, 0.0]], [[5.0, 0.0]]])
    disagree = torch.tensor([[[5.0, 0.0]], [[0.0, 5.0]]])
    assert losses.a2d(disagree) < 0.1 < 3 < losses.a2d(agree)


@given(shape=SHAPES, seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_divdis_is_the_mean_pairwise_mutual_information(shape, seed):
    logits, _ = draw(*shape, seed=seed)
    np.testing.assert_allclose(losses.divdis(logits), reference.divdis(logits.numpy()), rtol=1e-10, atol=1e-12)


def test_divdis_by_hand():
    """Two certain members, two equally likely samples: equal predictions share log 2 nats, constant ones none."""
    sure = torch.tensor([[40.0, 0.0], [0.0, 40.0]], dtype=torch.float64)
    assert losses.divdis(torch.stack([sure, sure])).item() == pytest.approx(math.log(2), abs=1e-12)
    assert losses.divdis(torch.stack([sure, sure[:1].expand(2, 2)])).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("block", [1, 12, 10**6])
@pytest.mark.parametrize("weighted", [False, True])
def test_divdis_gradient_is_autograds_whatever_the_blocks(block, weighted, monkeypatch):
    monkeypatch.setattr(losses, "BLOCK_ELEMENTS", block)
    logits, _ = draw(4, 6, 5)
    weights = torch.rand(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) if weighted else None
    logits.requires_grad_()
    value = losses.divdis(logits, weights)
    (got,) = torch.autograd.grad(3 * value, logits)
    plain = mutual_information(logits, weights)
    (expected,) = torch.autograd.grad(3 * plain, logits)
    assert value.item() == pytest.approx(plain.item(), abs=1e-12)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


def mutual_information(logits: Tensor, weights: Tensor | None) -> Tensor:
    """DivDis written out with the whole (M, M, C, C) joint, for autograd."""
    M, B, _ = logits.shape
    w = torch.full((B,), 1 / B, dtype=logits.dtype) if weights is None else weights / weights.sum()
    p = logits.softmax(-1)
    joint = torch.einsum("b,mbc,lbd->mlcd", w, p, p)
    q = torch.einsum("b,mbc->mc", w, p)
    pairs = (joint * (joint.log() - q.log()[:, None, :, None] - q.log()[None, :, None, :])).sum((2, 3))
    return (pairs.sum() - pairs.diagonal().sum()) / (M * (M - 1))


def test_hardness_is_loss_over_squared_batch_mean():
    """CE of the mean logits over two classes at gap g is log(1 + exp(-g)); losses a, b give a / ((a+b)/2)^2."""
    logits = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[3.0, 0.0], [0.0, 5.0]]], dtype=torch.float64)
    a, b = math.log1p(math.exp(-2)), math.log1p(math.exp(4))
    got = losses.hardness(logits, torch.tensor([0, 0]))
    expected = torch.tensor([a, b], dtype=torch.float64) / ((a + b) / 2) ** 2
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=0)


def test_hardness_has_no_gradient_and_its_mean_is_the_inverse_loss():
    logits, labels = draw(3, 8, 4)
    weights = losses.hardness(logits.requires_grad_(), labels)
    assert not weights.requires_grad
    loss = losses.ensemble_cross_entropy(logits, labels).mean()
    assert weights.mean().item() == pytest.approx(1 / loss.item(), rel=1e-12)


@pytest.mark.parametrize("regulariser", ["a2d", "divdis"])
def test_sed_of_a_perfectly_fitted_batch_is_a_number(regulariser):
    logits = torch.tensor([[[400.0, -400.0]], [[400.0, -400.0]]], requires_grad=True)
    loss = losses.sed(logits, torch.tensor([0]), 0.5, regulariser=regulariser)
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(logits.grad).all()


def test_hardness_of_a_perfectly_fitted_batch_is_zero_not_nan():
    logits = torch.tensor([[[500.0, -500.0]]])
    assert losses.hardness(logits, torch.tensor([0])).tolist() == [0.0]


@given(shape=SHAPES, smoothing=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_sed_is_the_papers_loss(shape, smoothing, seed):
    logits, labels = draw(*shape, seed=seed)
    expected = reference.sed(logits.numpy(), labels.numpy(), 0.7, smoothing)
    assert losses.sed(logits, labels, 0.7, smoothing).item() == pytest.approx(expected, rel=1e-10)


def test_sed_divdis_scales_like_sed_a2d_where_hardness_is_even():
    """Equal losses make hardness the same for all, and the term diversity/2 * hardness * divdis."""
    logits = draw(3, 1, 4)[0].expand(3, 6, 4)
    labels = torch.zeros(6, dtype=torch.long)
    main = losses.sed(logits, labels, 0.0)
    alpha = losses.hardness(logits, labels)[0]
    expected = main + 0.35 * alpha * losses.divdis(logits)
    assert losses.sed(logits, labels, 0.7, regulariser="divdis").item() == pytest.approx(expected.item(), rel=1e-10)


@given(
    shape=SHAPES,
    scale=st.sampled_from([0.0, 0.5, 4.0, 30.0, 50.0]),
    smoothing=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=120, deadline=None)
def test_fused_equals_the_definition(shape, scale, smoothing, seed):
    logits, labels = draw(*shape, scale=scale, seed=seed)
    leaf = logits.clone().requires_grad_()
    if scale <= 4:
        weights = 0.35 * losses.hardness(logits, labels)
        loss = losses.sed(leaf, labels, 0.7, smoothing)
    else:  # hardness of 1e11 would only magnify the rounding of both sides
        weights = torch.full((shape[1],), 0.35, dtype=torch.float64)
        loss = losses.cross_entropy(leaf, labels, smoothing).mean() + 0.35 * losses.a2d(leaf).mean()
    fused = cross_entropy_a2d(logits, labels, weights=weights, label_smoothing=smoothing)
    (grad,) = torch.autograd.grad(loss, leaf)
    assert fused.loss.item() == pytest.approx(loss.item(), rel=1e-10)
    assert (fused.grad - grad).abs().max() <= 1e-10 * max(1.0, grad.abs().max().item())


def test_fused_in_float32_is_as_exact_as_float32_where_members_are_certain():
    """Gaps of 20 make 1 - p = 2e-9, below float32's resolution of p: the closed form must not compute 1 - p."""
    logits = torch.zeros(2, 1, 3, dtype=torch.float64)
    logits[:, :, 0] = 20.0
    logits[1, :, 1] = 3.0
    labels, weights = torch.tensor([0]), torch.ones(1, dtype=torch.float64)
    exact = cross_entropy_a2d(logits, labels, weights=weights)
    single = cross_entropy_a2d(logits.float(), labels, weights=weights.float())
    assert single.loss.item() == pytest.approx(exact.loss.item(), rel=1e-5)
    torch.testing.assert_close(single.grad.double(), exact.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_is_finite_for_logits_of_ten_thousand(dtype):
    logits = torch.tensor([[[1e4, -1e4, 0.0]], [[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]]], dtype=dtype)
    fused = cross_entropy_a2d(logits, torch.tensor([2]), weights=torch.ones(1, dtype=dtype))
    assert torch.isfinite(fused.loss)
    assert torch.isfinite(fused.grad).all()


def test_fused_on_some_pairs_and_a_part_of_the_batch():
    """`pairs` restricts disagreement to some members, `total` averages over more samples than are here."""
    logits, labels = draw(5, 4, 6)
    weights = torch.rand(4, dtype=torch.float64)
    pairs = torch.tensor([3, 1])
    fused = cross_entropy_a2d(logits, labels, weights=weights, pairs=pairs, total=7)
    leaf = logits.clone().requires_grad_()
    main = losses.cross_entropy(leaf, labels).sum() / (5 * 7)
    loss = main + (weights * losses.a2d(leaf[pairs])).sum() / 7
    (grad,) = torch.autograd.grad(loss, leaf)
    assert fused.loss.item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(fused.grad, grad, rtol=1e-10, atol=1e-14)


def test_fused_with_labels_and_smoothing_of_each_members_own():
    logits, _ = draw(3, 4, 5)
    labels = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(3))
    smoothing = torch.tensor([0.0, 0.1, 0.5], dtype=torch.float64)
    fused = cross_entropy_a2d(logits, labels, label_smoothing=smoothing)
    leaf = logits.clone().requires_grad_()
    members = [losses.cross_entropy(leaf[i : i + 1], labels[i], float(smoothing[i])) for i in range(3)]
    loss = torch.cat(members).mean()
    (grad,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(fused.cross_entropy, torch.cat(members), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(fused.grad, grad, rtol=1e-12, atol=1e-14)


def test_fused_disagreement_alone():
    logits, _ = draw(3, 4, 5)
    weights = torch.rand(4, dtype=torch.float64)
    fused = cross_entropy_a2d(logits, None, weights=weights)
    leaf = logits.clone().requires_grad_()
    loss = (weights * losses.a2d(leaf)).mean()
    (grad,) = torch.autograd.grad(loss, leaf)
    assert fused.loss.item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(fused.grad, grad, rtol=1e-10, atol=1e-14)


def test_fused_takes_logits_that_lie_batch_first_in_memory():
    """A linear ensemble's one matrix product lays logits out as (B, M, C); the gradient keeps that layout."""
    logits, labels = draw(3, 4, 5)
    sideways = logits.transpose(0, 1).contiguous().transpose(0, 1)
    weights = torch.rand(4, dtype=torch.float64)
    plain = cross_entropy_a2d(logits, labels, weights=weights)
    other = cross_entropy_a2d(sideways, labels, weights=weights)
    torch.testing.assert_close(other.grad, plain.grad, rtol=0, atol=0)
    assert other.grad.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("objective", [losses.a2d, losses.divdis])
def test_disagreement_needs_two_members_and_the_layout(objective):
    with pytest.raises(ShapeError, match="M >= 2 members"):
        objective(torch.zeros(1, 3, 4))
    with pytest.raises(ShapeError, match=r"\(M, B, C\); got \(3, 4\)"):
        objective(torch.zeros(3, 4))


def test_labels_must_fit_and_the_regulariser_be_known():
    logits = torch.zeros(2, 3, 4)
    with pytest.raises(ShapeError, match=r"labels must be \(3,\)"):
        losses.sed(logits, torch.zeros(2, dtype=torch.long), 0.5)
    with pytest.raises(DataError, match=r"use labels.long\(\)"):
        losses.hardness(logits, torch.zeros(3))
    with pytest.raises(UnknownNameError, match="did you mean 'divdis'"):
        losses.sed(logits, torch.zeros(3, dtype=torch.long), 0.5, regulariser="divdiss")


@pytest.fixture
def registry(monkeypatch):
    """A copy to register into."""
    copy = losses.REGULARISERS.copy()
    monkeypatch.setattr(losses, "REGULARISERS", copy)
    return copy


def test_an_unknown_regulariser_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown regulariser 'a2b': did you mean 'a2d'\? known: a2d, divdis"):
        losses.REGULARISERS["a2b"]


@pytest.mark.parametrize("name", losses.REGULARISERS)
def test_value_and_gradient_are_autograds(name):
    logits, _ = draw(3, 5, 4)
    weights = torch.tensor([0.1, 0.4, 0.0, 0.2, 0.3], dtype=torch.float64)
    leaf = logits.clone().requires_grad_()
    term = losses.REGULARISERS[name]
    loss = term.function(leaf, weights) if term.whole_batch else (weights * term.function(leaf)).sum()
    (expected,) = torch.autograd.grad(loss, leaf)
    value, grad = term.value_and_grad(logits, weights)
    assert not value.requires_grad
    assert value.item() == pytest.approx(loss.item(), rel=1e-10)
    torch.testing.assert_close(grad, expected, rtol=1e-10, atol=1e-12)


def test_a_registered_regulariser_takes_part_in_sed(registry):
    @losses.register
    def even_a2d(logits):
        return losses.a2d(logits)

    @losses.register(whole_batch=True)
    def mean_a2d(logits, weights):
        return (weights * losses.a2d(logits)).sum()

    logits, labels = draw(3, 5, 4)
    expected = losses.sed(logits, labels, 0.7)
    for name in ("even-a2d", "mean-a2d"):
        torch.testing.assert_close(losses.sed(logits, labels, 0.7, regulariser=name), expected, rtol=1e-12, atol=0)


def test_regularisers_that_break_the_contract_are_refused(registry):
    @losses.register
    def per_member(logits):
        return logits.mean(-1)

    @losses.register(whole_batch=True)
    def constant(logits, weights):
        return logits.detach().sum()

    logits, weights = torch.zeros(2, 3, 4), torch.full((3,), 1 / 3)
    with pytest.raises(ShapeError, match=r"per_member must return \(3,\) for logits \(2, 3, 4\); got \(2, 3\)"):
        registry["per-member"].value_and_grad(logits, weights)
    with pytest.raises(DissensusError, match="constant must be differentiable"):
        registry["constant"].value_and_grad(logits, weights)


def test_the_documents_example_runs(registry):
    assert doctest.testmod(losses) == doctest.TestResults(failed=0, attempted=3)
