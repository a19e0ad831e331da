"""The folder of a tuning: it continues, its remedies work, and what the user made in it is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dissensus import Detector
from dissensus._core.errors import RunError
from dissensus.adaptation import _tune as tune_module
from dissensus.adaptation import trials
from dissensus.adaptation.candidates import DEEP, INCUMBENT
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.training import Run, fit, new_ensemble
from tests.adaptation.tuning import picking, quiet, ticking, trained
from tests.conftest import blobs

pytestmark = pytest.mark.usefixtures("few")

OTHER = "4*mahalanobis+2*pds+feature_norm"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


def stopped(features, out, monkeypatch):
    """Tune with a budget that ends the search after four trainings."""
    with monkeypatch.context() as patch:
        ticking(patch)
        tuned = quiet(features, out=out, budget=550)
    assert tuned.document.stopped
    return tuned


def calibrate(out, score="pds", false_alarms=0.2):
    """As `dissensus calibrate`."""
    Detector.load(out, calibrated=False).calibrate(blobs(100, classes=5, seed=7), false_alarms, score).save(out)


def rule(out):
    threshold = Detector.load(out).threshold
    return threshold.name, threshold.false_alarms


def test_the_calibration_of_the_user_is_kept(features, out, capsys):
    quiet(features, out=out)
    calibrate(out)
    tuned = quiet(features, out=out, progress=True)
    assert rule(out) == (tuned.score, tuned.detector.threshold.false_alarms) == ("pds", 0.2)
    assert "keeps its calibration at 0.2 false alarms" in capsys.readouterr().err


def test_a_run_without_calibration_is_calibrated(features, out):
    first = quiet(features, out=out)
    (out / "detector.json").unlink()
    quiet(features, out=out)
    assert rule(out) == (first.score, 0.05)


def test_a_damaged_choice_is_made_again_once_it_is_removed(features, out, monkeypatch):
    first = quiet(features, out=out)
    path = out / "tuning.json"
    path.write_text("{}")
    with pytest.raises(RunError, match=r"tuning\.json is damaged .* remove .* to choose again"):
        quiet(features, out=out)
    path.unlink()
    seen = trained(monkeypatch)
    again = quiet(features, out=out)
    assert seen == [again.method], "nothing is trained again"
    assert again.document.choice == first.document.choice
    assert again.ensemble.fingerprint == first.ensemble.fingerprint
    assert path.exists()
    assert not list(out.glob("tuning/*/replaced-*"))


def test_a_run_of_another_choice_is_set_aside(features, out, monkeypatch):
    first = quiet(features, out=out)
    (out / "notes.txt").write_text("precious")
    (out / "tuning.json").unlink()
    picking(monkeypatch, DEEP, OTHER)
    again = quiet(features, out=out)
    assert (again.method, again.score) == ("deep-ensemble", OTHER)
    assert Run.open(out).settings["method"] == "deep-ensemble"
    assert rule(out) == (OTHER, 0.05)
    (old,) = out.glob("tuning/*/replaced-*")
    assert Detector.load(old).ensemble.fingerprint == first.ensemble.fingerprint
    assert (old / "notes.txt").read_text() == "precious"


def test_a_run_that_is_set_aside_in_part_is_continued(features, out, monkeypatch):
    quiet(features, out=out)
    (out / "tuning.json").unlink()
    picking(monkeypatch, DEEP, OTHER)
    count = sum(path.name not in ("tuning", "tuning.csv") for path in out.iterdir())
    moved, rename = [], Path.rename

    def interrupted(path, target):
        if path.parent == out:
            if len(moved) == count - 1:
                raise KeyboardInterrupt
            moved.append(path.name)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quiet(features, out=out)
    assert (out / "run.json").exists()
    assert quiet(features, out=out).score == OTHER
    assert Run.open(out).settings["method"] == "deep-ensemble"


def test_a_run_of_another_command_is_left_alone(features, out):
    quiet(features, out=out)
    (out / "tuning.json").unlink()
    (out / "tuning").rename(out.parent / "elsewhere")
    with pytest.raises(RunError, match="holds a run that tune did not make"):
        quiet(features, out=out)


@pytest.mark.parametrize("decided", [False, True])
def test_a_run_that_was_trained_beside_a_killed_search_is_left_alone(decided, features, out, monkeypatch):
    def killed(*rest, **keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tune_module if decided else trials, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            quiet(features, out=out)
    if decided:
        (out / "tuning" / next(iter(os.listdir(out / "tuning"))) / "made").unlink()  # killed before that
    fit(new_ensemble(features, 2), features, "deep-ensemble", out=out, progress=False)
    with pytest.raises(RunError, match="holds another run" if decided else "holds a run that tune did not make"):
        quiet(features, out=out)
    assert Run.open(out).settings["method"] == "deep-ensemble"


def test_another_version_is_another_tuning(features, out, monkeypatch):
    quiet(features, out=out)
    monkeypatch.setattr(tune_module, "__version__", "99")
    with pytest.raises(RunError, match="of other data, options or version"):
        quiet(features, out=out)


def test_a_larger_budget_continues_what_a_smaller_one_ended(features, out, monkeypatch):
    first = stopped(features, out, monkeypatch)
    seen = trained(monkeypatch)
    assert quiet(features, out=out, budget=550).document == first.document, "the same budget"
    assert seen == [first.method]
    seen.clear()
    again = quiet(features, out=out)
    assert not again.document.stopped
    assert len(seen) == 1 + 3 + 1, "the rest of the first rung, the second, the winner"
    assert set(again.frame["share"]) == {0.25, 1}
    seen.clear()
    assert quiet(features, out=out, budget=1e6).document == again.document, "it is complete"
    assert len(seen) == 1


def test_another_score_replaces_the_calibration_of_the_choice_before(features, out, monkeypatch):
    assert stopped(features, out, monkeypatch).score == DEFAULT_SCORE
    picking(monkeypatch, INCUMBENT, OTHER)
    assert quiet(features, out=out).score == OTHER
    assert rule(out) == (OTHER, 0.05)
    assert not list(out.glob("tuning/*/replaced-*")), "the ensemble is the same"


def test_another_score_does_not_replace_the_calibration_of_the_user(features, out, monkeypatch):
    stopped(features, out, monkeypatch)
    calibrate(out)
    picking(monkeypatch, INCUMBENT, OTHER)
    quiet(features, out=out)
    assert rule(out) == ("pds", 0.2)
