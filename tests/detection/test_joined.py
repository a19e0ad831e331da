"""Detectors on several backbones: p-values combined as by hand, one guarantee for all, images decoded once."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dissensus import backbones, images
from dissensus._core.errors import DataError, DissensusError, RunError
from dissensus.backbones.joined import JoinedBackbone, JoinedTransform, part_names
from dissensus.detection import _predicting
from dissensus.detection.detector import Detector
from dissensus.detection.image_ensemble import ImageEnsemble
from dissensus.detection.threshold import Threshold
from dissensus.features import FeatureSet, extract
from dissensus.features.encoder import Encoder
from dissensus.features.joined import JoinedFeatures
from dissensus.functional import aggregates
from dissensus.functional.parts import spread
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.models.joined import JoinedEnsemble
from dissensus.training import Run, fit
from dissensus.training.joined import join
from tests.damage import sealed
from tests.storage import upload

NAMES = ("test_vit", "test_efficientnet")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two finished runs on the same reddish and bluish images, held-out features of both, and the joined run."""
    home = tmp_path_factory.mktemp("joined")
    generator = np.random.default_rng(0)
    for part in ("train", "fresh"):
        for c, colour in enumerate(("red", "blue")):
            (home / part / colour).mkdir(parents=True)
            for i in range(24):
                pixels = generator.integers(0, 90, (36, 40, 3), np.uint8)
                pixels[..., 2 * c] += 150
                Image.fromarray(pixels).save(home / part / colour / f"{i:02d}.png")
    for name, size in zip(NAMES, (32, 40), strict=True):
        backbone = backbones.create(name, "random", layers=1, size=size)
        for part in ("train", "fresh"):
            found = ImageSet.find(home / part)
            extract(found, backbone, home / name / part, workers=0, dtype="float32", progress=False)
        train = FeatureSet.open(home / name / "train")
        ensemble = Ensemble(tails.create("linear", train.width, 2), members=2 if name == NAMES[0] else 3)
        fit(ensemble, train, "deep-ensemble", epochs=5, lr=1e-2, batch_size=16, out=home / name / "run", progress=False)
    join([home / name / "run" for name in NAMES], home / "joined")
    return home


def features(home, part: str) -> list[FeatureSet]:
    return [FeatureSet.open(home / name / part) for name in NAMES]


# --- the score and its guarantee -------------------------------------------------------------------------------


def test_p_values_are_combined_as_by_hand(home):
    fresh, others = features(home, "fresh"), features(home, "train")  # a reference would tie with itself, to rounding
    detector = Detector.load(home / "joined").calibrate(fresh, 0.1, "2*mahalanobis+ensemble_entropy")
    verdicts = detector.predict(others)
    alone = [Detector.load(home / name / "run") for name in NAMES]
    outputs = [next(iter(d.members.outputs(resolved(f)))) for d, f in zip(alone, others, strict=True)]
    logits = torch.cat([each.logits for each in outputs])
    values = [_predicting.values(d, ("mahalanobis",), o)[0] for d, o in zip(alone, outputs, strict=True)]
    probs = logits.softmax(-1).mean(0)
    values.append(-(probs * probs.log()).sum(-1))
    half = len(fresh[0]) // 2
    rule = detector.threshold
    assert rule.scores == ("mahalanobis@test_vit", "mahalanobis@test_efficientnet", "ensemble_entropy")
    assert rule.weights == (2, 2, 2)
    score = torch.zeros(len(others[0]), dtype=torch.float64)
    for value, reference in zip(values, rule.references, strict=True):
        assert len(reference) == half
        beyond = value > reference[-1]
        p = (1 + (reference[None] >= value[:, None]).sum(1)).double() / (half + 1)
        score[~beyond] -= 2 * p.log()[~beyond]
        score[beyond] = torch.nan  # the tail is extrapolated there: tests/functional/test_conformal.py
    known = ~score.isnan()
    assert known.sum() > half
    torch.testing.assert_close(verdicts.score[known].double(), score[known], rtol=1e-4, atol=1e-4)
    expected = aggregates.prediction(logits).max(-1)
    assert verdicts.label.equal(expected.indices)
    torch.testing.assert_close(verdicts.confidence, expected.values.exp())
    assert verdicts.votes.shape == (5, len(others[0]))


