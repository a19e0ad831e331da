"""Detectors: verdicts, calibration kept with a run, the promised rate on real data."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from scipy import stats

from dissensus import suites
from dissensus._core.errors import DataError, DissensusError, RunError
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.functional import conformal, scores
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from tests.conftest import blobs, linear


def test_verdicts_say_what_the_ensemble_says(run, more):
    detector = Detector.load(run).calibrate(more, 0.1, "pds")
    found = detector.predict(more)
    logits = Ensemble.load(run / "ensemble").eval()(more.rows(slice(None))).detach()
    assert torch.equal(found.label, logits.mean(0).argmax(-1))
    assert torch.equal(found.votes, logits.argmax(-1).to(torch.int32))
    torch.testing.assert_close(found.score, scores.pds(logits))
    torch.testing.assert_close(found.confidence, logits.mean(0).softmax(-1).amax(-1))
    assert torch.equal(found.out, found.p_value <= 0.1)
    assert [v.name for v in found[3:5]] == ["3", "4"]
    one = found[3]
    assert one.class_name == detector.classes[int(found.label[3])]
    assert one.verdict in ("nothing unusual", "out")
    assert len(one.votes) == 4
    assert json.dumps(one.as_dict(explain=True))
    frame = found.frame()
    assert list(frame["verdict"]) == [v.verdict for v in found]
    assert [f"member {m}" in frame for m in range(1, 6)] == [True] * 4 + [False]


def test_without_calibration_there_is_no_verdict(run, more):
    found = Detector.load(run).predict(more)
    assert found.out is None
    assert found[0].verdict == ""
    assert found[0].as_dict()["verdict"] is None


def test_calibration_is_kept_with_the_run(run, more, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    detector = Detector.load(copy).calibrate(more, 0.07, ["pds", "average_energy"])
    detector.save(copy)
    again = Detector.load(copy)
    assert again.threshold.false_alarms == 0.07
    assert again.score_name == "pds+average_energy"
    for name in ("score", "p_value", "out", "threshold"):
        assert torch.equal(getattr(again.predict(more), name), getattr(detector.predict(more), name))


@pytest.mark.parametrize("damage", ["weights", "tensors", "foreign", "truncated", "emptied"])
def test_a_calibration_of_something_else_is_refused(run, more, tmp_path, damage):
    copy = shutil.copytree(run, tmp_path / "run")
    Detector.load(copy).calibrate(more).save(copy)
    if damage == "weights":
        other = Ensemble.load(copy / "ensemble")
        with torch.no_grad():
            next(other.parameters()).add_(1)
        other.save(copy / "ensemble")
    elif damage == "tensors":
        (copy / "detector.safetensors").write_bytes(b"nothing")
    elif damage == "emptied":
        (copy / "detector.json").write_text('{"format": "dissensus-detector-1"}')
    else:
        (copy / "detector.json").write_text("[]" if damage == "foreign" else "{")
    with pytest.raises(RunError, match="calibrate"):
        Detector.load(copy)
    Detector.load(copy, calibrated=False).calibrate(more).save(copy)  # what it says
    assert Detector.load(copy).threshold is not None


def test_a_calibration_is_not_saved_with_another_run(run, pictures, more):
    detector = Detector.load(run).calibrate(more)
    before = sorted(path.name for path in (pictures / "run").iterdir())
    with pytest.raises(RunError, match="holds another ensemble"):
        detector.save(pictures / "run")
    assert sorted(path.name for path in (pictures / "run").iterdir()) == before


def test_saved_files_have_the_usual_permissions(run, more, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    Detector.load(copy).calibrate(more).save(copy)
    (tmp_path / "plain").touch()
    assert (copy / "detector.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_another_rate_takes_the_same_calibration(run, more):
    detector = Detector.load(run).calibrate(more, 0.05)
    strict = detector.threshold.at(0.3)
    assert float(strict.limits(torch.zeros(1, dtype=torch.long))) < float(
        detector.threshold.limits(torch.zeros(1, dtype=torch.long))
    )
    with pytest.raises(DataError, match="needs 999"):
        detector.threshold.at(0.001)


def test_by_class_each_predicted_class_has_its_threshold(run, more):
    detector = Detector.load(run).calibrate(more, 0.1, by_class=True)
    found = detector.predict(more)
    limits = detector.threshold.calibrated.thresholds(0.1)
    assert len(limits) == 3
    assert torch.equal(found.threshold, limits[found.label])
    assert torch.equal(found.out, found.p_value <= 0.1)


def test_training_data_are_warned_of(run, more):
    with pytest.warns(UserWarning, match="not trained on"):
        Detector.load(run).calibrate(blobs())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"false_alarms": 0.0}, "between 0 and 1"),
        ({"false_alarms": 1.5}, "between 0 and 1"),
        ({"false_alarms": 0.0001}, "needs 9999 calibration samples; got 400"),
        ({"score": "pdz"}, "did you mean 'pds'"),
        ({"score": ["pds", "pds"]}, "must differ"),
        ({"score": "pds+bma", "false_alarms": 0.004}, "needs 498 calibration samples, half of them"),
        ({"score": []}, "needs a score"),
    ],
)
def test_bad_calibrations_are_refused(run, more, options, words):
    detector = Detector.load(run)
    with pytest.raises(DissensusError, match=words):
        detector.calibrate(more, **options)
    assert detector.threshold is None


def test_what_is_not_a_number_has_no_verdict(run, more):
    detector = Detector.load(run)
    with torch.no_grad():
        next(detector.ensemble.parameters()).fill_(3e38)
    with pytest.raises(DataError, match="logits must be finite"):
        detector.predict(torch.ones(2, 6))


def test_augmented_passes_are_no_calibration_samples(run, more):
    twice = FeatureSet.from_arrays(more.rows(slice(None)), provenance={"passes": 2})
    with pytest.raises(DataError, match="2 augmented passes: extract them without --augment"):
        Detector.load(run).calibrate(twice)


def test_classes_without_a_name_are_called_by_number():
    assert Detector(linear(classes=3), ["cat"]).classes == ("cat", "1", "2")
    with pytest.raises(DissensusError, match="the tail has 3, got 4 names"):
        Detector(linear(classes=3), ["a", "b", "c", "d"])
    with pytest.raises(DissensusError, match="needs the names of its classes"):
        Detector(Ensemble(torch.nn.Sequential(torch.nn.Linear(6, 3)), members=2))


def test_it_says_what_it_is(run, pictures, more):
    detector = Detector.load(run)
    assert repr(detector) == "Detector(4 members, 3 classes, score mahalanobis, not calibrated, features only)"
    detector.calibrate(more, 0.025, "pds+bma")
    assert "score pds+bma, calibrated at 2.5% false alarms" in repr(detector)
    assert repr(Detector.load(pictures / "run")).endswith("not calibrated, backbone resnet10t at 32 px)")


def test_a_trunk_made_in_inference_mode_serves_outside(pictures):
    detector = Detector.load(pictures / "run")
    with torch.inference_mode():
        assert detector.backbone
    assert len(detector.predict(sorted((pictures / "images" / "red").iterdir())[:1])) == 1


def test_another_backbone_is_refused(pictures, tmp_path):
    copy = shutil.copytree(pictures / "run", tmp_path / "run")
    about = json.loads((copy / "run.json").read_text())
    about["data"]["backbone"]["fingerprint"] = "0" * 64
    (copy / "run.json").write_text(json.dumps(about))
    with pytest.raises(DissensusError, match="must be the one that computed the features"):
        Detector.load(copy).predict([next((pictures / "images" / "red").iterdir())])


@pytest.mark.slow
@pytest.mark.parametrize("score", ["pds", ("pds", "average_energy"), "mahalanobis+pds", "2*mahalanobis+pds"])
def test_the_promised_rate_holds_on_digits(score):
    """5% on fresh ID data, within the binomial 99% interval, over 20 random splits."""
    suite = suites.load("digits", backbone="pixels")
    ensemble = Ensemble(tails.create("linear", suite.train.width, 8), members=5)
    fit(ensemble, suite.train, "sed-a2d", diversity=0.1, label_smoothing=0.1, epochs=10, lr=1e-2, batch_size=64,
        progress=False)  # fmt: skip
    inside = suite.sets[0].features
    rows = torch.cat([suite.held_out.rows(slice(None)), inside.rows(slice(None))])
    detector, alarms, fresh = Detector(ensemble, suite.train.classes), 0, 0
    for seed in range(20):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        detector.calibrate(rows[order[:299]], 0.05, score)
        found = detector.predict(rows[order[299:]])
        alarms, fresh = alarms + int(found.out.sum()), fresh + len(found)
    # of one split's size: the splits share their samples, so that twenty of them say little more than one
    low, high = stats.binom.interval(0.99, fresh // 20, 0.05)
    assert low <= alarms / 20 <= high


def test_needed_is_what_the_refusal_says(run, more):
    enough = conformal.needed(0.05)
    Detector.load(run).calibrate(more.subset(range(enough)), 0.05)
    with pytest.raises(DataError, match=f"needs {enough} calibration samples; got {enough - 1}"):
        Detector.load(run).calibrate(more.subset(range(enough - 1)), 0.05)
