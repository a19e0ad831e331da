"""Mixing weights against a search over a grid, by their guarantees, and by what must not change them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dissensus._core.errors import DissensusError
from dissensus.functional import aggregates, soups


def problem(seed: int, members: int = 3, samples: int = 30, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits of linear members (M, N, C), better than chance, and labels: a soup's logits are their weighted mean."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    labels[:2] = torch.tensor([0, 1])
    logits = torch.randn(members, samples, classes, generator=generator, dtype=torch.float64)
    skill = torch.rand(members, 1, generator=generator, dtype=torch.float64) * 2
    logits[:, torch.arange(samples), labels] += skill
    return logits, labels


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(torch.einsum("m,mnc->nc", weights, logits), labels)


def naive_objective(logits: Tensor, labels: Tensor, w: tuple[float, ...]) -> float:
    """As the docstring writes it, sample by sample."""
    total = 0.0
    for n, label in enumerate(labels.tolist()):
        z = sum(share * logits[m, n].numpy() for m, share in enumerate(w))
        total -= float(z[label] - np.log(np.exp(z).sum()))
    divergence = sum(share * math.log(len(w) * share) for share in w if share > 0)
    return total / len(labels) + soups.PULL / len(labels) * divergence


def learned(logits: Tensor, labels: Tensor) -> Tensor:
    def accuracy(mixture: aggregates.Mixture) -> float:
        weights = mixture if isinstance(mixture, Tensor) else soups.shares(mixture, len(logits))
        predicted = torch.einsum("m,mnc->nc", weights, logits).argmax(-1)
        return float((predicted == labels).double().mean())

    return aggregates.learned_soup(len(logits), lambda w: cross_entropy(logits, labels, w), accuracy, labels)


@pytest.mark.parametrize("seed", range(4))
def test_learned_weights_are_the_best_of_a_grid(seed: int) -> None:
    logits, labels = problem(seed)
    weights = learned(logits, labels)
    steps = np.linspace(0, 1, 41)
    grid = [(a, b, 1 - a - b) for a, b in itertools.product(steps, steps) if a + b <= 1]
    values = {w: naive_objective(logits, labels, w) for w in grid}
    best = min(values, key=values.__getitem__)
    assert naive_objective(logits, labels, tuple(weights.tolist())) <= values[best] + 1e-6
    np.testing.assert_allclose(weights.numpy(), best, atol=0.03)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 40))
def test_shares_that_are_never_worse_than_uniform_or_greedy(seed: int, members: int, samples: int) -> None:
    logits, labels = problem(seed, members, samples)
    weights = learned(logits, labels)
    assert weights.shape == (members,)
    assert bool((weights >= 0).all())
    assert float(weights.sum()) == pytest.approx(1)
    loss = float(cross_entropy(logits, labels, weights))
    assert loss <= float(cross_entropy(logits, labels, soups.uniform(members))) + 1e-6

    def accuracy(mixture: aggregates.Mixture) -> float:
        return float((logits[list(mixture)].mean(0).argmax(-1) == labels).double().mean())

    greedy = soups.shares(aggregates.greedy_soup(members, accuracy), members)
    tolerance = soups.PULL * math.log(members) / samples
    assert loss <= float(cross_entropy(logits, labels, greedy)) + tolerance + 1e-6
    assert torch.equal(weights, learned(logits, labels)), "deterministic"


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_permuted_members_have_permuted_shares(seed: int, order: list[int]) -> None:
    logits, labels = problem(seed, 4)
    torch.testing.assert_close(learned(logits[order], labels), learned(logits, labels)[order], rtol=0, atol=5e-3)


def test_identical_members_share_alike_and_together_have_what_the_pull_leaves_them() -> None:
    logits, labels = problem(1, 3, 200)
    twice = learned(logits[[0, 1, 2, 2]], labels)
    assert float(twice[2]) == pytest.approx(float(twice[3]), abs=5e-3)
    same = learned(logits[[0, 0, 0]], labels)
    torch.testing.assert_close(same, soups.uniform(3), rtol=0, atol=1e-4)


def test_few_labels_stay_near_uniform_and_many_decide() -> None:
    logits, labels = problem(0, 3, 4000)
    right = logits.clone()
    right[0, torch.arange(len(labels)), labels] += 4  # member 0 knows, the others hardly
    few, many = learned(right[:, :2], labels[:2]), learned(right, labels)
    assert float(few.max() - few.min()) < 0.5
    assert float(many[0]) > float(few[0])
    target = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)

    def distance(w: Tensor) -> Tensor:
        return (w - target).square().sum()

    pulled = [float((soups.learn(distance, 3, n) - 1 / 3).abs().max()) for n in (1, 10, 100, 10**6)]
    assert pulled == sorted(pulled)


def test_labels_of_one_class_or_one_member_give_the_uniform_soup() -> None:
    logits, labels = problem(3, 3, 10)
    assert torch.equal(learned(logits, torch.full_like(labels, 2)), soups.uniform(3))
    assert torch.equal(learned(logits[:, :1], labels[:1]), soups.uniform(3))
    assert learned(logits[:1], labels).tolist() == [1.0]


def test_a_loss_that_is_not_finite_gives_the_uniform_soup() -> None:
    assert torch.equal(soups.learn(lambda w: w.sum() * math.nan, 3, 10), soups.uniform(3))
    with pytest.raises(DissensusError, match="a learned soup needs at least one member; got 0"):
        aggregates.learned_soup(0, lambda w: w.sum(), lambda members: 1.0, torch.tensor([0, 1]))


def test_another_start_finds_a_minimum_behind_a_hill() -> None:
    """Along the share of member 1 the loss has a shallow minimum at 0.2 and a deep one near 1."""

    def loss(w: Tensor) -> Tensor:
        return 3 * (w[1] - 0.2).square() - 2 * torch.exp(-((w[1] - 0.95) / 0.05).square())

    alone, both = soups.learn(loss, 2, 10**6), soups.learn(loss, 2, 10**6, soups.shares([1], 2))
    assert float(alone[1]) == pytest.approx(0.2, abs=1e-3)
    assert float(both[1]) == pytest.approx(0.947, abs=1e-3)


LABELS = torch.tensor([0, 1])


def test_wise_takes_the_best_alpha_and_of_equals_the_middle() -> None:
    def peak(at: float):  # type: ignore[no-untyped-def]
        return lambda mixture: 1 - abs(float(mixture[:-1].sum()) - at)

    for alpha in aggregates.ALPHAS:
        weights = aggregates.wise(2, peak(alpha), LABELS)
        np.testing.assert_allclose(weights, [alpha / 2, alpha / 2, 1 - alpha], atol=1e-12)
    assert aggregates.wise(3, lambda mixture: 1.0, LABELS)[-1] == 0.5
    ends = aggregates.wise(1, lambda mixture: float(abs(float(mixture[-1]) - 0.5) > 0.15), LABELS)
    assert float(ends[0]) == pytest.approx(0.3), "0.3 and 0.7 are equally near: the smaller"


def test_wise_without_a_choice_is_half_and_half() -> None:
    for weights in (
        aggregates.wise(2),
        aggregates.wise(2, lambda mixture: pytest.fail("nothing to choose by"), torch.tensor([1, 1, 1])),
    ):
        assert weights.tolist() == [0.25, 0.25, 0.5]