def resolved(features):
    from dissensus.detection.samples import resolve

    return resolve(features)


@pytest.mark.parametrize("shared", [0.0, 1.0], ids=["independent", "the same"])
def test_the_guarantee_holds_however_much_backbones_have_in_common(shared):
    """Calibrated together, dependent scores raise no more alarms; multiplied p-values would raise many more."""
    generator = torch.Generator().manual_seed(0)
    names, weights = spread(("mahalanobis", "pds"), (2.0, 1.0), ("a", "b"))
    rate, alarms, naive, trials, n = 0.1, 0, 0, 300, 78
    for _ in range(trials):
        common = torch.randn(n + 20, generator=generator)
        values = [shared * common + (1 - shared) * torch.randn(n + 20, generator=generator) for _ in names]
        held_out = {name: value[:n] for name, value in zip(names, values, strict=True)}
        rule = Threshold.calibrate(held_out, rate, weights=weights)
        new = [value[n:] for value in values]
        alarms += int((rule.score(new) > rule.limits(torch.zeros(20, dtype=torch.int64))).sum())
        product = -2 * rule.parts(new).log().sum(0)  # chi-squared with 2 x 3 degrees of freedom, if independent
        naive += int((product > 10.645).sum())
    total = 20 * trials
    margin = 4 * (rate * (1 - rate) / trials) ** 0.5  # samples of a trial share their calibration
    assert rate - margin < alarms / total < rate + margin
    if shared:
        assert naive / total > rate + 0.03


# --- images ----------------------------------------------------------------------------------------------------


def test_images_are_decoded_once_and_seen_as_by_each_backbone(home, monkeypatch):
    detector = Detector.load(home / "joined")
    detector.calibrate(home / "fresh", 0.1)
    paths = sorted(str(path) for path in (home / "fresh").rglob("*.png"))
    decoded = []
    read = images.decoding.read_image
    monkeypatch.setattr("dissensus.features.loader.read_image", lambda path: decoded.append(path) or read(path))
    streamed = list(detector.stream(paths, workers=0))
    assert sorted(decoded) == paths
    verdicts = detector.predict(features(home, "fresh"))
    by_name = {verdict.name: verdict.score for verdict in streamed}
    names = [str(home / "fresh" / name) for name in ImageSet.find(home / "fresh").names]
    torch.testing.assert_close(torch.tensor([by_name[name] for name in names]), verdicts.score, rtol=1e-3, atol=1e-3)


def test_an_encoder_of_several_trunks_joins_their_features(home):
    sizes = {"test_vit": 32, "test_efficientnet": 40, "test_resnet": 40}
    parts = [backbones.create(name, "random", layers=1, size=size, crop=0.9) for name, size in sizes.items()]
    joined = JoinedBackbone.of(parts)
    picture = Image.open(next((home / "train").rglob("*.png")))
    expected = torch.cat([Encoder(part).image(picture).flatten(1) for part in parts], 1)
    assert joined.shape == tuple(expected.shape[1:])
    torch.testing.assert_close(Encoder(joined).image(picture), expected)
    sides = {(part.transform.size, part.transform.interpolation): part.transform.size for part in parts}
    assert joined.transform.centre(picture).shape == (sum(3 * side**2 for side in sides.values()),)
    same = JoinedTransform.of([parts[0].transform, replace(parts[0].transform, mean=(0.1, 0.2, 0.3))])
    assert same.centre(picture).shape == (3 * 32**2,), "the same pixels are kept once"
    views = same.split(torch.from_numpy(same.centre(picture)[None]))
    assert views[0].equal(views[1])
    assert views[0][0].numpy().tolist() == parts[0].transform.centre(picture).tolist()
    assert joined.name == "test_vit+test_efficientnet+test_resnet"
    assert joined.fingerprint != JoinedBackbone.of(parts[::-1]).fingerprint
    with pytest.raises(DissensusError, match="must differ in name or layers; got test_vit:1 2 times"):
        part_names([parts[0].describe()] * 2)


