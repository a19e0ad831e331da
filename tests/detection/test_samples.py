"""What a detector takes: features and images in every form, streams, and what it does not take."""

from __future__ import annotations

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from dissensus._core.errors import DataError, DissensusError, ShapeError, UnknownNameError
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.images import ImageSet, read_image


def test_arrays_and_feature_sets_are_the_same(run, more):
    detector = Detector.load(run).calibrate(more.rows(slice(None)).numpy())
    x = more.rows(slice(0, 9))
    expected = detector.predict(more.subset(range(9)))
    for given in (x, x.numpy(), x.double().numpy()):
        assert torch.equal(detector.predict(given).score, expected.score)


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


def test_images_come_in_every_form(pictures, tmp_path):
    detector = Detector.load(pictures / "run")
    paths = sorted(map(str, (pictures / "images" / "blue").iterdir()))[:3]
    expected = detector.predict(paths)
    shown = [read_image(path) for path in paths]
    pixels = np.stack([np.asarray(picture) for picture in shown])
    (tmp_path / "few").mkdir()
    for path in paths:
        shutil.copy(path, tmp_path / "few")
    (tmp_path / "list.txt").write_text("\n".join(paths))
    frame = pd.DataFrame({"path": paths, "width": 40})
    frame.to_csv(tmp_path / "table.csv", index=False)
    forms = {
        "folder": str(tmp_path / "few"), "list of folders": [tmp_path / "few"], "list": tmp_path / "list.txt",
        "table": tmp_path / "table.csv", "frame": frame, "series": frame["path"], "arrays": list(pixels),
        "batch": pixels, "tensor": torch.from_numpy(pixels), "shown": tuple(shown),
        "set": ImageSet.find(tmp_path / "few"), "features folder": pictures / "features",
    }  # fmt: skip
    for form, samples in forms.items():
        found = detector.predict(samples)
        if form == "features folder":
            torch.testing.assert_close(found.score[:3], expected.score, atol=1e-3, rtol=2e-2)  # float16 on disk
        else:
            assert torch.equal(found.score, expected.score), form
    assert detector.predict(forms["folder"]).names == tuple(str(tmp_path / "few" / f"0{i}.png") for i in range(3))
    assert detector.predict(frame).names == tuple(paths)
    for one in (paths[1], pictures / "images" / "blue" / "01.png", shown[1], pixels[1], torch.from_numpy(pixels[1])):
        torch.testing.assert_close(detector.predict(one).score, expected.score[1:2])
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
def test_bad_images_are_one_line(pictures, tmp_path, samples, words):
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.npz").touch()
    if isinstance(samples, str):
        samples = samples.format(tmp=tmp_path)
    elif isinstance(samples, list):
        samples = [s.format(tmp=tmp_path) if isinstance(s, str) else s for s in samples]
    with pytest.raises(DissensusError, match=words) as caught:
        Detector.load(pictures / "run").predict(samples)
    assert "\n" not in str(caught.value)


def test_images_come_as_paths_pictures_or_sets(pictures):
    detector = Detector.load(pictures / "run")
    images = ImageSet.find(pictures / "images")
    paths = [pictures / "images" / name for name in images.names[:5]]
    by_set = detector.predict(images.subset(range(5)))
    by_path = detector.predict(paths)
    shown = [read_image(str(path)) for path in paths]
    by_picture = detector.predict(shown)
    by_features = detector.predict(FeatureSet.open(pictures / "features").subset(range(5)))
    assert torch.equal(by_set.score, by_path.score)
    assert torch.equal(by_set.score, by_picture.score)
    torch.testing.assert_close(by_set.score, by_features.score, atol=1e-3, rtol=2e-2)  # float16 on disk
    assert by_path.names == tuple(map(str, paths))
    assert [v.name for v in by_set] == list(images.names[:5])
    with pytest.raises(DataError, match="mixture"):
        detector.predict([paths[0], shown[1]])


def test_a_stream_gives_every_path_a_row_in_order(pictures, tmp_path):
    good = sorted((pictures / "images" / "red").iterdir())[:7]
    images = ImageSet.find(pictures / "images")
    # Without these seven: the p-value of a calibration sample jumps with the last bit of its score.
    others = [i for i in range(len(images)) if images.path(i) not in set(map(str, good))]
    detector = Detector.load(pictures / "run").calibrate(images.subset(others))
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


def test_a_stream_reads_no_further_than_it_must(pictures):
    """Paths may come without end."""
    path = str(next((pictures / "images" / "red").iterdir()))
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield path

    stream = Detector.load(pictures / "run").stream(endless(), batch_size=4, workers=1)
    for _ in range(10):
        next(stream)
    stream.close()
    assert asked <= 40
