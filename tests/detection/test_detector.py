"""Detectors: verdicts on features and images, calibration kept with a run, the promised rate on real data."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy import stats

from dissensus import backbones, suites
from dissensus._core.errors import DataError, DissensusError, RunError, ShapeError, UnknownNameError
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet, extract
from dissensus.functional import conformal, scores
from dissensus.images import ImageSet, read_image
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from tests.conftest import blobs, linear


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run on clouds, and more of the same clouds."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(linear(), blobs(), "sed-a2d", diversity=0.1, label_smoothing=0.1, epochs=10, lr=1e-2, batch_size=32, out=folder,
        progress=False)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def more():
    return blobs(400, seed=7)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A run on images through a small random backbone, with its image files."""
    root = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for c, colour in enumerate(("red", "blue")):
        for i in range(40):
            pixels = generator.integers(0, 90, (40, 40, 3), np.uint8)
            pixels[..., 2 * c] += 150
            (root / "images" / colour).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / "images" / colour / f"{i:02d}.png")
    backbone = backbones.create("resnet10t", "random", layers=1, size=32)
    images = ImageSet.find(root / "images")
    features = extract(images, backbone, root / "features", workers=0, progress=False)
    ensemble = Ensemble(tails.create("linear", features.width, 2), members=3)
    fit(ensemble, features, "deep-ensemble", epochs=5, lr=1e-2, batch_size=16, out=root / "run", progress=False)
    return root


def test_verdicts_say_what_the_ensemble_says(run, more):
    detector = Detector.load(run).calibrate(more, 0.1)
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
    assert one.verdict in ("in", "out")
    assert len(one.votes) == 4
    assert json.dumps(one.as_dict(votes=True))
    frame = found.frame()
    assert list(frame["verdict"]) == [v.verdict for v in found]
    assert [f"member {m}" in frame for m in range(1, 6)] == [True] * 4 + [False]


def test_arrays_and_feature_sets_are_the_same(run, more):
    detector = Detector.load(run).calibrate(more.rows(slice(None)).numpy())
    x = more.rows(slice(0, 9))
    expected = detector.predict(more.subset(range(9)))
    for given in (x, x.numpy(), x.double().numpy()):
        assert torch.equal(detector.predict(given).score, expected.score)


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
        shutil.rmtree(copy / "ensemble")
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


def test_a_calibration_is_not_saved_with_another_run(run, seen, more):
    detector = Detector.load(run).calibrate(more)
    before = sorted(path.name for path in (seen / "run").iterdir())
    with pytest.raises(RunError, match="holds another ensemble"):
        detector.save(seen / "run")
    assert sorted(path.name for path in (seen / "run").iterdir()) == before


def test_what_is_saved_may_be_read_by_whom_the_user_lets(run, more, tmp_path):
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


def test_training_data_are_cautioned_against(run, more):
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


def test_what_it_cannot_take_is_refused(run):
    detector = Detector.load(run)
    with pytest.raises(DissensusError, match="features that name none"):
        detector.predict(["cat.jpg"])
    with pytest.raises(ShapeError, match="width 6"):
        detector.predict(torch.zeros(2, 5))
    for nothing in ([], (), None, 3, {"path": ["cat.jpg"]}, iter(["cat.jpg"]), pd.DataFrame({"path": []})):
        with pytest.raises(DataError, match=r"\Asamples must be a path, an image, an array.*; got (an empty )?\w+\Z"):
            detector.predict(nothing)
    with pytest.raises(DissensusError, match="calibrate first"):
        detector.save(run)
    with pytest.raises(UnknownNameError, match="probability"):
        Detector(detector.ensemble, aggregate="probabilty")


def test_what_is_not_a_number_has_no_verdict(run, more):
    detector = Detector.load(run)
    with torch.no_grad():
        next(detector.ensemble.parameters()).mul_(100)
    with pytest.raises(DataError, match="logits must be finite"):
        detector.predict(torch.full((2, 6), 3e38))


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


