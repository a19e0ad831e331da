"""Default options converge, and a run that did not says so."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dissensus._core.errors import DissensusWarning
from dissensus.cli import main
from dissensus.features import FeatureSet
from dissensus.models.norms import NORMS
from dissensus.training import Run, TrainOptions, fit, new_ensemble
from dissensus.training.logbook import Logbook
from dissensus.training.options import Task

STILL = "stopped while it still improved"


def overlapping(samples: int, seed: int, width: int = 24, classes: int = 6) -> FeatureSet:
    """Noisy labels of a linear rule."""
    generator = torch.Generator().manual_seed(7)
    rule = torch.randn(width, classes, generator=generator)
    generator.manual_seed(seed)
    x = torch.randn(samples, width, generator=generator)
    labels = (x @ rule + 2 * torch.randn(samples, classes, generator=generator)).argmax(1)
    return FeatureSet.from_arrays(x, labels)


@pytest.mark.parametrize(
    ("samples", "method", "members"),
    [(60, "single", 1), (400, "single", 1), (400, "deep-ensemble", 3), (400, "sed-a2d", 3), (6000, "sed-a2d", 2)],
)
def test_defaults_are_as_accurate_as_logistic_regression(samples, method, members):
    train, test = overlapping(samples, 0), overlapping(4000, 1)
    x, y = (NORMS["l2"](train.rows(slice(None))), train.labels)
    peer = LogisticRegression(C=1, max_iter=2000).fit(x, y).score(NORMS["l2"](test.rows(slice(None))), test.labels)
    ensemble = new_ensemble(train, members)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(ensemble, train, method, progress=False)
    with torch.no_grad():
        predicted = ensemble(test.rows(slice(None))).mean(0).argmax(-1)
    assert float((predicted == test.labels).double().mean()) > peer - 0.01


def test_columns_without_signal_are_not_fitted():
    """20 of 400 columns matter. AdamW is 30 points below logistic regression here."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 20
    x = torch.randn(3000, 400, generator=generator) + 3 * torch.eye(20, 400)[labels]
    train, test = FeatureSet.from_arrays(x[:2000], labels[:2000]), x[2000:]
    peer = LogisticRegression(C=0.001, max_iter=500).fit(x[:2000], labels[:2000]).score(test, labels[2000:])
    ensemble = fit(new_ensemble(train, 2), train, "deep-ensemble", progress=False)
    with torch.no_grad():
        accuracy = float((ensemble(test).mean(0).argmax(-1) == labels[2000:]).double().mean())
    assert accuracy > peer - 0.05


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 1},
        {"epochs": 3},
        {"schedule": "constant", "lr": 1e-4, "member_epochs": 20},
        {"lr": 1e-4, "member_epochs": 20},
        {"epochs": 1, "batch_size": 400},  # a single step
    ],
)
def test_training_that_ends_too_soon_is_reported(options, tmp_path):
    train = overlapping(400, 0)
    remedy = "raise member_epochs" if "member_epochs" in options else "raise epochs, or leave it out"
    remedy += rf" \(now {options.get('epochs') or options['member_epochs']}\)"
    with pytest.warns(DissensusWarning, match=f"({STILL}|too few to learn from).* train longer: {remedy}") as seen:
        fit(new_ensemble(train, 2), train, "deep-ensemble", out=tmp_path / "run", progress=False, **options)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert Run.open(tmp_path / "run").info.notes == (str(seen[0].message),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not again for a run that is there
        fit(new_ensemble(train, 2), train, "deep-ensemble", out=tmp_path / "run", progress=False, **options)


def test_the_remedy_names_an_option_that_changes_something():
    train = overlapping(400, 0)
    with pytest.warns(DissensusWarning, match=STILL) as seen:
        fit(new_ensemble(train, 4), train, "sed-a2d", lr=1e-4, progress=False)
    assert "train longer: raise member_epochs (now 143), or raise lr (now 0.0001)" in str(seen[0].message)
    longer = [TrainOptions(member_epochs=count).resolve("sed-a2d", 4, Task(400)).epochs for count in (None, 143, 144)]
    assert longer[0] == longer[1] < longer[2]


@pytest.mark.parametrize(("early_stop", "patience", "stops"), [(0.0, 8, False), (0.2, 100, False), (0.2, 1, True)])
def test_training_that_early_stopping_ends_is_not_reported(early_stop, patience, stops, tmp_path, monkeypatch):
    """With samples held out but trained to the end, it is."""
    monkeypatch.setattr("dissensus.training.early_stop.PATIENCE", patience)
    ended = []
    monkeypatch.setattr(Logbook, "notes", lambda log, notes=Logbook.notes: ended.append(notes(log)) or ended[-1])
    options = {"lr": 0.3, "schedule": "constant", "epochs": 3} if stops else {"lr": 1e-4, "member_epochs": 20}
    train = overlapping(400, 0)
    fit(
        new_ensemble(train, 2), train, "deep-ensemble", early_stop=early_stop, out=tmp_path / "run", progress=False,
        **options,
    )  # fmt: skip
    notes = Run.open(tmp_path / "run").info.notes
    assert (len(notes), len(ended)) == ((0, 0) if stops else (1, 1))


@pytest.mark.parametrize("what", ["labels at random", "constant schedule", "label smoothing"])
def test_training_that_has_converged_is_not(what, tmp_path):
    train = overlapping(400, 0)
    if what == "labels at random":
        shuffled = train.labels[torch.randperm(400, generator=torch.Generator().manual_seed(0))]
        train = FeatureSet.from_arrays(train.rows(slice(None)), shuffled)
    options = {"constant schedule": {"schedule": "constant"}, "label smoothing": {"label_smoothing": 0.1}}.get(what, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(new_ensemble(train, 2), train, "deep-ensemble", out=tmp_path / "run", progress=False, **options)
    assert Run.open(tmp_path / "run").info.notes == ()


def test_the_command_line_prints_one_line(tmp_path, capsys):
    overlapping(400, 0).save(tmp_path / "features")
    arguments = ["train", str(tmp_path / "features"), "--out", str(tmp_path / "run"), "--epochs", "1", "--no-progress"]
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if STILL in line]
    assert len(lines) == 1
    assert lines[0].startswith("dissensus: warning: sed-a2d stopped")
    assert "logbook" not in lines[0]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["notes"] == [
        lines[0].removeprefix("dissensus: warning: ")
    ]
