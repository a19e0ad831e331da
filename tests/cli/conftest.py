"""Digits that are quickly at hand."""

from __future__ import annotations

from functools import partial

import pytest

from dissensus import suites


@pytest.fixture(scope="package", autouse=True)
def small_digits():
    """The suite `digits` with half of its shifts, by default through a small random trunk.

    What it is through EfficientNet is tested in suites/test_digits.py and experiments/test_demo.py.
    """
    entry = suites.SUITES["digits"]
    small = partial(entry.factory, severities=(1,), backbone="test_vit", weights="random", size=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(suites.SUITES, "digits", entry._replace(factory=small))
        yield
