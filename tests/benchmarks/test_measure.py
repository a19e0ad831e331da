"""How sides are timed and compared."""

import dataclasses
import os
import statistics
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import WARM_UP, Bar, Comparison, Side, compare, interleave
from dissensus._core.errors import DissensusError


def comparison(numerator_ms, denominator_ms):
    return Comparison("ab", "a", "b", Bar("<=", 2.0), tuple(numerator_ms), tuple(denominator_ms))


def test_sides_take_turns_and_the_warm_up_does_not_count():
    order, warm_up = [], [99.0] * WARM_UP
    a, b = iter([*warm_up, 1.0, 2.0, 3.0]), iter([*warm_up, 4.0, 5.0, 6.0])

    def recording(name, values):
        def run():
            order.append(name)
            return next(values)

        return run

    assert interleave("ab", recording("a", a), recording("b", b), repeats=3) == ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert "".join(order[-6:]) == "ba" + "ab" + "ba"
    assert len(order) == 2 * (3 + WARM_UP)


def test_the_ratio_is_the_median_of_paired_ratios():
    result = comparison((9.0, 3.0, 10.0), (3.0, 4.0, 5.0))
    assert statistics.median(result.numerator_ms) / statistics.median(result.denominator_ms) == 2.25
    assert result.record() == {
        "name": "ab",
        "ratio": 2.0,  # of 3, 0.75 and 2
        "numerator": "a",
        "denominator": "b",
        "bar": "<= 2",
        "met": True,
        "numerator_ms": 9.0,
        "denominator_ms": 4.0,
        "repeats": 3,
        "ratio_quartiles": [1.375, 2.5],
    }
    assert result.row() == ["ab", "2.00 [1.38, 2.50]", "<= 2", "yes", "9.0 / 4.0 ms"]
    noted = dataclasses.replace(result, note="accuracy 0.9 / 0.8")
    assert noted.row()[-1] == "9.0 / 4.0 ms, accuracy 0.9 / 0.8"
    assert noted.record() == {**result.record(), "note": "accuracy 0.9 / 0.8"}


times = st.floats(min_value=1e-3, max_value=1e6)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30))
def test_the_ratio_lies_within_its_quartiles(pairs):
    result = comparison(*zip(*pairs, strict=True))
    low, high = result.quartiles
    assert min(result.ratios) <= low <= result.ratio <= high <= max(result.ratios)


@given(st.lists(st.tuples(times, st.floats(min_value=0.01, max_value=100.0)), min_size=1, max_size=30))
def test_load_that_slows_both_sides_of_a_repeat_cancels(repeats):
    result = comparison([1.5 * ms * load for ms, load in repeats], [ms * load for ms, load in repeats])
    assert [result.ratio, *result.quartiles] == pytest.approx([1.5, 1.5, 1.5])


def failing():
    return partial(os._exit, 7)


def test_a_process_that_ends_early_is_reported():
    side = Side("one that fails", failing)
    with pytest.raises(DissensusError, match="process of 'one that fails' ended with exit code 7"):
        compare("ab", side, side, Bar("<", 1.0), repeats=1)


@pytest.mark.parametrize(
    ("sign", "below", "at", "above"),
    [("<", True, False, False), ("<=", True, True, False), (">", False, False, True), (">=", False, True, True)],
)
def test_bars(sign, below, at, above):
    assert [Bar(sign, 2.0).met(value) for value in (1.9, 2.0, 2.1)] == [below, at, above]
