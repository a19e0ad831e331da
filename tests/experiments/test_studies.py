"""Studies: every table is filled, trials are trained once whatever asks for them, and a kill costs one run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from dissensus import suites
from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.cli import main
from dissensus.evaluation._evaluate import COMBINED
from dissensus.evaluation.examples import Example
from dissensus.evaluation.outcomes import Curve, Outcome
from dissensus.evaluation.results import BASELINES
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.experiments import studies
from dissensus.experiments.studies import tables
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.features import FeatureSet
from dissensus.functional.scores import SCORES
from dissensus.training import TrainOptions
from dissensus.training.options import DIVERSITY, SET_DIVERSITY
from tests.conftest import blobs

TRAINING = TrainOptions(member_epochs=2, lr=0.05, batch_size=32, diversity=0.1, confidence=0.8)


def grouped(seed: int) -> FeatureSet:
    noisy = blobs(seed=seed, noise=2.0)
    return FeatureSet.from_arrays(noisy.rows(slice(None)), noisy.labels, groups=torch.arange(120) % 2)


def tiny(seed: int = 0) -> Suite:
    """Clouds, noisier clouds and nothing of the kind."""
    away = FeatureSet.from_arrays(4 * torch.randn(60, 6, generator=torch.Generator().manual_seed(3)))
    other = FeatureSet.from_arrays(3 * torch.randn(60, 6, generator=torch.Generator().manual_seed(4)))
    sets = (
        SuiteSet("id", "id", blobs(seed=1)),
        SuiteSet("noise-1", "shift", blobs(seed=2, noise=1.2), family="C-1"),
        SuiteSet("blur-1", "shift", blobs(seed=3, noise=1.3), family="C-1"),
        SuiteSet("away", "ood", away),
        SuiteSet("groups", "groups", grouped(5)),
    )
    return Suite(
        "tiny", "Clouds.", blobs(), sets, held_out=blobs(seed=7), disagreement=other,
        pool=grouped(8).unlabelled(), labels=grouped(8),
    )  # fmt: skip


def lab(tmp_path, **options) -> Lab:
    options = {"norm": "none", **options}  # sure of some samples after two epochs, as two-stage needs it
    return Lab(lambda **changes: tiny(), tmp_path, TRAINING, quick=True, progress=False, **options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder of several studies: what one has trained, the others find."""
    return tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", [name for name in studies.STUDIES if name not in ("examples", "layers", "backbones")])
def test_a_study_fills_every_cell(name, shared):
    outcome = studies.run(name, lab(shared))
    assert outcome.tables or outcome.curves
    for table in (*outcome.tables, *(curve.table() for curve in outcome.curves)):
        assert table.rows
        assert table.title
        for row in table.rows:
            assert len(row.names) == len(table.heads)
            assert len(row.cells) == len(table.columns)
            untimed = row.names[0] in BASELINES.values() and table.columns[0].name == "epoch s"  # not a run of its own
            cells = row.cells[1:] if untimed else row.cells
            assert all(value is not None and np.isfinite(value.mean) for value in cells), (table.title, row.names)
        assert table.text().startswith(table.title)
        assert table.markdown().count("\n|") == len(table.rows) + 1
    assert Outcome.load(shared / f"{name}.json") == outcome


def test_numbers_are_those_of_evaluate(tmp_path):
    bench = lab(tmp_path, seeds=(0, 1))
    frame = bench.run([Trial("deep-ensemble", "deep-ensemble")])
    table = next(t for t in studies.run("generalization", bench).tables)
    row = next(row for row in table.rows if row.names == ("deep-ensemble", "5"))
    place = [(c.group, c.name) for c in table.columns].index(("ensemble %", "C-1"))
    chosen = frame[(frame["metric"] == "accuracy") & (frame["aggregate"] == "prediction")]
    by_seed = chosen[chosen["dataset"].isin(["noise-1", "blur-1"])].groupby("seed")["value"].mean()
    assert row.cells[place] == Value(pytest.approx(by_seed.mean()), pytest.approx(by_seed.std()), 2)


def test_generalization_shows_every_soup_that_was_measured(tmp_path):
    _, table = studies.run("generalization", lab(tmp_path)).tables
    assert list(dict.fromkeys(c.group for c in table.columns)) == [
        "uniform soup %", "greedy soup %", "learned soup %",
    ]  # fmt: skip
    assert "Learned soup: the weighted mean" in table.note
    bench = Lab(lambda **changes: replace(tiny(), held_out=None), tmp_path / "b", TRAINING, quick=True, progress=False)
    assert len(studies.run("generalization", bench).tables) == 1


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("given", [None, 0.07])
def test_the_fixed_weight_is_the_default_of_the_method_or_the_one_given(quick, given, tmp_path):
    bench = Lab(lambda **changes: tiny(), tmp_path, TrainOptions(diversity=given), quick=quick)
    fixed = {name: tables._fixed(bench, trials) for name, trials in tables._trials(bench, tables.ROWS).items()}
    own = {"sed-a2d": DIVERSITY, "a2d": SET_DIVERSITY, "divdis": SET_DIVERSITY}
    for name, trial in fixed.items():
        assert trial.diversity == (None if name not in own else given or own[name]), name


