"""The demo, short: every method trains and is evaluated, files are there, a second call repeats nothing."""

from __future__ import annotations

import pytest

from dissensus.adaptation import splits
from dissensus.cli import main
from dissensus.evaluation import results
from dissensus.training import TrainOptions, methods, options
from dissensus.training.options import MEMBERS, Task


@pytest.mark.slow
def test_the_demo_fills_its_tables_and_a_second_call_trains_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(splits, "FOLDS", 1)  # of `auto`, whose trainings --member-epochs does not shorten
    monkeypatch.setattr(options, "UPDATES", 16)
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--member-epochs", "3", "--no-progress"]
    assert main(arguments) == 0
    first = capsys.readouterr()
    frame = results.read(tmp_path / "demo" / "results.csv")
    assert set(frame["method"]) == {*methods.METHODS, "auto"}
    assert {name.split("/")[0] for name in frame["dataset"]} == {"digits", "dominoes"}
    for method in (*methods.METHODS, "auto"):
        assert f"\n{method} " in first.out
        assert (tmp_path / "demo" / "digits" / method / "ensemble" / "ensemble.safetensors").is_file()
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "What one model does without an ensemble" in page
    assert 'href="dominoes/report.html"' in page
    assert (tmp_path / "demo" / "dominoes" / "report.html").is_file()
    assert "worst group" in first.out
    assert "adapted, 16 random labels" in first.out
    assert "a cue tied to the label" in (tmp_path / "demo" / "dominoes" / "report.html").read_text()
    assert first.err.count(" nine times in ten") == len(methods.METHODS) + 1 + 5  # a line for every method

    def no_step(*args):
        raise AssertionError("nothing should be trained again")

    monkeypatch.setattr("dissensus.training.step.Stepper.__call__", no_step)
    assert main(arguments) == 0
    assert capsys.readouterr().out == first.out


def test_every_member_makes_the_same_number_of_steps_in_the_demo():
    for name, method in methods.METHODS.items():
        members = method.members or MEMBERS
        settings = TrainOptions(member_epochs=20).resolve(name, members, Task(500))
        assert settings.epochs * settings.active / members == 20, name
