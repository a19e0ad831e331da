"""Conformal calibration: the promise itself, on data where it must hold, and its refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dissensus._core.errors import DissensusError
from dissensus.functional.conformal import Calibrated, Evidence, check_rate, evidence, needed, tail_scale


def test_p_values_count_the_sample_itself_and_ties():
    calibrated = Calibrated.of(torch.tensor([3.0, 1.0, 2.0, 2.0]))
    assert calibrated.p_values(torch.tensor([0.0, 2.0, 2.5, 9.0])).tolist() == [1.0, 4 / 5, 2 / 5, 1 / 5]


@given(
    scores=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    asked=st.lists(st.integers(-1, 31), min_size=1, max_size=20),
    rate=st.sampled_from([0.01, 0.05, 0.1, 0.29, 0.5, 0.9]),
)
def test_above_the_threshold_is_the_same_as_a_p_value_within_the_rate(scores, asked, rate):
    calibrated = Calibrated.of(torch.tensor(scores, dtype=torch.float32))
    if len(scores) < needed(rate):
        with pytest.raises(DissensusError, match=str(needed(rate))):
            calibrated.check(rate)
        return
    x = torch.tensor(asked, dtype=torch.float32)
    out = x > calibrated.thresholds(rate)
    assert out.tolist() == [p <= rate + 1e-12 for p in calibrated.p_values(x).tolist()]


@pytest.mark.parametrize(("rate", "count"), [(0.05, 19), (0.1, 9), (0.01, 99), (0.5, 1), (0.3, 3)])
def test_needed_is_the_fewest_with_which_anything_can_be_an_alarm(rate, count):
    assert needed(rate) == count
    enough = Calibrated.of(torch.zeros(count))
    assert float(enough.p_values(torch.ones(1))) <= rate + 1e-12
    if count > 1:
        assert float(Calibrated.of(torch.zeros(count - 1)).p_values(torch.ones(1))) > rate


@pytest.mark.parametrize("n", [19, 40, 333])
def test_the_rate_holds_in_expectation_over_calibrations(n):
    generator = torch.Generator().manual_seed(n)
    rates = []
    for _ in range(2000):
        drawn = torch.randn(n + 50, generator=generator)
        rates.append(float((drawn[n:] > Calibrated.of(drawn[:n]).thresholds(0.05)).float().mean()))
    mean = sum(rates) / len(rates)
    promised = math.floor(0.05 * (n + 1) + 1e-9) / (n + 1)  # exact without ties
    error = torch.tensor(rates).std() / math.sqrt(len(rates))
    assert abs(mean - promised) < 3.3 * float(error)
    assert promised <= 0.05


def test_spread_is_where_single_calibrations_lie():
    generator, n = torch.Generator().manual_seed(1), 99
    low, high = Calibrated.of(torch.randn(n)).spread(0.05)
    limits = [float(Calibrated.of(torch.rand(n, generator=generator)).thresholds(0.05)) for _ in range(1000)]
    inside = sum(low <= 1 - limit <= high for limit in limits) / 1000  # uniform scores: the true rate is 1 - limit
    assert 0.87 < inside < 0.93


def test_by_class_the_rate_holds_within_each_class():
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(4000) % 2
    scores = torch.randn(4000, generator=generator) + 5 * labels  # together, only class 1 would be called out
    calibrated = Calibrated.of(scores[:2000], labels[:2000], 2)
    limits = calibrated.thresholds(0.1)
    out = scores[2000:] > limits[labels[2000:]]
    for c in (0, 1):
        assert 0.06 < float(out[labels[2000:] == c].float().mean()) < 0.14
    assert calibrated.by_class
    assert calibrated.count == 2000
    p = calibrated.p_values(scores[2000:], labels[2000:])
    assert torch.equal(p <= 0.1, out)


def test_too_few_of_one_class_names_the_class():
    calibrated = Calibrated.of(torch.rand(40), torch.tensor([0] * 35 + [1] * 5), 2)
    with pytest.raises(DissensusError, match=r"needs 19 .* predicted as 'dog'; got 5"):
        calibrated.check(0.05, ["cat", "dog"])


def test_evidence_grows_with_each_score():
    references = [torch.arange(9.0), torch.arange(9.0)]
    low, one, both = evidence(references, [torch.tensor([0.0, 9.0, 9.0]), torch.tensor([0.0, 0.0, 9.0])]).tolist()
    assert low == 0
    assert one == pytest.approx(math.log(10) + 1)
    assert both == pytest.approx(2 * (math.log(10) + 1))


def test_evidence_weighs_scores():
    references = [torch.arange(9.0), torch.arange(99.0)]
    given = [torch.tensor([3.0, 8.5, 1e4]), torch.tensor([98.0, 1.0, torch.inf])]
    one, other = (evidence([r], [s]) for r, s in zip(references, given, strict=True))
    assert torch.allclose(evidence(references, given, [2, 0.5]), 2 * one + 0.5 * other)
    assert torch.allclose(evidence(references, given), one + other)
    for weights in ([1, 0], [1, -1], [1, math.nan], [math.inf, 1]):
        with pytest.raises(DissensusError, match="positive"):
            evidence(references, given, weights)


wide = st.floats(-(2.0**100), 2.0**100, width=32)
reference_values = st.one_of(
    st.lists(wide, min_size=1, max_size=60),
    st.lists(st.integers(1, 5), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.0, 1e-30, 1.0]), min_size=1, max_size=40),
)


@given(values=reference_values, asked=st.lists(st.one_of(wide, st.just(math.inf), st.just(-math.inf)), min_size=2))
def test_evidence_is_monotone_and_minus_log_p_within_the_references(values, asked):
    reference = torch.tensor(values, dtype=torch.float32).sort().values
    scores = torch.tensor(asked + values, dtype=torch.float32).sort().values
    e = Evidence.of(reference)(scores)
    assert not e.isnan().any()
    assert (e[1:] >= e[:-1]).all()
    inside = scores <= reference[-1]
    assert torch.equal(e[inside], -Calibrated((reference,)).p_values(scores[inside]).log())
    assert (e[~inside] >= math.log(len(values) + 1) * (1 - 1e-15)).all()  # logarithms differ in the last bit
    assert (e >= 0).all()


@given(values=reference_values)
def test_evidence_keeps_growing_beyond_the_references(values):
    reference = torch.tensor(values, dtype=torch.float64).sort().values
    curve = Evidence.of(reference)
    assert 0 < curve.scale < math.inf
    steps = curve.scale * torch.tensor([0.1, 1.0, 10.0, 100.0], dtype=torch.float64)
    e = curve(reference[-1] + steps)
    assert (e.diff() > 0).all()
    assert torch.allclose(e, math.log(len(values) + 1) + torch.tensor([0.1, 1, 10, 100]).double(), rtol=1e-3)


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (range(100), 5.5),  # 90..99 over 89
        ([7.0], 7.0),  # one reference, constant references: their size
        ([0.0] * 50, 1.0),
        ([-3.0] * 50, 3.0),
        ([1.0] * 90 + [3.0] * 10, 2.0),
        ([1.0] * 50 + [3.0] * 50, 1.0),  # nothing above the quantile: the standard deviation
        ([1.0] * 99 + [1.0 + 1e-9], 1e-6),
        ([1.0, 2.0, math.inf], 1.0),
        ([math.inf, math.inf], 1.0),
    ],
)
def test_the_scale_of_the_tail_is_the_mean_excess_over_the_90_percent_quantile(values, scale):
    assert tail_scale(torch.tensor([float(v) for v in values], dtype=torch.float64)) == pytest.approx(scale)


def test_a_score_a_hundred_times_the_largest_reference_outweighs_every_other_score():
    references = [torch.rand(200, generator=torch.Generator().manual_seed(i)).sort().values for i in (0, 1)]
    far, near = evidence(references, [torch.tensor([100.0, 1.0]), torch.tensor([0.0, 1.0])]).tolist()
    assert far > 10 * near


@pytest.mark.parametrize("rate", [0, 1, -0.1, 5, float("nan")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(DissensusError, match="between 0 and 1"):
        check_rate(rate)
