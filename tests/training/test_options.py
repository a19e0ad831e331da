"""TrainOptions: one list, one set of defaults, one rule for epochs, wherever training is asked for."""

from __future__ import annotations

import dataclasses
import inspect
import math

import pytest
import torch

from dissensus import DissensusClassifier, suites
from dissensus._core.errors import DissensusError
from dissensus.cli import parser
from dissensus.experiments.runner import training_options
from dissensus.features import FeatureSet
from dissensus.models.ensemble import Ensemble
from dissensus.report import reproduce
from dissensus.training import METHODS, Run, TrainOptions, fit
from dissensus.training.options import DIVERSITY, LR, TUNABLE, WEIGHT_DECAY, Settings, Task
from tests.conftest import blobs, linear

TASK = Task(100, "linear", 6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("members", [3, 5, 50])
def test_every_member_makes_member_epochs_passes(method, members):
    members = METHODS[method].members or members
    settings = TrainOptions(member_epochs=20).resolve(method, members, TASK)
    passes = settings.epochs * settings.active / members
    assert 20 <= passes < 20 + settings.active / members


def test_epochs_are_taken_as_given_and_all_members_need_no_more():
    assert TrainOptions(epochs=7, member_epochs=20).resolve("sed-a2d", 50, TASK).epochs == 7
    assert TrainOptions(member_epochs=20, main="all").resolve("sed-a2d", 50, TASK).epochs == 20
    assert TrainOptions(active=10, member_epochs=10).resolve("sed-a2d", 50, TASK).epochs == 10 * 5


@pytest.mark.parametrize(
    ("samples", "method", "members", "given", "batch_size", "epochs"),
    [
        (1, "single", 1, {}, 16, 1000),
        (10, "single", 1, {}, 16, 1000),
        (10, "deep-ensemble", 5, {}, 16, 1000),
        (128, "single", 1, {}, 16, 125),
        (576, "sed-a2d", 5, {}, 64, 280),  # 9 steps per epoch, 112 passes for each member
        (1167, "single", 1, {}, 128, 100),
        (28_400, "single", 1, {}, 256, 10),  # 111 steps per epoch: 10 passes are more than 1000 updates
        (1_000_000, "sed-a2d", 5, {}, 256, 25),
        (1_000_000, "sed-a2d", 50, {"active": 2}, 256, 250),
        (100, "sed-a2d", 50, {"active": 2}, 16, 25 * 143),
        (100, "sed-a2d", 50, {"main": "all"}, 16, 143),
        (100, "single", 1, {"batch_size": 1000}, 1000, 1000),
        (100, "single", 1, {"batch_size": 1}, 1, 10),
        (100, "single", 1, {"member_epochs": 3}, 16, 3),
        (100, "single", 1, {"epochs": 2}, 16, 2),
    ],
)
def test_every_member_makes_enough_passes_and_updates(samples, method, members, given, batch_size, epochs):
    settings = TrainOptions(**given).resolve(method, members, Task(samples))
    assert (settings.batch_size, settings.epochs) == (batch_size, epochs)
    if not {"epochs", "member_epochs"} & set(given):
        updated = members if settings.main == "all" else settings.active
        passes = epochs * updated / members
        assert passes >= 10
        assert passes * math.ceil(samples / batch_size) >= 1000


def test_augmented_passes_are_the_same_samples():
    features = FeatureSet.from_arrays(torch.randn(60, 6), torch.arange(30).repeat(2) % 3)
    features = features.subset(torch.arange(60), passes=2)
    assert Task.of(linear(), features) == Task(30, "linear", 6, 60 * 6 * 4)
    assert Task.of(Ensemble(torch.nn.Linear(6, 3), members=2), features) == Task(30, None, None, 60 * 6 * 4)


@pytest.mark.parametrize(
    ("tail", "width", "given", "lr", "weight_decay"),
    [
        ("linear", 1280, {}, 0.001018, 1.965),
        ("linear", 4, {}, 0.04762, 0.042),
        ("linear", 1280, {"lr": 1e-5}, 1e-5, 1.965),  # as strong a decay, whatever the learning rate
        ("linear", 1280, {"weight_decay": 0.0}, 0.001018, 0.0),
        ("mlp", 1280, {}, LR, WEIGHT_DECAY),
        (None, None, {"lr": 0.1}, 0.1, WEIGHT_DECAY),
    ],
)
def test_learning_rate_and_weight_decay_follow_the_tail(tail, width, given, lr, weight_decay):
    settings = TrainOptions(**given).resolve("single", 1, Task(100, tail, width))
    assert (settings.lr, settings.weight_decay) == pytest.approx((lr, weight_decay), rel=1e-3)


def test_what_a_method_does_not_use_is_left_at_its_default():
    options = TrainOptions(diversity=0.5, confidence=0.9, lr=0.1)
    assert options.suited("deep-ensemble") == TrainOptions(lr=0.1)
    assert options.suited("sed-a2d") == TrainOptions(diversity=0.5, lr=0.1)
    assert options.suited("two-stage") == options


def test_defaults_are_the_same_everywhere(capsys):
    defaults = {name: getattr(TrainOptions(), name) for name in TUNABLE}
    signature = inspect.signature(DissensusClassifier).parameters
    assert {name: signature[name].default for name in TUNABLE} == defaults
    assert training_options("folders", {}) == TrainOptions()
    assert parser.parse(["train", "x", "--out", "y"])[1]["training"] == {}
    assert TrainOptions().resolve("sed-a2d", 5, TASK).diversity == DIVERSITY
    assert TrainOptions().resolve("two-stage", 5, TASK).confidence == 0.2


def test_options_given_go_over_those_of_the_suite(tmp_path):
    text = "training: {epochs: 3, lr: 0.5}\nsets:\n  a: {role: train, images: a}\n  b: {role: id, images: b}\n"
    (tmp_path / "own.yaml").write_text(text)
    suite = str(tmp_path / "own.yaml")
    assert training_options(suite, {"lr": 0.1}) == TrainOptions(epochs=3, lr=0.1)
    assert training_options(suite, {"member_epochs": 5}) == TrainOptions(member_epochs=5, lr=0.5)


@pytest.mark.parametrize("name", suites.SUITES)
def test_what_suites_recommend_can_be_trained_with(name):
    for method, recipe in METHODS.items():
        training_options(name, {}).suited(method).resolve(method, recipe.members or 5, TASK)


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
        settings = options.suited(method).resolve(method, members, Task(100))
    except DissensusError:
        pytest.skip("not for this method")
    about = {"tail": None, "backbone": None, "disagreement": None, "samples": 100}
    flags = dict(reproduce.changes({**dataclasses.asdict(settings), **about}))
    words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
    arguments = parser.parse(["train", "x", "--out", "y", *words])[1]
    assert TrainOptions(**arguments["training"]).resolve(arguments["method"], members, Task(100)) == settings
    assert set(flags) - {"method", "members"} <= {name}


def test_settings_are_what_is_recorded(tmp_path):
    fit(linear(), blobs(), epochs=1, log_every=7, progress=False, out=tmp_path / "run")
    recorded = Run.open(tmp_path / "run").info.settings
    assert Settings(**recorded) == TrainOptions(epochs=1).resolve("sed-a2d", 4, Task(120, "linear", 6))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"members": 0}, "members must be at least 1; got 0"),
        ({"diversity": -3.0}, "diversity must be at least 0; got -3"),
        ({"active": -2}, "active must be at least 1; got -2"),
        ({"epochs": -5}, "epochs must be at least 1; got -5"),
        ({"epochs": None}, "epochs must be a whole number; got None"),
        ({"lr": 0.0}, "lr must be above 0; got 0"),
    ],
)
def test_settings_follow_the_rules_of_options(changes, told):
    settings = TrainOptions().resolve("sed-a2d", 4, TASK)
    with pytest.raises(DissensusError, match=told):
        dataclasses.replace(settings, **changes)