def count_steps(monkeypatch) -> list[int]:
    from dissensus.training.step import Stepper

    steps: list[int] = []
    original = Stepper.__call__

    def counted(self, *args):
        steps.append(1)
        return original(self, *args)

    monkeypatch.setattr(Stepper, "__call__", counted)
    return steps


def test_what_is_trained_is_not_trained_again(tmp_path, monkeypatch):
    steps = count_steps(monkeypatch)
    first = studies.run("detection", lab(tmp_path))
    assert steps
    steps.clear()
    assert studies.run("detection", lab(tmp_path)) == first
    studies.run("diversity", lab(tmp_path))  # the same trials
    assert not steps
    studies.run("detection", lab(tmp_path, seeds=(0, 1)))  # only the new seed
    once = len(steps)
    steps.clear()
    studies.run("detection", lab(tmp_path / "other"))
    assert once == len(steps)


def test_a_study_keeps_the_values_of_fitted_scores_but_not_their_states(tmp_path, monkeypatch):
    (table, *_) = studies.run("scores", lab(tmp_path)).tables
    assert {row.names[0] for row in table.rows} == {*SCORES, COMBINED}
    assert not list(tmp_path.rglob("scores.safetensors"))
    for path in tmp_path.rglob("evaluation*"):  # the values are gone: the run is evaluated again, scores included
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    steps = count_steps(monkeypatch)
    (again, *_) = studies.run("scores", lab(tmp_path)).tables
    assert again == table
    assert not steps


