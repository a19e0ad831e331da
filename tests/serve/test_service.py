"""The service, its cards and responses: what they say against the detector itself; neighbours and examples."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from dissensus import Detector, FeatureSet
from dissensus._core.errors import DataError
from dissensus.evaluation.examples import Example
from dissensus.functional.neighbours import KNN
from dissensus.images import thumbnail
from dissensus.serve import cards, examples
from dissensus.serve.cards import gauge
from dissensus.serve.neighbours import Neighbours
from dissensus.serve.service import Inspection, Service
from tests.serve.conftest import BAD


def test_service_says_what_the_detector_says(service, place):
    paths = [place / "digit.png", place / "photo.png"]
    expected = service.detector.predict(paths)
    for path, verdict in zip(paths, expected, strict=True):
        inspection = service.inspect(path.name, path.read_bytes())
        found, limit = service.verdict(inspection)
        assert found.votes == verdict.votes
        assert found.verdict == verdict.verdict
        assert found.score == pytest.approx(verdict.score, rel=1e-6, abs=1e-5)  # float32, of batches of 1 and 2
        assert (found.score > limit) == found.out
        assert inspection.top[0] == (found.class_name, pytest.approx(found.confidence))
    assert [v.verdict for v in expected] == ["nothing unusual", "out"]


def test_another_rate_needs_no_other_look(service, place, monkeypatch):
    inspection = service.inspect("digit.png", (place / "digit.png").read_bytes())
    monkeypatch.setattr(service, "_encoder", None)
    p_value = service.verdict(inspection)[0].p_value
    assert service.verdict(inspection, min(0.99, p_value))[0].out
    assert not service.verdict(inspection, p_value * 0.99)[0].out
    assert service.detector.threshold.false_alarms == 0.05  # as before


def test_rates_are_those_that_the_calibration_supports(service):
    low, high = service.rates  # 200 samples, half of them to rank the scores: 1/101 is the least
    assert (low, high) == (1, 20)
    service.rule(low / 100)
    with pytest.raises(DataError, match="needs 111 calibration samples"):
        service.rule((low - 0.1) / 100)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_the_reason(service, name):
    data, reason = BAD[name]
    inspection = service.inspect(name, data)
    assert inspection == Inspection(name, error=reason)
    assert f"{name}: {reason}" in cards.card(service, inspection)
    assert service.result(inspection)["error"] == reason


def test_card_has_verdict_gauge_classes_and_members(service, place):
    for name, head in (("digit.png", "Nothing unusual found"), ("photo.png", "Out of distribution")):
        inspection = service.inspect(name, (place / name).read_bytes(), details=True)
        text = cards.card(service, inspection)
        assert head in text
        assert "<svg" in text
        assert text.count("class='bar'") == 5
        assert text.count("<span>member") == 4
        assert "held-out images" in text


def test_card_shows_the_nearest_training_images(service, place):
    near = Service(service.detector, "run", Neighbours.of(service.detector))
    inspection = near.inspect("digit.png", (place / "digit.png").read_bytes(), details=True)
    text = cards.card(near, inspection)
    assert "among 500 images" in text
    assert text.count("<small>row ") == 5
    assert inspection.nearest[0].class_name in text


def test_card_and_result_show_what_the_score_is_made_of(service, place):
    inspection = service.inspect("photo.png", (place / "photo.png").read_bytes(), details=True)
    (verdict,) = service.detector.predict([place / "photo.png"])
    assert [name for name, _ in verdict.parts] == list(service.detector.threshold.scores)
    text = cards.card(service, inspection)
    assert "What the score is made of" in text
    assert "among 100 held-out images" in text
    for (name, p_value), weight in zip(verdict.parts, service.detector.threshold.weights, strict=True):
        assert f"<td>{name}</td><td>{weight:g}</td><td>{p_value:.2g}</td>" in text
    parts = service.result(inspection)["parts"]
    assert [part["score"] for part in parts] == [name for name, _ in verdict.parts]
    assert [part["p_value"] for part in parts] == pytest.approx([p_value for _, p_value in verdict.parts])


def test_a_single_score_has_no_parts(service, place):
    detector = Detector.load(place / "run").calibrate(FeatureSet.open(place / "held-out"), score="mahalanobis")
    single = Service(detector, "run")
    inspection = single.inspect("digit.png", (place / "digit.png").read_bytes(), details=True)
    assert "What the score is made of" not in cards.card(single, inspection)
    assert single.result(inspection)["parts"] == []


def test_names_and_classes_are_escaped(service, place):
    inspection = service.inspect("<script>x</script>.png", (place / "digit.png").read_bytes(), details=True)
    for text in (cards.card(service, inspection), cards.problem("<script>")):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("p_value", "said"),
    [
        (1 / 200, "None of the 199 held-out images looks as unusual (p = 0.005)."),
        (2 / 200, "Of the 199 held-out images, 1 looks at least as unusual (p = 0.01)."),
        (1.0, "Of the 199 held-out images, 199 look at least as unusual (p = 1)."),
    ],
)
def test_p_value_in_words(p_value, said):
    assert cards.in_words(p_value, 199) == said


def test_gauge_turns_from_usual_to_unusual():
    assert "rotate(-90.0" in gauge(1.0, 0.05, 99)
    assert "rotate(90.0" in gauge(0.01, 0.05, 99)
    assert "rotate(0.0" in gauge(0.1, 0.05, 99)  # half of the logarithm
    assert "; out:" in gauge(0.05, 0.05, 99)
    assert "; nothing unusual:" in gauge(0.06, 0.05, 99)


def test_uncalibrated_run_has_no_verdict(place):
    plain = Service(Detector.load(place / "plain"), "plain")
    inspection = plain.inspect("digit.png", (place / "digit.png").read_bytes())
    assert plain.rates is None
    assert "No verdict" in cards.card(plain, inspection)
    assert plain.facts() == {"run": "plain", "score": "gaussian", "calibrated": False, "false_alarms": None}
    assert plain.result(inspection)["verdict"] is None


def test_table_has_a_row_for_every_file(service, place):
    inspection = [service.inspect(name, (place / name).read_bytes()) for name in ("digit.png", "paper.png")]
    frame = service.table(inspection)
    assert list(frame["path"]) == ["digit.png", "paper.png"]
    assert list(frame.columns)[-4:] == [f"member {m}" for m in (1, 2, 3, 4)]
    assert frame["error"][1] == "not an image"
    assert frame["verdict"][0] == "nothing unusual"


# neighbours and examples


@pytest.fixture
def without_knn(place) -> Detector:
    detector = Detector.load(place / "run")
    del detector.ensemble.fitted["knn"]
    return detector


def test_nearest_of_a_training_image_is_itself(service, place, scans):
    train = FeatureSet.open(place / "train")
    for given in (None, train):
        neighbours = Neighbours.of(service.detector, given, scans.subset(slice(0, 500)))
        assert neighbours.index is service.detector.ensemble.fitted["knn"], "the score and the page share one index"
        found = neighbours.nearest(train.rows([7])[0])
        assert found[0].similarity == pytest.approx(1, abs=1e-3)
        assert (found[0].class_name, found[0].name) == ("7", "7")
        assert found[0].picture.startswith("data:image/")
        assert [n.similarity for n in found] == sorted((n.similarity for n in found), reverse=True)


def test_a_run_without_knn_searches_the_training_features(service, without_knn, place):
    train = FeatureSet.open(place / "train")
    assert Neighbours.of(without_knn) is None
    own, other = Neighbours.of(service.detector), Neighbours.of(without_knn, train)
    for row in (3, 77):
        x = train.rows([row])[0]
        assert [(n.name, n.class_name) for n in own.nearest(x)] == [(n.name, n.class_name) for n in other.nearest(x)]
    unlabelled = FeatureSet.from_arrays(train.rows(slice(0, 500)))
    assert Neighbours.of(without_knn, unlabelled).nearest(train.rows([7])[0])[0].class_name == ""


def test_nearest_keeps_to_its_memory(without_knn, place, monkeypatch):
    train = FeatureSet.open(place / "train")
    monkeypatch.setattr("dissensus.serve.neighbours.VALUES", 50 * train.width)
    few = Neighbours.of(without_knn, train)
    assert (len(few.index.rows), few.complete) == (50, False)
    row = int(few.index.rows[3])
    found = few.nearest(train.rows([row])[0])[0]
    assert (found.name, found.class_name) == (f"row {row}", train.classes[int(train.labels[row])])
    assert cards._among(few) == "a random 50 of the training images"


def test_images_must_be_those_of_the_features(service, without_knn, place, scans):
    train = FeatureSet.open(place / "train")
    for detector, given in ((service.detector, None), (without_knn, train)):
        with pytest.raises(DataError, match="these are others"):
            Neighbours.of(detector, given, scans.subset(slice(1, 501)))
    with pytest.raises(DataError, match="400 images for 500 rows"):
        Neighbours.of(without_knn, FeatureSet.from_arrays(train.rows(slice(0, 500))), scans.subset(slice(0, 400)))
    with pytest.raises(DataError, match="--train must be the features that the run was trained on"):
        Neighbours.of(service.detector, FeatureSet.open(place / "held-out"))


def test_images_of_an_index_that_is_a_part_need_the_features(place, scans):
    detector = Detector.load(place / "run")
    knn = detector.ensemble.fitted["knn"]
    detector.ensemble.fitted["knn"] = KNN({key: value[5::3].contiguous() for key, value in knn.state_dict().items()})
    images = scans.subset(slice(0, 500))
    with pytest.raises(DataError, match="this run keeps a part of them: give --train too"):
        Neighbours.of(detector, None, images)
    train = FeatureSet.open(place / "train")
    found = Neighbours.of(detector, train, images)
    assert not found.complete
    assert found.nearest(train.rows([8])[0])[0].name == "8"


def test_examples_of_a_folder(place, tmp_path):
    found = examples.of_folder(str(place))
    assert sorted(e.name for e in found) == ["digit.png", "photo.png"]  # the bad ones are left out
    with pytest.raises(DataError, match="none that can be read"):
        examples.of_folder(str(tmp_path))
    with pytest.raises(DataError, match="there is none"):
        examples.of_folder(str(tmp_path / "nothing"))
    assert examples.of_run(place / "run") == []  # never evaluated


def test_saved_examples_are_as_small_as_they_were(scans):
    example = Example(picture=thumbnail(scans.image(3)), place="id/3", truth="3", answer="3", votes=("3",), pds=1.0)
    made = examples._of_evaluation(example, "id")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(made.data))), np.asarray(scans.image(3)))


@pytest.mark.parametrize(
    "image",
    [
        np.full((1, 1, 3), 200), np.zeros((64, 64, 3)), np.full((64, 64, 3), 255),
        255 * (np.indices((64, 64, 1)).sum(0) % 2).repeat(3, 2),
        np.random.default_rng(0).integers(0, 256, (64, 64, 3)),
    ],
    ids=["one pixel", "black", "white", "checkerboard", "noise"],
)  # fmt: skip
@pytest.mark.parametrize("held_out", [200, 30])
def test_images_of_nothing_are_called_out(place, scans, image, held_out):
    """From pixels to the verdict, with the default score for many held-out samples and for few."""
    detector = Detector.load(place / "run", calibrated=False)
    detector.calibrate(FeatureSet.open(place / "held-out").subset(range(held_out)))
    assert detector.predict(np.asarray(image, np.uint8)).out.all()
    assert detector.predict(scans.subset(slice(700, 760))).out.double().mean() < 0.2