# --- the detector's interface ----------------------------------------------------------------------------------


def test_load_save_repr_and_a_moved_folder(home, tmp_path):
    shutil.copytree(home, tmp_path / "moved")
    detector = Detector.load(tmp_path / "moved" / "joined")
    assert "not calibrated" in repr(detector)
    assert detector.score_name == "pds"
    detector.calibrate(features(home, "fresh")[::-1], 0.1).save(tmp_path / "moved" / "joined")
    again = Detector.load(tmp_path / "moved" / "joined")
    assert again.score_name.startswith("4*mahalanobis@test_vit+4*mahalanobis@test_efficientnet+4*ensemble_entropy")
    assert "5 members" in repr(again)
    assert "backbone test_vit+test_efficientnet at 32 and 40 px" in repr(again)
    fresh = features(home, "fresh")
    assert again.predict(fresh).score.equal(detector.predict(JoinedFeatures(fresh[::-1])).score), "in any order"
    shutil.rmtree(tmp_path / "moved" / "test_vit" / "run" / "ensemble")
    with pytest.raises(RunError, match=r"needs its parts; test_vit is not at .*: move them together"):
        Detector.load(tmp_path / "moved" / "joined")


def test_a_part_that_was_trained_again_is_noticed(home, tmp_path):
    shutil.copytree(home, tmp_path / "moved")
    folder = tmp_path / "moved" / "test_vit" / "run" / "ensemble"
    ensemble = Ensemble.load(folder)
    with torch.no_grad():
        next(ensemble.parameters()).add_(1)
    ensemble.save(folder)
    with pytest.raises(RunError, match=r"holds for the members it was made of; .* has others now: join the runs again"):
        Detector.load(tmp_path / "moved" / "joined")
    runs = [tmp_path / "moved" / name / "run" for name in NAMES]
    join(runs, tmp_path / "moved" / "joined")
    assert len(Detector.load(tmp_path / "moved" / "joined").ensemble) == 5


def test_calibrating_on_the_training_images_warns(home):
    for samples in (home / "train", features(home, "train")):
        with pytest.warns(UserWarning, match="these are the training data"):
            Detector.load(home / "joined").calibrate(samples, 0.1)


def test_few_samples_calibrate_the_score_of_all_members(home):
    few = [each.subset(slice(0, 12)) for each in features(home, "fresh")]
    assert Detector.load(home / "joined").calibrate(few, 0.1).score_name == "pds"


def test_features_that_do_not_fit_are_refused(home):
    detector = Detector.load(home / "joined")
    vit, efficientnet = features(home, "fresh")
    with pytest.raises(DataError, match="takes images, or features of test_vit and test_efficientnet"):
        detector.predict(vit)
    with pytest.raises(DataError, match="same samples in the same order; set 2 has 47 rows, the first 48"):
        detector.predict([vit, efficientnet.subset(slice(1, 48))])
    with pytest.raises(DataError, match="set 2 is of other images"):
        detector.predict([vit, features(home, "train")[1]])
    with pytest.raises(DataError, match="features must come from one backbone"):
        detector.predict([vit, vit])
    with pytest.raises(DataError, match="has 3 sets: give one per backbone"):
        detector.predict([vit, vit, efficientnet])
    with pytest.raises(DataError, match="two or more backbones; got 1"):
        detector.predict([vit])
    with pytest.raises(DataError, match="this run is on one backbone, test_vit"):
        Detector.load(home / "test_vit" / "run").predict([vit, efficientnet])
    with pytest.raises(DataError, match="set 2 has other labels"):
        JoinedFeatures(
            [FeatureSet.from_arrays(np.ones((2, 3)), [0, 1]), FeatureSet.from_arrays(np.ones((2, 3)), [1, 0])]
        )


