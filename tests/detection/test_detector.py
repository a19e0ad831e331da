"""Detectors: verdicts, calibration kept with a run, the promised rate on real data."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from scipy import stats

from dissensus import suites
from dissensus._core.errors import DataError, DissensusError, DissensusWarning, RunError, UnknownNameError
from dissensus.detection.detector import Detector
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.detection.samples import resolve
from dissensus.detection.threshold import TENSORS
from dissensus.features import FeatureSet
from dissensus.functional import conformal, scores
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import fit_scores
from dissensus.training._fit import fit
from tests.conftest import blobs, linear
from tests.damage import sealed


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
        next(copy.glob(TENSORS)).write_bytes(b"nothing")
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
    assert next(copy.glob(TENSORS)).stat().st_mode == (tmp_path / "plain").stat().st_mode


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
    with pytest.warns(DissensusWarning, match="not trained on"):
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
    assert repr(detector) == "Detector(4 members, 3 classes, score gaussian, not calibrated, features only)"
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
    (copy / "run.json").write_text(sealed(about))
    with pytest.raises(DissensusError, match="must be the one that computed the features"):
        Detector.load(copy).predict([next((pictures / "images" / "red").iterdir())])


@pytest.fixture
def quantised(pictures, tmp_path):
    """A run that says that its training features come from onnx-int8."""
    copy = shutil.copytree(pictures / "run", tmp_path / "run")
    about = json.loads((copy / "run.json").read_text())
    about["data"]["backbone"]["engine"] = "onnx-int8"
    (copy / "run.json").write_text(sealed(about))
    return copy


def test_a_run_of_int8_features_runs_in_int8(quantised, pictures):
    assert Detector.load(quantised).members.engine == "onnx-int8"
    with pytest.raises(DissensusError, match="got eager, the training set has onnx-int8: use --engine onnx-int8"):
        Detector.load(quantised, engine="eager")
    with pytest.raises(DissensusError, match="got onnx-int8, the training set has eager: use --engine eager"):
        Detector.load(pictures / "run", engine="onnx-int8")
    with pytest.raises(UnknownNameError, match="unknown engine 'onx'"):
        Detector.load(pictures / "run", engine="onx")
    with pytest.raises(RunError, match=r"ImageEnsemble runs .* in float32; .* was trained on features of onnx-int8"):
        ImageEnsemble.load(quantised)
    assert [Detector.load(pictures / "run", engine=name).members.engine for name in (None, "onnx")] == ["eager", "onnx"]


def test_features_of_another_engine_are_refused_if_they_differ(quantised, pictures):
    features = FeatureSet.open(pictures / "features")
    with pytest.raises(DataError, match="the given set comes from eager, the training set from onnx-int8"):
        Detector.load(quantised).predict(features)
    x = features.rows(slice(None))
    same = FeatureSet.from_arrays(x, provenance={**features.provenance, "engine": "onnx-int8"})
    assert len(Detector.load(quantised).predict(same)) == len(x)
    with pytest.raises(DataError, match="the given set comes from onnx-int8, the training set from eager"):
        Detector.load(pictures / "run").predict(same)
    near = FeatureSet.from_arrays(x, provenance={**features.provenance, "engine": "onnx"})
    assert len(Detector.load(pictures / "run").predict(near)) == len(x)


def test_training_sets_of_two_engines_are_refused(pictures):
    features = FeatureSet.open(pictures / "features")
    x = features.rows(slice(None))
    other = FeatureSet.from_arrays(x, provenance={**features.provenance, "engine": "onnx-int8"})
    ensemble = Ensemble(tails.create("linear", features.width, 2), members=3)
    with pytest.raises(DataError, match="the disagreement set comes from onnx-int8, the training set from eager"):
        fit(ensemble, features, "a2d", disagreement=other, epochs=1, progress=False)


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


def test_by_default_a_distance_and_disagreement_are_combined(run, more):
    detector = Detector.load(run)
    assert detector.score_name == "gaussian"
    assert detector.calibrate(more).score_name == DEFAULT_SCORE
    assert detector.threshold.references
    least = conformal.needed(0.05)
    assert detector.calibrate(more.subset(range(2 * least)), 0.05).score_name == DEFAULT_SCORE
    assert detector.calibrate(more.subset(range(2 * least - 1)), 0.05).score_name == "gaussian"
    assert detector.calibrate(more, 0.05, by_class=True).score_name == DEFAULT_SCORE
    few = more.subset(range(90))  # about 30 of each class, where one score needs 19 and two 38
    assert detector.calibrate(few, 0.05, by_class=True).score_name == "gaussian"
    with pytest.raises(DataError, match="needs 19 calibration samples predicted as"):
        detector.calibrate(few, 0.05, "mahalanobis+pds", by_class=True)
    plain = Detector(fit(linear(), blobs(), "deep-ensemble", epochs=1, scores=(), progress=False))
    assert plain.score_name == plain.calibrate(more).score_name == "pds"
    with pytest.raises(DissensusError, match="score 'mahalanobis' must be fitted to training features"):
        plain.calibrate(more, score="mahalanobis+pds")


def test_weights_are_kept_with_the_run(run, more, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    detector = Detector.load(copy).calibrate(more, score="2*mahalanobis+pds")
    detector.save(copy)
    again = Detector.load(copy)
    assert again.score_name == "2*mahalanobis+pds"
    assert again.threshold.weights == (2.0, 1.0)
    assert torch.equal(again.predict(more).score, detector.predict(more).score)
    outputs = next(iter(detector.members.outputs(resolve(more))))
    values = [scores.compute(n, *outputs, detector.ensemble.fitted).float() for n in ("mahalanobis", "pds")]
    expected = conformal.evidence(detector.threshold.references, values, (2.0, 1.0))
    assert torch.equal(detector.predict_outputs(outputs).score, expected)


def test_a_calibration_for_other_fitted_scores_is_refused(run, more, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    ensemble = Ensemble.load(copy / "ensemble")
    Detector.load(copy).calibrate(more).save(copy)
    fit_scores(ensemble, blobs(seed=5))
    with pytest.raises(RunError, match="holds another ensemble"):
        Detector(ensemble).calibrate(more).save(copy)
    ensemble.save(copy / "ensemble")
    with pytest.raises(RunError, match=r"holds for the fitted score mahalanobis it was made with; .*calibrate again"):
        Detector.load(copy)
    ensemble.fitted = {}
    ensemble.save(copy / "ensemble")
    with pytest.raises(RunError, match="holds for the fitted score mahalanobis it was made with"):
        Detector.load(copy)
    Detector.load(copy, calibrated=False).calibrate(more, score="pds+bma").save(copy)
    fit_scores(ensemble, blobs(seed=6))
    ensemble.save(copy / "ensemble")
    assert Detector.load(copy).score_name == "pds+bma", "it uses no fitted score"


FAR = {
    "twenty deviations away": lambda x: x + 20 * x.std(0),
    "a constant": lambda x: torch.full_like(x, 7.0),
    "nothing": torch.zeros_like,
    "times 100": lambda x: 100 * x,
    "times 5": lambda x: 5 * x,
}


@pytest.mark.parametrize("width", [6, 64])
@pytest.mark.parametrize("change", FAR)
@pytest.mark.parametrize(("score", "held_out"), [(None, 400), (None, 30), ("mahalanobis+pds+feature_norm", 400)])
def test_what_is_far_away_is_called_out(score, held_out, change, width):
    if (held_out, change, width) == (30, "times 5", 6):
        pytest.skip("in six dimensions lengths vary too much for the largest of 30 samples to stay below")
    train, fresh = blobs(400, width=width), blobs(200, width=width, seed=8)
    ensemble = fit(linear(width=width), train, epochs=10, lr=1e-2, batch_size=32, progress=False)
    detector = Detector(ensemble).calibrate(blobs(held_out, width=width, seed=7), 0.05, score)
    assert detector.predict(fresh).out.double().mean() < 0.12
    assert detector.predict(FAR[change](fresh.rows(slice(None)))).out.double().mean() > 0.9


def test_maps_are_scored_too(tmp_path):
    """Features (D, H, W) of a conv tail: scores of features average them over positions."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 3
    x = torch.randn(600, 6, 2, 2, generator=generator) + 3 * torch.eye(6)[labels][..., None, None]
    ensemble = Ensemble(tails.Conv(6, 3), members=3)
    train = FeatureSet.from_arrays(x[:300], labels[:300])
    fit(ensemble, train, "deep-ensemble", epochs=3, batch_size=32, progress=False, out=tmp_path)
    detector = Detector.load(tmp_path).calibrate(x[300:500], 0.05)
    assert detector.score_name == DEFAULT_SCORE
    assert detector.predict(x[500:]).out.double().mean() < 0.2
    assert detector.predict(-x[500:]).out.all()


def test_needed_is_what_the_refusal_says(run, more):
    enough = conformal.needed(0.05)
    Detector.load(run).calibrate(more.subset(range(enough)), 0.05)
    with pytest.raises(DataError, match=f"needs {enough} calibration samples; got {enough - 1}"):
        Detector.load(run).calibrate(more.subset(range(enough - 1)), 0.05)