def test_features_come_as_rows_and_tables(run, more):
    detector = Detector.load(run).calibrate(more)
    rows = more.rows(slice(0, 9))
    expected = detector.predict(rows)
    one = detector.predict(rows[3].numpy())
    assert len(one) == 1
    assert one.score == expected.score[3:4]
    frame = pd.DataFrame(rows.numpy(), columns=list("abcdef"), index=[f"sample {i}" for i in range(9)])
    found = detector.predict(frame)
    assert torch.equal(found.score, expected.score)
    assert found.names[2] == "sample 2"
    with pytest.raises(DataError, match=r"column 'label' is not numeric: drop it, or rename it"):
        detector.predict(frame.assign(label="cat"))
    with pytest.raises(ShapeError, match=r"width 6; the input has rows of shape \(7,\): pass features"):
        detector.predict(frame.assign(g=1))
    with pytest.raises(DataError, match="hold NaN or inf"):
        detector.predict(frame.assign(a=np.nan))
    with pytest.raises(DataError, match=r"\(N, ...\)"):
        detector.predict(torch.zeros(()))


def test_it_says_what_it_is(run, seen, more):
    detector = Detector.load(run)
    assert repr(detector) == "Detector(4 members, 3 classes, score pds, not calibrated, features only)"
    detector.calibrate(more, 0.025, "pds+bma")
    assert "score pds+bma, calibrated at 2.5% false alarms" in repr(detector)
    assert repr(Detector.load(seen / "run")).endswith("not calibrated, backbone resnet10t at 32 px)")


def test_images_come_in_every_form(seen, tmp_path):
    detector = Detector.load(seen / "run")
    paths = sorted(map(str, (seen / "images" / "blue").iterdir()))[:3]
    expected = detector.predict(paths)
    pictures = [read_image(path) for path in paths]
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    (tmp_path / "few").mkdir()
    for path in paths:
        shutil.copy(path, tmp_path / "few")
    (tmp_path / "list.txt").write_text("\n".join(paths))
    frame = pd.DataFrame({"path": paths, "width": 40})
    frame.to_csv(tmp_path / "table.csv", index=False)
    forms = {
        "folder": str(tmp_path / "few"), "list of folders": [tmp_path / "few"], "list": tmp_path / "list.txt",
        "table": tmp_path / "table.csv", "frame": frame, "series": frame["path"], "arrays": list(pixels),
        "batch": pixels, "tensor": torch.from_numpy(pixels), "pictures": tuple(pictures),
        "set": ImageSet.find(tmp_path / "few"), "features folder": seen / "features",
    }  # fmt: skip
    for form, samples in forms.items():
        found = detector.predict(samples)
        if form == "features folder":
            torch.testing.assert_close(found.score[:3], expected.score, atol=1e-3, rtol=1e-3)  # float16 on disk
        else:
            assert torch.equal(found.score, expected.score), form
    assert detector.predict(forms["folder"]).names == tuple(str(tmp_path / "few" / f"0{i}.png") for i in range(3))
    assert detector.predict(frame).names == tuple(paths)
    for one in (paths[1], seen / "images" / "blue" / "01.png", pictures[1], pixels[1], torch.from_numpy(pixels[1])):
        assert torch.equal(detector.predict(one).score, expected.score[1:2])
    assert [v.score for v in detector.stream(str(tmp_path / "few"), workers=0)] == expected.score.tolist()
    assert [v.score for v in detector.stream(forms["set"], workers=0)] == expected.score.tolist()


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ("nowhere.jpg", "there is no file or folder nowhere.jpg: check the path"),
        (["nowhere.jpg"], r"every image must be readable; nowhere.jpg is not \(no such file"),
        ("nowhere.txt", "there is no file or folder nowhere.txt"),
        ("{tmp}/empty", "empty holds none"),
        (["{tmp}/empty"], "folders must hold images"),
        ("{tmp}/x.npz", "x.npz cannot be read as .npz: damaged"),
        (["cat.jpg", 3], r"got int: for features pass one array \(N, D\)"),
        ([[0.5, 1.0]], "got list"),
        ([np.zeros((4, 4, 3))], r"got ndarray float64 \(4, 4, 3\)"),
        (np.zeros((4, 4, 3)), r"has rows of shape \(4, 3\): pass features of that width, or an image"),
    ],
)
def test_bad_images_are_one_line(seen, tmp_path, samples, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.npz").touch()
    if isinstance(samples, str):
        samples = samples.format(tmp=tmp_path)
    elif isinstance(samples, list):
        samples = [s.format(tmp=tmp_path) if isinstance(s, str) else s for s in samples]
    with pytest.raises(DissensusError, match=words) as caught:
        Detector.load(seen / "run").predict(samples)
    assert "\n" not in str(caught.value)


def test_images_come_as_paths_pictures_or_sets(seen):
    detector = Detector.load(seen / "run")
    images = ImageSet.find(seen / "images")
    paths = [seen / "images" / name for name in images.names[:5]]
    by_set = detector.predict(images.subset(range(5)))
    by_path = detector.predict(paths)
    pictures = [read_image(str(path)) for path in paths]
    by_picture = detector.predict(pictures)
    by_features = detector.predict(FeatureSet.open(seen / "features").subset(range(5)))
    assert torch.equal(by_set.score, by_path.score)
    assert torch.equal(by_set.score, by_picture.score)
    torch.testing.assert_close(by_set.score, by_features.score, atol=1e-3, rtol=1e-3)  # float16 on disk
    assert by_path.names == tuple(map(str, paths))
    assert [v.name for v in by_set] == list(images.names[:5])
    with pytest.raises(DataError, match="mixture"):
        detector.predict([paths[0], pictures[1]])


def test_a_trunk_made_in_inference_mode_serves_outside(seen):
    detector = Detector.load(seen / "run")
    with torch.inference_mode():
        assert detector.backbone
    assert len(detector.predict(sorted((seen / "images" / "red").iterdir())[:1])) == 1


def test_a_stream_gives_every_path_a_row_in_order(seen, tmp_path):
    detector = Detector.load(seen / "run").calibrate(ImageSet.find(seen / "images").subset(slice(0, 80, 2)))
    good = sorted((seen / "images" / "red").iterdir())[:7]
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"%PDF-1.4")
    paths = [*good[:3], bad, *good[3:], tmp_path / "gone.jpg"]
    for workers in (0, 2):
        found = list(detector.stream(iter(paths), batch_size=4, workers=workers))
        assert [v.name for v in found] == list(map(str, paths))
        assert [v.error for v in found] == [None] * 3 + ["not an image"] + [None] * 4 + ["no such file or directory"]
        assert found[3].label is None
        singly = detector.predict(good)
        assert [v.score for v in found if not v.error] == pytest.approx(singly.score.tolist(), abs=1e-5)
    with pytest.raises(DataError, match=r"bad\.png is not \(not an image\)"):
        detector.predict([good[0], bad])


