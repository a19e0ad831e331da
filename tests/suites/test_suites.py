"""The registry of suites."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dissensus import suites
from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.evaluation.suite import Suite
from dissensus.features import FeatureSet


@pytest.fixture
def _registry() -> Iterator[None]:
    """Forget what a test registers."""
    before = dict(suites.SUITES)
    yield
    suites.SUITES.clear()
    suites.SUITES.update(before)


def tiny(seed: int = 0) -> Suite:
    """Two rows of nothing."""
    features = FeatureSet.from_arrays(np.eye(2), [0, 1])
    return Suite("tiny", "", features, (suites.SuiteSet("id", "id", features),))


def test_an_unknown_suite_suggests_the_nearest() -> None:
    for ask in (suites.load, suites.summary):
        with pytest.raises(UnknownNameError, match="unknown suite 'domino': did you mean 'dominoes'"):
            ask("domino")


@pytest.mark.usefixtures("_registry")
def test_a_user_registers_a_suite() -> None:
    assert suites.register(tiny) is tiny
    assert suites.load("tiny", seed=3).name == "tiny"
    assert suites.summary("tiny") == "Two rows of nothing."


@pytest.mark.usefixtures("_registry")
def test_a_user_names_and_sums_up_a_suite() -> None:
    @suites.register(name="mine", summary="What I have.")
    def anything(seed: int = 0) -> Suite:
        return tiny()

    assert suites.SUITES["mine"].factory is anything
    assert suites.summary("mine") == "What I have."

    @suites.register
    def two_words(seed: int = 0) -> Suite:
        return tiny()

    assert suites.SUITES["two-words"].factory is two_words
    assert suites.summary("two-words") == ""


@pytest.mark.usefixtures("_registry")
def test_a_taken_name_and_a_factory_without_seed_are_refused() -> None:
    with pytest.raises(DissensusError, match="'digits' is taken: choose another"):
        suites.register(name="digits")(tiny)
    with pytest.raises(DissensusError, match="takes seed: int = 0; 'blind' does not"):
        suites.register(name="blind")(lambda: tiny())


@pytest.mark.parametrize("options", [{"sed": 1}, {"seed": 0, "tie": 1.0}])
def test_an_option_the_suite_does_not_take_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DissensusError, match=r"'digits' takes seed, severities, .*; got (sed|tie): leave"):
        suites.load("digits", **options)


def test_a_suite_says_what_it_takes_and_how_to_train_on_it() -> None:
    assert suites.accepted_options("dominoes") == ("seed", "tie")
    digits = suites.accepted_options("digits")
    assert digits is not None
    assert {"severities", "backbone", "engine", "features"} <= set(digits)
    assert not {"root", "notify", "corruption"} & set(digits)
    assert [suites.uses_backbone(name) for name in ("digits", "pacs", "dominoes")] == [True, True, False]
    for name in ("digits", "dominoes"):
        options = suites.training(name)
        options["diversity"] = 0
        assert suites.training(name)["diversity"] > 0, "a copy"
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        suites.training("digit")


@pytest.mark.usefixtures("_registry")
def test_a_users_suite_may_take_anything_and_say_how_to_train() -> None:
    @suites.register(training={"epochs": 3})
    def open_minded(seed: int = 0, **options: Any) -> Suite:
        return tiny() if options == {"colour": "red"} else tiny(1)

    assert suites.accepted_options("open-minded") is None
    assert suites.training("open-minded") == {"epochs": 3}
    assert suites.load("open-minded", colour="red").name == "tiny"


@pytest.mark.parametrize("name", ["digits", "dominoes"])
def test_an_embedded_suite_has_no_root(name: str) -> None:
    assert not suites.needs_root(name)
    with pytest.raises(DissensusError, match=f"suite '{name}' has its own data; got --root data: leave it out"):
        suites.load(name, root="data")
