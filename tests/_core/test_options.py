"""Options: types and rules are checked, unknown names suggest the nearest, help reaches docstrings."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus._core.options import AT_LEAST_1, check, combine, documented, given, listed, option, share


@dataclass(frozen=True)
class Cooking:
    minutes: int = option(10, "time on the stove", AT_LEAST_1)
    salt: float | None = option(None, "grams per litre")
    heat: Literal["low", "high"] = option("low", "how hot")
    lid: bool = option(False, "put the lid on", group="output")
    pot: str = option("large", "which pot")

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"minutes": 0}, "minutes must be at least 1; got 0"),
        ({"minutes": 1.5}, "minutes must be a whole number; got 1.5"),
        ({"minutes": True}, "minutes must be a whole number; got True"),
        ({"minutes": None}, "minutes must be a whole number; got None"),
        ({"minutes": 10**400}, "minutes must be a whole number; got 10000"),
        ({"salt": 10**400}, "salt must be a number; got 10000"),
        ({"salt": "much"}, "salt must be a number; got 'much'"),
        ({"heat": "off"}, "heat must be one of low, high; got 'off'"),
        ({"lid": 1}, "lid must be true or false; got 1"),
        ({"pot": 3}, "pot must be a text; got 3"),
    ],
)
def test_a_bad_value_is_one_line(keywords, message):
    with pytest.raises(DissensusError, match=message):
        Cooking(**keywords)


def test_numbers_of_numpy_become_pythons():
    cooking = Cooking(minutes=np.int64(3), salt=np.float32(0.5))
    assert type(cooking.minutes) is int
    assert type(cooking.salt) is float
    assert Cooking(salt=2).salt == 2.0


def test_keywords_go_over_options_and_unknown_ones_suggest_the_nearest():
    assert combine(Cooking, None, {}) == Cooking()
    assert combine(Cooking, Cooking(minutes=5, salt=1.0), {"minutes": 7}) == Cooking(minutes=7, salt=1.0)
    with pytest.raises(UnknownNameError, match="unknown option 'minute': did you mean 'minutes'"):
        combine(Cooking, None, {"minute": 5})


def test_given_are_those_that_differ_from_the_defaults():
    assert given(Cooking()) == {}
    assert given(Cooking(minutes=10, lid=True)) == {"lid": True}


def test_help_reaches_docstrings():
    @documented(listed(Cooking))
    def cook() -> None:
        """Cook.

        Args:
            {options}
        """

    help_text = inspect.getdoc(cook)  # Python 3.13 removes the indentation itself
    assert help_text is not None
    assert "\n    minutes: time on the stove (default: 10).\n" in help_text
    assert "\n    salt: grams per litre.\n" in help_text
    assert [(each.name, each.group) for each in listed(Cooking)][3] == ("lid", "output")


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), (" 0.5 ", 0.5), ("100%", 1.0)])
def test_share(text, value):
    assert share(text) == value


@pytest.mark.parametrize("text", ["much", "2", "-1%", "nan", ""])
def test_what_is_no_share(text):
    with pytest.raises(DissensusError, match="must be a share such as 1% or"):
        share(text)
