"""TrainOptions: one list, one set of defaults, one rule for epochs, wherever training is asked for."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from dissensus import DissensusClassifier, suites
from dissensus._core.errors import DissensusError
from dissensus.cli import parser
from dissensus.estimators._options import TABLES
from dissensus.experiments.runner import training_options
from dissensus.report import reproduce
from dissensus.training import METHODS, Run, TrainOptions, fit
from dissensus.training.options import DIVERSITY, TUNABLE, Settings
from tests.conftest import blobs, linear


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("members", [3, 5, 50])
def test_every_member_makes_member_epochs_passes(method, members):
    members = METHODS[method].members or members
    settings = TrainOptions(member_epochs=20).resolve(method, members)
    passes = settings.epochs * settings.active / members
    assert 20 <= passes < 20 + settings.active / members


def test_epochs_are_taken_as_given_and_all_members_need_no_more():
    assert TrainOptions(epochs=7, member_epochs=20).resolve("sed-a2d", 50).epochs == 7
    assert TrainOptions(member_epochs=20, main="all").resolve("sed-a2d", 50).epochs == 20
    assert TrainOptions(active=10).resolve("sed-a2d", 50).epochs == 10 * 5


def test_what_a_method_does_not_use_is_left_at_its_default():
    options = TrainOptions(diversity=0.5, confidence=0.9, lr=0.1)
    assert options.suited("deep-ensemble") == TrainOptions(lr=0.1)
    assert options.suited("sed-a2d") == TrainOptions(diversity=0.5, lr=0.1)
    assert options.suited("two-stage") == options


def test_defaults_are_the_same_everywhere(capsys):
    defaults = {name: getattr(TrainOptions(), name) for name in TUNABLE}
    signature = inspect.signature(DissensusClassifier).parameters
    assert {name: signature[name].default for name in TUNABLE} == defaults | TABLES
    assert training_options("folders", {}) == TrainOptions()
    assert parser.parse(["train", "x", "--out", "y"])[1]["training"] == {}
    assert TrainOptions().resolve("sed-a2d", 5).diversity == DIVERSITY
    assert TrainOptions().resolve("two-stage", 5).confidence == 0.2


def test_options_given_go_over_those_of_the_suite(tmp_path):
    text = "training: {epochs: 3, lr: 0.5}\nsets:\n  a: {role: train, images: a}\n  b: {role: id, images: b}\n"
    (tmp_path / "own.yaml").write_text(text)
    suite = str(tmp_path / "own.yaml")
    assert training_options(suite, {"lr": 0.1}) == TrainOptions(epochs=3, lr=0.1)
    assert training_options(suite, {"member_epochs": 5}) == TrainOptions(member_epochs=5, lr=0.5)


@pytest.mark.parametrize("name", suites.SUITES)
def test_what_suites_recommend_can_be_trained_with(name):
    for method, recipe in METHODS.items():
        training_options(name, {}).suited(method).resolve(method, recipe.members or 5)


def test_the_docstrings_have_every_option():
    for target in (fit, TrainOptions, DissensusClassifier):
        for name in TUNABLE:
            assert f" {name}: " in target.__doc__, (target, name)
        assert "{options}" not in target.__doc__


SOME = {"diversity": 0.7, "active": 3, "lr": 0.02, "clip": 1.0, "main": "all", "seed": 9, "label_smoothing": 0.1}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", [*SOME, None])
def test_commands_lead_to_the_same_settings(method, name):
    """What a report prints is the shortest command that trains the same."""
    members = METHODS[method].members or 4
    options = TrainOptions(
        **({} if name is None else {name: min(SOME[name], members) if name == "active" else SOME[name]})
    )
    try:
        settings = options.suited(method).resolve(method, members)
    except DissensusError:
        pytest.skip("not for this method")
    about = {"tail": None, "backbone": None, "disagreement": None}
    flags = dict(reproduce.changes({**dataclasses.asdict(settings), **about}))
    words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
    arguments = parser.parse(["train", "x", "--out", "y", *words])[1]
    assert TrainOptions(**arguments["training"]).resolve(arguments["method"], members) == settings
    assert set(flags) - {"method", "members"} <= {name}


def test_settings_are_what_is_recorded(tmp_path):
    fit(linear(), blobs(), epochs=1, log_every=7, progress=False, out=tmp_path / "run")
    recorded = Run.open(tmp_path / "run").info.settings
    assert Settings(**recorded) == TrainOptions(epochs=1).resolve("sed-a2d", 4)
