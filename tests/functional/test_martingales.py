"""Conformal test martingales against those of crepes; their guarantee on simulated streams."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from crepes import martingales as crepes

from dissensus.functional import martingales
from dissensus.functional.martingales import Martingale, Ranks, StreamTest


def test_p_values_are_those_of_crepes_where_values_have_edges():
    random = np.random.default_rng(0)
    calibration, values = random.integers(0, 6, 50).astype(float), random.integers(0, 6, 600).astype(float)
    expected = crepes.semi_online_p_values([*calibration, *values], seed=0)[50:]
    uniform = np.random.RandomState(0).rand(650)[50:]  # what crepes draws
    ranks = Ranks.of(calibration)
    parts = [ranks.add(values[a:b], uniform[a:b]) for a, b in ((0, 1), (1, 400), (400, 600))]
    assert np.concatenate(parts) == pytest.approx(expected)


@pytest.mark.parametrize("most", [1000, 5])
def test_p_values_of_an_undisturbed_stream_are_uniform_and_independent(most):
    """Over calibration sets of 3 and 20 samples, with ties and without: what theory says, though edges are few."""
    random = np.random.default_rng(1)
    for count, ties in ((3, False), (20, False), (20, True)):
        found = []
        for _ in range(4000):
            values = random.normal(size=count + 3)
            values = values.round() if ties else values
            found.append(Ranks.of(values[:count], most=most).add(values[count:], random.random(3)))
        p = np.array(found)
        assert np.abs(np.sort(p, axis=0) - np.linspace(0, 1, 4000)[:, None]).max() < 0.03  # Kolmogorov: P < 0.01
        assert np.abs(np.corrcoef(p.T) - np.eye(3)).max() < 0.06
        tail = p < 0.1
        assert (tail[:, 0] & tail[:, 1]).mean() == pytest.approx(0.01, abs=0.006)


@pytest.mark.parametrize("most", [1000, 2])
@pytest.mark.parametrize(
    ("bag", "count"), [((0, 1, 2, 3, 4), 3), ((0, 1, 1, 2), 1), ((0, 1, 1, 2, 3), 2), ((0, 0, 1, 2, 2), 3)]
)
def test_p_values_are_exactly_uniform_and_independent(bag, count, most):
    """Over every order of a few values, with ties and values between edges: the joint density is 1 everywhere."""
    grid = (np.arange(60) + 0.5) / 60
    densities = []
    for values in (np.array(order, float) for order in itertools.permutations(bag)):
        low, high = (
            Ranks.of(values[:count], most=most).add(values[count:], np.full(len(bag) - count, u)) for u in (0.0, 1.0)
        )
        inside = [((grid > a) & (grid < b)) / (b - a) for a, b in zip(low, high, strict=True)]
        densities.append(functools.reduce(np.multiply.outer, inside))
    assert np.mean(densities, axis=0) == pytest.approx(1)


def test_wealth_is_that_of_crepes_sleeper_stayer():
    """Algorithm 9.4 of Vovk et al. (2022), averaged over the step bets."""
    p_values, rate = np.random.default_rng(2).random(200) ** 2, 0.01
    pairs = zip(*martingales.step_bets(), strict=True)
    bets = [crepes.SleeperStayer(rate, crepes.StepBettingFunction(A=a, Gs=[b])) for a, b in pairs]
    expected = crepes.CompositeMartingale(bets).apply(p_values)
    martingale = Martingale(memories=(), reserve=lambda samples: (1 - rate) ** samples)
    assert [math.exp(martingale.add(p)) for p in p_values] == pytest.approx(expected)


def test_every_bet_is_fair():
    """Over uniform p-values a bet pays 1 on average, whatever it remembers."""
    grid = (np.arange(32_000) + 0.5) / 32_000
    martingale = Martingale(streams=(len(grid),))
    for p in (0.01, 0.02, 0.9):
        martingale.add(np.full(len(grid), p))
    assert martingale._payoffs(grid).mean(0) == pytest.approx(1, abs=1e-3)
    assert martingales.reserve(0) == 1
    assert all(martingales.reserve(t) > martingales.reserve(t + 1) > 0 for t in (0, 1, 10, 10**6))


def test_wealth_neither_overflows_nor_forgets():
    martingale = Martingale()
    high = [float(martingale.add(np.array(1e-6))) for _ in range(2000)][-1]
    assert 2000 < high < 2000 * math.log(300)
    low = [float(martingale.add(np.array(p))) for p in np.random.default_rng(0).random(3000)][-1]
    assert math.isfinite(low)
    assert low < high


def test_many_streams_are_those_one_by_one_and_few_ring():
    random = np.random.default_rng(3)
    p_values = random.random((200, 1000))
    together, alone = Martingale((200,)), Martingale()
    wealth = np.array([together.add(column) for column in p_values.T])
    assert wealth[:300, 7] == pytest.approx([float(alone.add(p)) for p in p_values[7, :300]])
    assert (wealth.max(0) >= math.log(10)).mean() <= 0.1  # of 10% allowed, about half


@pytest.mark.parametrize(("shift", "latest"), [(3.0, 30), (-1.0, 150)])
def test_a_shift_raises_the_wealth_soon_after_it_begins(shift, latest):
    random = np.random.default_rng(4)
    stream = random.normal(size=800)
    stream[500:] += shift
    test = StreamTest(Ranks.of(random.normal(size=300)), Martingale(), seed=0)
    wealth = [(test.add(value), test.log_wealth)[1] for value in stream]
    assert max(wealth[:500]) < math.log(100)
    assert max(wealth[500 : 500 + latest]) > math.log(100)


def test_few_calibration_samples_cannot_raise_an_alarm_soon():
    assert martingales.soonest(1, math.log(200)) is None
    soon = martingales.soonest(100, math.log(200))
    assert soon is not None
    assert soon < 10
