"""Registries: unknown and repeated names."""

from __future__ import annotations

import pytest

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus._core.registry import Registry


@pytest.fixture
def sizes() -> Registry[int]:
    return Registry("size", {"small": 1, "very-large": 2})


@pytest.mark.parametrize(("name", "near"), [("smal", "small"), ("SMALL", "small"), ("very_large", "very-large")])
def test_an_unknown_name_suggests_the_nearest(sizes, name, near):
    with pytest.raises(UnknownNameError, match=f"^unknown size '{name}': did you mean '{near}'[?] known: small, very-"):
        sizes[name]
    with pytest.raises(UnknownNameError, match="unknown size"):
        sizes.check("small", name)


@pytest.mark.parametrize(
    ("name", "near"),
    [("--epoch", "--epochs"), ("--output", "--out"), ("--foo", None), ("--score", None), ("score", None)],
)
def test_a_flag_is_suggested_only_if_it_is_close_without_the_dashes(name, near):
    message = str(UnknownNameError("argument", name, ["--root", "--workers", "--epochs", "--out"], see="--help"))
    hint = "" if near is None else f"did you mean '{near}'? "
    assert message == f"unknown argument '{name}': {hint}see: --help"


def test_what_is_not_a_name_is_unknown(sizes):
    with pytest.raises(UnknownNameError, match="unknown size 'None': known: small"):
        sizes[None]


def test_a_name_is_added_once(sizes):
    sizes.add("tiny", 0)
    assert sizes["tiny"] == 0
    with pytest.raises(DissensusError, match="every size needs its own name; 'tiny' is taken: choose another"):
        sizes.add("tiny", 3)
    assert sizes["tiny"] == 0


def test_a_copy_refuses_too_and_is_separate(sizes):
    other = sizes.copy()
    other["tiny"] = 0
    assert "tiny" not in sizes
    with pytest.raises(UnknownNameError):
        other["smal"]
