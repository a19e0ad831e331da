"""FalseAlarms: the promise of a calibration, and the share measured from the scores that an evaluation kept."""

from __future__ import annotations

import doctest
import shutil

import pytest

from dissensus import suites
from dissensus.detection import false_alarms
from dissensus.detection.detector import Detector
from dissensus.detection.false_alarms import FalseAlarms
from dissensus.evaluation import saved
from dissensus.training import Run, fit, new_ensemble


@pytest.fixture(scope="module")
def suite():
    return suites.load("digits", backbone="pixels")


@pytest.fixture(scope="module")
def evaluated(suite, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    ensemble = new_ensemble(suite.train, 2)
    fit(ensemble, suite.train, "deep-ensemble", epochs=2, out=folder, progress=False)
    saved.evaluate_run(Run.open(folder), ensemble, suite.sets, suite="digits", progress=False)
    return folder


@pytest.fixture
def run(evaluated, tmp_path):
    return shutil.copytree(evaluated, tmp_path / "run")


@pytest.mark.parametrize("score", ["pds", "2*mahalanobis+pds"])
@pytest.mark.parametrize("by_class", [False, True])
def test_it_is_what_the_detector_says_of_the_id_set(score, by_class, run, suite):
    detector = Detector.load(run).calibrate(suite.held_out, 0.3, score, by_class=by_class)
    detector.save(run)
    alarms = FalseAlarms.of_run(run)
    (inside,) = [s.features for s in suite.sets if s.role == "id"]
    assert alarms.measured == pytest.approx(float(detector.predict(inside).out.double().mean()), abs=2 / len(inside))
    assert alarms.range == detector.threshold.calibrated.spread(0.3)
    assert alarms.samples == len(inside)
    assert (" of the rarest class: " in str(alarms)) == by_class
    assert f"n = {min(map(len, detector.threshold.calibrated.values))}" in str(alarms)


def test_more_samples_are_suggested_where_there_are_few(run, suite):
    for count, few in ((40, True), (100, False)):
        Detector.load(run).calibrate(suite.held_out.subset(slice(count)), 0.05, "pds").save(run)
        assert ("narrower with more held-out images" in str(FalseAlarms.of_run(run))) == few


def test_without_a_calibration_that_fits_there_are_none(run, suite):
    assert FalseAlarms.of_run(run) is None
    Detector.load(run).calibrate(suite.held_out, 0.05, "pds").save(run)
    for path in (run / "evaluation").glob("set-*"):
        path.unlink()
    assert FalseAlarms.of_run(run).measured is None
    assert "measured" not in str(FalseAlarms.of_run(run))
    (run / "detector.json").write_text("{}")
    assert FalseAlarms.of_run(run) is None


def test_the_example_is_true():
    assert doctest.testmod(false_alarms) == doctest.TestResults(failed=0, attempted=1)
