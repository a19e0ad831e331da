"""Sums and samples of training features: their parts, put together, are the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus.functional import moments
from dissensus.functional.moments import _Spread, draw, within


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.floats(-1e3, 1e3), st.integers(1, 50))
def test_the_spread_of_parts_is_that_of_the_whole(sizes, shift, held):
    values = [shift + torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in sizes]
    spread = _Spread()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "LENGTHS", held)
        for part in values:
            spread.add(part)
        n, mean, deviation = spread.total(None)
    whole = torch.cat(values)
    assert n == len(whole)
    if n:
        assert mean == pytest.approx(float(whole.mean()), rel=1e-12, abs=1e-12)
        # to 1e-9 of the values, however large beside their deviation
        assert deviation == pytest.approx(float(whole.std(correction=0)), rel=1e-9, abs=1e-9)


def test_few_values_are_summed_up_exactly_as_before():
    values = torch.randn(1000, dtype=torch.float64)
    spread = _Spread()
    for part in values.split(64):
        spread.add(part)
    assert spread.total(None) == (1000, float(values.mean()), float(values.std(correction=0)))


def test_a_sample_of_a_huge_set_is_drawn_without_permuting_it(monkeypatch):
    monkeypatch.setattr(torch, "randperm", _small(torch.randperm))
    drawn = draw(10**9, 5000)
    assert len(drawn) == 5000
    assert torch.equal(drawn, drawn.unique())  # ascending, each once
    assert torch.equal(drawn, draw(10**9, 5000))
    # uniform: every tenth of the set has its share, up to four standard deviations
    share = torch.bincount(drawn // 10**8, minlength=10) / 5000
    assert (share - 0.1).abs().max() < 4 * (0.1 * 0.9 / 5000) ** 0.5
    assert len(within(drawn, slice(0, 10**8))) == int(share[0] * 5000 + 0.5)


def test_a_sample_of_a_smaller_set_is_the_one_of_earlier_versions():
    expected = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:20].sort().values
    assert torch.equal(draw(1000, 20), expected)
    assert torch.equal(draw(20, 20), torch.arange(20))


def _small(randperm):
    def checked(n, **options):
        assert n < 10**6
        return randperm(n, **options)

    return checked