def test_a_stream_of_features_is_predicted_in_batches(run, more, tmp_path, monkeypatch):
    detector = Detector.load(run)
    monkeypatch.setattr("dissensus.detection.members.batch_size", lambda *_: 150)
    more.save(tmp_path / "features", dtype="float32")
    expected = detector.predict(more)
    for samples in (more, tmp_path / "features"):
        found = list(detector.stream(samples))
        assert [v.name for v in found] == [str(i) for i in range(400)]
        assert [v.score for v in found] == expected.score.tolist()
    for samples in (torch.zeros(2, 6), 3, [3], [Image.new("RGB", (4, 4))]):
        with pytest.raises(DissensusError, match=r"a stream takes paths.*: use predict|name none"):
            list(detector.stream(samples))


def test_a_stream_reads_no_further_than_it_must(seen):
    """Paths may come without end."""
    path = str(next((seen / "images" / "red").iterdir()))
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield path

    stream = Detector.load(seen / "run").stream(endless(), batch_size=4, workers=1)
    for _ in range(10):
        next(stream)
    stream.close()
    assert asked <= 40


def test_another_backbone_is_refused(seen, tmp_path):
    copy = shutil.copytree(seen / "run", tmp_path / "run")
    about = json.loads((copy / "run.json").read_text())
    about["data"]["backbone"]["fingerprint"] = "0" * 64
    (copy / "run.json").write_text(json.dumps(about))
    with pytest.raises(DissensusError, match="must be the one that made the features"):
        Detector.load(copy).predict([next((seen / "images" / "red").iterdir())])


@pytest.mark.slow
@pytest.mark.parametrize("score", ["pds", ("pds", "average_energy")])
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