def test_changing_one_thing_repeats_what_depends_on_it(tmp_path, monkeypatch):
    steps = count_steps(monkeypatch)
    trials = [Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
    lab(tmp_path).run(trials)
    steps.clear()
    other = replace(TRAINING, diversity=0.3)
    changed = Lab(lambda **changes: tiny(), tmp_path, other, quick=True, progress=False, norm="none")
    changed.run(trials)  # a deep ensemble has no diversity
    assert len(steps) == 5 * 4  # sed-a2d: 2 epochs x 5 / 2 members, of 4 batches
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_the_norm_is_of_the_lab_unless_the_trial_has_one(tmp_path):
    raw, mine = Trial("raw", "deep-ensemble"), Trial("mine", "deep-ensemble", norm="layer")
    names = [
        bench.job(trial, 0).name(tiny())
        for bench in (lab(tmp_path, norm="none"), lab(tmp_path, norm=None), lab(tmp_path, norm="l2"))
        for trial in (raw, mine)
    ]
    assert names[1] == names[3] == names[5]
    assert names[2] == names[4], "l2 is the default"
    assert len(set(names)) == 3
    assert lab(tmp_path).job(raw, 0).ensemble(tiny()).tail.norm == "none"


def test_a_stopped_study_repeats_only_the_run_in_flight(tmp_path, monkeypatch):
    from dissensus.training.step import Stepper

    trials = [Trial(f"M={m}", "deep-ensemble", m) for m in (2, 3, 4)]
    original, seen = Stepper.__call__, []

    def stop_in_the_second(self, *args):
        seen.append(1)
        if len(seen) == 12:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(Stepper, "__call__", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        lab(tmp_path).run(trials)
    monkeypatch.setattr(Stepper, "__call__", original)
    steps = count_steps(monkeypatch)
    frame = lab(tmp_path).run(trials)
    assert set(frame["row"]) == {"M=2", "M=3", "M=4"}
    assert len(steps) == 2 * 8  # the second, which had no checkpoint yet, and the third


@pytest.mark.parametrize(
    ("name", "told"), [("examples", "needs images"), ("layers", "needs backbone"), ("backbones", "needs backbone")]
)
def test_a_suite_that_lacks_what_a_study_needs_is_told_so(name, told, tmp_path):
    with pytest.raises(DissensusError, match=f"study {name} {told}; suite tiny has none: use a suite of images"):
        studies.run(name, lab(tmp_path))


def test_sets_that_are_missing_are_named(tmp_path):
    def bare(**changes):
        whole = tiny()
        return Suite("bare", "Clouds.", whole.train, whole.sets[:1])

    bench = Lab(bare, tmp_path, TRAINING, quick=True, progress=False)
    with pytest.raises(DissensusError, match="study detection needs ood; suite bare has none: add a set of role ood"):
        studies.run("detection", bench)
    with pytest.raises(DissensusError, match="study groups needs groups; suite bare has none: use waterbirds"):
        studies.run("groups", bench)
    with pytest.raises(UnknownNameError, match="did you mean 'detection'"):
        studies.run("detecton", bench)


def test_best_values_text_and_json():
    columns = (Column("a", "x"), Column("a", "y", better="lower", percent=True), Column("", "z", better=""))
    rows = (
        Row(("one",), (Value(1.0), Value(0.5, 0.1, 3), None)),
        Row(("two",), (Value(2.0), Value(0.25, 0.0, 3), Value(7.0))),
        Row(("three",), (Value(9.0), Value(0.1), Value(8.0)), source="paper"),
    )
    table = Table("t", ("row",), columns, rows, "a note")
    assert table.best() == {(1, 0), (1, 1)}
    assert "50.0 ± 10.0" in table.text()
    assert "2.000*" in table.text()
    assert "three (paper)" in table.text()
    assert "| two | **2.000** | **25.0 ± 0.0** | 7.000 |" in table.markdown()
    curve = Curve("c", "x", "y", (1.0, 2.0), {"line": (Value(1.0), None)})
    example = Example(
        picture="data:image/png;base64,", place="id/7", truth="cat", answer="dog", votes=("dog", "dog"), pds=1.5
    )
    outcome = Outcome(
        study="s", paper="Table 0", suite="tiny", summary="all", tables=(table,), curves=(curve,),
        examples={"most": (example,)}, notes=("n",),
    )  # fmt: skip
    assert "cat; ensemble dog; members 2 x dog" in outcome.text()
    assert "id/7: cat" in outcome.markdown()


def test_value_of_nothing_and_of_one():
    assert Value.of([]) is None
    assert Value.of([float("nan")]) is None
    assert Value.of([2.0]) == Value(2.0, 0.0, 1)
    assert Value.of([1.0, 3.0]) == Value(2.0, pytest.approx(2**0.5), 2)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(suites, "SUITES", suites.SUITES.copy())
    suites.register(name="tiny-clouds", summary="Clouds.")(tiny)


def test_the_command_prints_tables_and_a_second_call_is_silent(registered, tmp_path, capsys, monkeypatch):
    command = [
        "study",
        "two-stage",
        "scores",
        "--suite",
        "tiny-clouds",
        "--quick",
        "--out",
        str(tmp_path),
        "--no-progress",
    ]
    options = ["--member-epochs", "2", "--lr", "0.05", "--batch-size", "32", "--confidence", "0.8", "--norm", "none"]
    assert main([*command, *options]) == 0
    first = capsys.readouterr()
    assert "study 1 of 2: two-stage" in first.err
    assert "run 1 of 2: two-stage, seed 0" in first.err
    assert "two-stage against joint" in first.out
    assert json.loads((tmp_path / "scores.json").read_text())["study"] == "scores"
    steps = count_steps(monkeypatch)
    assert main([*command, *options, "--format", "md"]) == 0
    again = capsys.readouterr()
    assert "run 1" not in again.err
    assert not steps
    assert "| joint |" in again.out


def test_all_leaves_out_what_the_suite_cannot_do(registered, tmp_path, capsys):
    command = ["study", "all", "--suite", "tiny-clouds", "--quick", "--out", str(tmp_path), "--no-progress"]
    assert (
        main(
            [
                *command,
                "--member-epochs",
                "2",
                "--lr",
                "0.05",
                "--batch-size",
                "32",
                "--confidence",
                "0.8",
                "--norm",
                "none",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert "left out: study layers needs backbone" in told.err
    assert "left out: study examples needs images" in told.err
    assert len(list(tmp_path.glob("*.json"))) == len(studies.STUDIES) - 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["detecton", "--suite", "digits"], "unknown study 'detecton': did you mean 'detection'"),
        (["detection", "--suite", "digts"], "unknown suite 'digts': did you mean 'digits'"),
        (["detection", "--suite", "pacs"], "name it with --root DIR"),
        (["detection", "--suite", "digits", "--seeds", "0"], "seeds must be at least 1; got 0"),
        (["all", "detection", "--suite", "digits"], "all is all of them"),
    ],
)
def test_misuse_is_one_line(arguments, told, capsys, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["study", *arguments, "--out", str(tmp_path / "out")])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.splitlines()[-1].startswith("dissensus: error: ")
    assert not (tmp_path / "out").exists()
