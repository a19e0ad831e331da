"""Digests and durations: the examples in their docstrings, and what a digest depends on."""

from __future__ import annotations

import doctest

from dissensus._core import digests, durations
from dissensus._core.digests import digest


def test_a_digest_changes_with_every_fact_and_is_the_same_everywhere():
    facts = {"seed": 0, "sets": [["id", None], ["ood", "C-1"]]}
    assert digest(facts) == "775e2f7b1df1ab1f76433c2bd112486bac5429e9f8d5a88a7aa1f997491817f0"
    others = [{**facts, "seed": 1}, {**facts, "sets": facts["sets"][::-1]}, {**facts, "lr": 0.1}]
    assert len({digest(each) for each in (facts, *others)}) == 4


def test_the_examples_are_right():
    assert doctest.testmod(digests) == doctest.TestResults(failed=0, attempted=1)
    assert doctest.testmod(durations) == doctest.TestResults(failed=0, attempted=1)