def test_what_needs_common_weights_is_refused(home):
    joined = Ensemble.load(home / "joined" / "ensemble")
    assert isinstance(joined, JoinedEnsemble)
    assert repr(joined) == "JoinedEnsemble(5 members, 2 on test_vit, 3 on test_efficientnet, 2 classes)"
    for use in (joined.soup, joined.stacked, lambda: joined.member(0), lambda: joined.save("x"), lambda: joined.tail):
        with pytest.raises(DissensusError, match="no weights in common; these are on test_vit and test_efficientnet"):
            use()
    with pytest.raises(RunError, match=r"ImageEnsemble takes one backbone at a time; .* joins test_vit and"):
        ImageEnsemble.load(home / "joined")
    with pytest.raises(RunError, match="a pretrained detector has one backbone; this one joins test_vit and"):
        Detector.load(home / "joined").save_pretrained(home / "pretrained")
    x = torch.randn(3, joined.width)
    assert joined(x, [4, 0]).equal(joined(x)[[4, 0]])
    with pytest.raises(DissensusError, match="as one vector of width"):
        joined.check_features((3,), "x")


# --- join ------------------------------------------------------------------------------------------------------


def changed(run: Run, **data) -> Run:
    """The same run with other data in its document."""
    other = copy.copy(run)
    other.info = run.info.model_copy(update={"data": run.info.data.model_copy(update=data)})
    return other


def test_runs_that_do_not_match_are_refused(home, tmp_path):
    first, second = (Run.open(home / name / "run") for name in NAMES)
    cases = [
        ([first], "two or more runs; got 1"),
        ([first, first], "must differ in name or layers; got test_vit:1 2 times"),
        ([first, Run.open(home / "joined")], "is joined already: give its parts"),
        ([first, changed(second, classes=("red", "blue"))], "has them in another order"),
        ([first, changed(second, classes=("red", "green"))], "has red, green: train both on the same classes"),
        ([first, changed(second, backbone=None)], "must name their backbones"),
        ([first, changed(second, images="0" * 64)], "must be trained on the same images"),
    ]
    for runs, words in cases:
        with pytest.raises(DissensusError, match=words):
            join(runs, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(RunError, match="holds another run"):
        join([first, second], first.folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds files that are not of a run"):
        join([first, second], tmp_path / "other")
    unfinished = shutil.copytree(second.folder, tmp_path / "unfinished")
    info = json.loads((unfinished / "run.json").read_text())
    (unfinished / "run.json").write_text(sealed(info | {"status": "running"}))
    with pytest.raises(RunError, match="is not finished"):
        join([first, unfinished], tmp_path / "out")


def named(run: Run) -> list[str]:
    """How joined.json names the parts."""
    return [part["ensemble"] for part in json.loads((run.ensemble_folder / "joined.json").read_text())["parts"]]


def test_runs_at_urls_are_joined(home, memory, tmp_path):
    fresh = features(home, "fresh")
    expected = Detector.load(home / "joined").predict(fresh).score
    for name in NAMES:
        upload(home / name / "run", f"{memory}/{name}/run")
    runs = [f"{memory}/{name}/run" for name in NAMES]
    joined = join(runs, f"{memory}/joined")
    assert str(joined.folder) == f"{memory}/joined"
    assert named(joined) == [f"../../{name}/run/ensemble" for name in NAMES]
    assert [str(part) for part in joined.parts.values()] == runs
    assert named(join(runs, f"{memory}/joined")) == named(joined), "a second call finds it"
    assert Detector.load(joined.folder).predict(fresh).score.equal(expected)
    mixed = join([home / NAMES[0] / "run", runs[1]], tmp_path / "mixed")
    assert named(mixed)[1] == f"{runs[1]}/ensemble"
    away = join([home / NAMES[0] / "run", runs[1]], f"{memory}/away")
    assert named(away) == [str(home / NAMES[0] / "run" / "ensemble"), f"../../{NAMES[1]}/run/ensemble"]
    other = join(runs, f"{memory}-other/joined")
    assert named(other) == [f"{run}/ensemble" for run in runs], "nothing in common, such as the bucket"
    for run in (mixed, away, other):
        assert Detector.load(run.folder).predict(fresh).score.equal(expected)
    (joined.folder.parent / NAMES[0] / "run" / "ensemble").fs.rm(f"{memory}/{NAMES[0]}", recursive=True)
    with pytest.raises(RunError, match=rf"test_vit is not at {memory}/test_vit/run/ensemble: move them together"):
        Detector.load(joined.folder)
