"""tune: from features, or images too, to a calibrated run; it resumes and refuses bad input."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from dissensus import Detector, FeatureSet, ImageSet
from dissensus._core import documents
from dissensus._core.errors import DataError, DissensusError, RunError
from dissensus.adaptation import trials
from dissensus.adaptation.candidates import Candidate
from dissensus.adaptation.tuned import Tuning
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.training import Run
from tests.adaptation.tuning import quiet, trained
from tests.commands import refuse, run
from tests.conftest import blobs
from tests.damage import damages

pytestmark = pytest.mark.usefixtures("few")


def test_features_alone(features):
    tuned = quiet(features)
    assert tuned.document.stand_ins == ("classes",)
    assert "mahalanobis" in tuned.score
    assert tuned.detector.threshold is not None
    assert set(tuned.options) == {"diversity", "label_smoothing", "norm", "tail"}
    assert tuned.reason in repr(tuned)
    frame = tuned.frame
    (row,) = frame[frame["chosen"]].to_dict("records")
    assert row["ensemble"] == Candidate(tuned.method, **tuned.options).name
    assert (row["score"], row["share"]) == (tuned.score, 1)
    assert set(frame["share"]) == {0.25, 1.0}
    default = frame[(frame["ensemble"] == "sed-a2d") & (frame["score"] == DEFAULT_SCORE) & (frame["share"] == 1)]
    assert default["gain"].item() == 0
    assert "sed-a2d" in tuned.table.text()
    far = tuned.detector.predict(FeatureSet.from_arrays(50 * torch.randn(40, 6)))
    assert (far.p_value <= 0.05).double().mean() > 0.9


def test_the_same_seed_gives_the_same_choice_and_weights(features):
    one, two = quiet(features), quiet(features)
    assert one.document.lines[0].mean == two.document.lines[0].mean
    assert one.ensemble.fingerprint == two.ensemble.fingerprint


def test_calibration_samples_are_never_trained_on(features, monkeypatch):
    from dissensus.adaptation import _tune

    fitted, scored, original = [], [], trials.fit
    for module in (trials, _tune):
        monkeypatch.setattr(
            module, "fit", lambda ensemble, x, *r, **k: (fitted.append(x), original(ensemble, x, *r, **k))[1]
        )
    fit_scores = trials.fit_scores
    monkeypatch.setattr(trials, "fit_scores", lambda e, x, *r: (scored.append(x), fit_scores(e, x, *r))[1])
    calibrated, calibrate = [], Detector.calibrate
    monkeypatch.setattr(Detector, "calibrate", lambda self, x, *r: (calibrated.append(x), calibrate(self, x, *r))[1])
    quiet(features)
    (held,) = calibrated
    assert len(held) == 80
    assert scored
    for part in [*fitted, *scored]:
        assert not set(held._index.tolist()) & set(part._index.tolist())
    assert len(fitted[-1]) == 320, "the winner is trained on everything else"


def test_held_out_is_calibrated_on_instead(features):
    held_out = blobs(100, classes=5, seed=7)
    tuned = quiet(features, held_out=held_out)
    assert tuned.detector.trained_on["train"] == features.fingerprint
    assert tuned.detector.threshold.calibrated.count == 50, "the other half ranks the scores"


def test_images_make_jigsaws_and_corruptions(extracted, pictures, tmp_path):
    out = tmp_path / "run"
    tuned = quiet(extracted, images=pictures, out=out)
    assert tuned.document.stand_ins == ("classes", "jigsaw", "speckle", "box_blur", "recolour")
    opened = Run.open(out)
    assert opened.settings["method"] == tuned.method
    assert Detector.load(out).threshold.name == tuned.score
    frame = pd.read_csv(out / "tuning.csv")
    assert len(frame) == len(tuned.document.lines)
    assert frame["jigsaw"].between(0, 1).all()
    assert Detector.load(out).predict(pictures.image(0)).label.shape == (1,)


def test_a_stopped_search_goes_on(features, tmp_path, monkeypatch):
    whole = quiet(features, out=tmp_path / "whole")
    seen = trained(monkeypatch)
    original = trials.fit
    monkeypatch.setattr(trials, "fit", lambda *r, **k: stop() if len(seen) == 4 else original(*r, **k))

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quiet(features, out=tmp_path / "stopped")
    done = len(seen)
    monkeypatch.setattr(trials, "fit", original)
    again = quiet(features, out=tmp_path / "stopped")
    assert (done, len(seen)) == (4, 5 + 3 + 1), "finished trainings are not repeated"
    assert again.ensemble.fingerprint == whole.ensemble.fingerprint
    assert [line.mean for line in again.document.lines] == [line.mean for line in whole.document.lines]


def test_a_finished_tuning_is_read_again(features, tmp_path, monkeypatch):
    first = quiet(features, out=tmp_path / "run")
    seen = trained(monkeypatch)
    second = quiet(features, out=tmp_path / "run")
    assert seen == [second.method], "fit finds the run finished"
    assert second.document == first.document


def test_two_classes_without_images_keep_the_default():
    tuned = quiet(blobs(200, classes=2))
    assert (tuned.method, tuned.score) == ("sed-a2d", DEFAULT_SCORE)
    assert "no stand-in" in tuned.reason
    assert tuned.document.lines == ()


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: FeatureSet.from_arrays(np.ones((120, 4)), np.arange(120) % 4), id="constant"),
        pytest.param(lambda: FeatureSet.from_arrays(np.zeros((120, 4)), np.arange(120) % 4), id="zero"),
        pytest.param(lambda: blobs(150, width=200), id="fewer samples than dimensions"),
        pytest.param(
            lambda: FeatureSet.from_arrays(np.repeat(np.eye(5), 40, 0), np.arange(200) // 40), id="duplicates"
        ),
        pytest.param(lambda: blobs(120, classes=50), id="classes missing in the held-out part"),
    ],
)
@pytest.mark.filterwarnings("ignore:the score")
def test_odd_features_are_tuned(made):
    features = made()
    tuned = quiet(features, members=2)
    assert tuned.detector.predict(features).score.isfinite().all()


def bad(**options):
    return lambda features: (features, options)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        (lambda x: (FeatureSet.from_arrays(x.rows(slice(None))), {}), "needs labelled features"),
        (lambda x: (FeatureSet.from_arrays(np.eye(30), np.arange(30)), {}), "each of 30 classes has one sample"),
        (lambda x: (blobs(60), {}), r"needs 19 samples to calibrate on; got 12 \(0.2 of 60 samples\)"),
        (
            lambda x: (FeatureSet.from_arrays(np.ones((60, 2)), np.arange(60) // 2 % 2, provenance={"passes": 2}), {}),
            "2 augmented passes: extract them without --augment",
        ),
        (lambda x: (x.subset((x.labels == 1).nonzero().squeeze(1)), {}), "at least two classes"),
        (bad(members=1), "got members=1"),
        (bad(budget=-3.0), "budget must be a time above 0"),
        (bad(false_alarms=1.5), "between 0 and 1"),
        (bad(calibration=0), "calibration must be a share"),
        (bad(held_out=blobs(60, width=3)), "must be like the training features"),
        (bad(held_out=blobs(10)), "needs 19 samples to calibrate on; got 10: add"),
        (bad(images=ImageSet.from_arrays(np.zeros((400, 8, 8), np.uint8))), "these name none"),
    ],
)
def test_bad_input_is_one_line(features, given, match):
    data, options = given(features)
    with pytest.raises(DissensusError, match=match) as caught:
        quiet(data, **options)
    assert "\n" not in str(caught.value)


def test_images_must_be_those_of_the_features(extracted, pictures):
    with pytest.raises(DataError, match="must be those that the features were extracted from"):
        quiet(extracted, images=pictures.subset(slice(0, 90)))
    part = extracted.subset(slice(0, 120))
    with pytest.raises(DataError, match="got 180 images for 120 rows"):
        quiet(part, images=pictures)
    with pytest.raises(DataError, match="row 0 is '0' in the images and '1' in the features"):
        quiet(extracted.subset(slice(1, 121)), images=pictures.subset(slice(0, 120)))


def test_other_folders_are_left_alone(features, tmp_path):
    quiet(features, out=tmp_path / "run")
    with pytest.raises(RunError, match="holds another tuning"):
        quiet(features, out=tmp_path / "run", seed=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(RunError, match="holds files that are not of a run"):
        quiet(features, out=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"], "refused before anything is written"


def test_a_damaged_tuning_is_one_line(features, tmp_path):
    quiet(features, out=tmp_path / "run")
    path = tmp_path / "run" / "tuning.json"
    document = json.loads(path.read_text())
    document["lines"] = document["lines"][:1]
    for field, what, text in damages(document):
        path.write_text(text)
        line = ""
        try:
            documents.read(Tuning, path)
        except RunError as error:
            line = str(error)
        assert "\n" not in line, (field, what)
        assert line or what not in ("removed", "null") or field.startswith(("lines.0.aurocs", "choice")), (field, what)


def test_the_command(features, tmp_path, capsys):
    features.save(tmp_path / "features")
    out = tmp_path / "run"
    arguments = ("tune", tmp_path / "features", "--out", out, "--members", 2, "--budget", "10m")
    code, text, messages = run(capsys, *arguments)
    assert code == 0, messages
    assert "gain" in text
    assert "The default score is kept" in text or "Chosen: " in text
    assert "tune 1/8: sed-a2d, a quarter" in messages
    assert "left" in messages
    assert documents.read(Tuning, out / "tuning.json").budget == 600
    assert run(capsys, *arguments)[1] == text, "the same command again"
    line = refuse(
        capsys, "tune", tmp_path / "features", "--out", tmp_path / "other", "--budget", "1s", "--members", 200
    )
    assert "budget must cover" in line
    for wrong in ("10", "soon", "-1m", "0s"):
        assert "time such as 90s" in refuse(capsys, "tune", "f", "--out", "o", f"--budget={wrong}")
    assert "labelled" in refuse(
        capsys, "tune", FeatureSet.from_arrays(np.ones((9, 2))).save(tmp_path / "u").folder, "--out", tmp_path / "o"
    )
