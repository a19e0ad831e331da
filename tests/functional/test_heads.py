"""Heads from few labels against scikit-learn, a naive gradient, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dissensus.functional.heads import Correction, Space, fit_correction, fit_weights, minimise
from tests import reference

CLOSE = {"rtol": 0, "atol": 2e-4}


def problem(B=12, D=4, C=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(B, D, generator=generator, dtype=torch.float64)
    offset = torch.randn(B, C, generator=generator, dtype=torch.float64)
    labels = torch.arange(B) % C
    space = Space.of(torch.randn(50, D, generator=generator, dtype=torch.float64) * 2 + 1)
    return features, labels, offset, space


def test_the_space_is_centred_and_of_mean_square_one():
    x = 3 * torch.randn(500, 7, dtype=torch.float64) + 5
    z = Space.of(x)(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(7, dtype=torch.float64))
    assert float(z.square().sum(1).mean()) == pytest.approx(1)


def test_the_space_of_equal_samples_divides_by_one():
    assert Space.of(torch.ones(5, 3)).scale == 1.0


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_without_offset_it_is_scikit_learns_logistic_regression(strength, scale):
    features, labels, offset, _ = problem(30)
    space = Space(torch.zeros(4, dtype=torch.float64), scale)
    correction = fit_correction(features, labels, torch.zeros_like(offset), space, strength)
    peer = LogisticRegression(C=strength / scale**2, fit_intercept=False, tol=1e-8, max_iter=5000)
    peer.fit(features.numpy(), labels.numpy())
    torch.testing.assert_close(correction.weight, torch.from_numpy(peer.coef_), **CLOSE)
    torch.testing.assert_close(correction.bias, torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize(("B", "D"), [(12, 4), (4, 12)])
@pytest.mark.parametrize("strength", [0.5, 10.0])
def test_the_naive_gradient_vanishes(B, D, strength):
    features, labels, offset, space = problem(B, D)
    correction = fit_correction(features, labels, offset, space, strength)
    W, z = (correction.weight * space.scale).numpy(), space(features).numpy()
    slope = reference.slope(lambda W: reference.head_loss(W, z, labels.numpy(), offset.numpy(), strength), W)
    assert np.abs(slope).max() < 1e-4


def test_the_correction_is_that_of_the_units():
    features, labels, offset, space = problem()
    correction = fit_correction(features, labels, offset, space, 2.0)
    W = correction.weight * space.scale
    torch.testing.assert_close(correction(features), space(features) @ W.T)
    torch.testing.assert_close(correction(space.centre[None]), torch.zeros(1, 3, dtype=torch.float64))


def test_fewer_samples_than_features_take_the_short_way_to_the_same_result():
    features, labels, offset, space = problem(5, 40)
    short = fit_correction(features, labels, offset, space, 3.0)
    # with samples of weight zero there are more samples than features
    more = torch.cat([features, torch.randn(60, 40, dtype=torch.float64)])
    weight = torch.cat([torch.ones(5), torch.zeros(60)])
    at = torch.cat([labels, torch.zeros(60, dtype=torch.int64)])
    base = torch.cat([offset, torch.zeros(60, 3, dtype=torch.float64)])
    long = fit_correction(more, at, base, space, 3.0, weight)
    torch.testing.assert_close(short.weight, long.weight, **CLOSE)


@pytest.mark.parametrize(("B", "D"), [(12, 4), (4, 12)])
def test_the_names_of_classes_and_the_order_of_samples_do_not_matter(B, D):
    features, labels, offset, space = problem(B, D)
    one = fit_correction(features, labels, offset, space, 2.0)
    classes = torch.tensor([2, 0, 1])  # class c is now classes[c]
    renamed = fit_correction(features, classes[labels], offset[:, classes.argsort()], space, 2.0)
    torch.testing.assert_close(renamed.weight[classes], one.weight, **CLOSE)
    order = torch.randperm(B)
    shuffled = fit_correction(features[order], labels[order], offset[order], space, 2.0)
    torch.testing.assert_close(shuffled.weight, one.weight, **CLOSE)


def test_a_weight_of_two_is_the_sample_twice():
    features, labels, offset, space = problem()
    weight = torch.ones(12)
    weight[0] = 2
    weighted = fit_correction(features, labels, offset, space, 2.0, weight)
    index = torch.tensor([0, *range(12)])
    twice = fit_correction(features[index], labels[index], offset[index], space, 2.0)
    torch.testing.assert_close(weighted.weight, twice.weight, **CLOSE)


def test_the_strength_decides_between_offset_and_labels():
    features, labels, offset, space = problem(6, 20)

    def right(strength):
        correction = fit_correction(features, labels, 5 * offset, space, strength)
        return (5 * offset + correction(features)).argmax(-1)

    assert torch.equal(right(1e-6), offset.argmax(-1))
    assert torch.equal(right(1e4), labels)


def test_huge_offsets_stay_finite():
    features, labels, offset, space = problem()
    correction = fit_correction(features, labels, 1e4 * offset, space, 1.0)
    assert bool(correction.weight.isfinite().all())


def test_members_that_are_right_get_weight_and_none_is_negative():
    labels = torch.arange(20) % 2
    good = 4 * torch.eye(2, dtype=torch.float64)[labels]
    weights = fit_weights(torch.stack([good, -good, 0 * good]), labels, start=0.3)
    assert weights[0] > 0.3
    assert weights[1] == 0
    assert weights[2] == pytest.approx(0.3)  # says nothing: stays


def test_weights_minimise_their_objective():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 15, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(15) % 4
    found = fit_weights(logits, labels, start=1.0, pull=5.0).numpy()
    assert (found > 0).all()

    def loss(a):
        z = np.einsum("m,mbc->bc", a, logits.numpy())
        terms = [-np.log(reference.softmax(z[b])[int(labels[b])]) for b in range(15)]
        return sum(terms) + 5.0 / 2 * ((a - 1.0) ** 2).sum()

    assert np.abs(reference.slope(loss, found)).max() < 1e-4


def test_minimise_stays_above_the_bound():
    found = minimise(lambda x: (float(((x + 1) ** 2).sum()), 2 * (x + 1)), 3, start=1.0, lowest=0.0)
    assert found.tolist() == [0, 0, 0]


def test_a_correction_is_affine():
    correction = Correction(torch.tensor([[1.0, 2.0]]).double(), torch.tensor([0.5]).double())
    assert correction(torch.tensor([[3.0, 4.0]])).item() == 11.5
