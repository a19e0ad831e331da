"""ask and adapt as a user meets them: a run, a folder of new images, a table filled in by hand, a run again."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dissensus import Detector, FeatureSet, adapt, fit
from dissensus._core.errors import RunError
from dissensus.adaptation import runs
from dissensus.detection import card
from dissensus.training import adaptation
from dissensus.training.run import ADAPTATION, Run
from tests.commands import refuse, run
from tests.conftest import blobs, linear
from tests.damage import damages

QUIET = ("--no-progress",)


def digest(folder):
    """All files of a folder, by content."""
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def fill(path, label, count=99):
    """Label the first rows of a table by a function of the row."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[:count]:
        row["label"] = label(row)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A run on images through a small random backbone, and images of another place."""
    from dissensus import backbones, extract
    from dissensus.images import ImageSet
    from dissensus.models import tails
    from dissensus.models.ensemble import Ensemble

    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for folder, light in (("photos", 90), ("new", 160)):
        for c, colour in enumerate(("red", "blue")):
            (root / folder / colour).mkdir(parents=True)
            for i in range(24):
                pixels = generator.integers(light - 90, light, (40, 40, 3), np.uint8)
                pixels[..., 2 * c] += 90
                Image.fromarray(pixels).save(root / folder / colour / f"{i:02d}.png")
    backbone = backbones.create("resnet10t", "random", layers=1, size=32)
    features = extract(ImageSet.find(root / "photos"), backbone, root / "features", workers=0, progress=False)
    extract(ImageSet.find(root / "new"), backbone, root / "pool", workers=0, progress=False)
    ensemble = Ensemble(tails.create("linear", features.width, 2), members=3)
    fit(ensemble, features, "deep-ensemble", epochs=5, lr=1e-2, batch_size=16, out=root / "run", progress=False)
    return root


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    """A run on features."""
    folder = tmp_path_factory.mktemp("clouds")
    fit(linear(), blobs(), "sed-a2d", diversity=0.1, epochs=10, lr=1e-2, batch_size=32, out=folder / "run",
        progress=False)  # fmt: skip
    np.savez(folder / "pool.npz", features=blobs(60, seed=4).rows(slice(None)).numpy())
    return folder


def test_questions_labels_and_a_run_that_everything_takes(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos / "new", "new")
    before = digest(photos / "run")
    code, out, err = run(capsys, "ask", photos / "run", "new", "--count", 6, *QUIET)
    assert code == 0, err
    assert len(out.splitlines()) == 7
    assert "wrote questions.csv to fill in, and questions.html" in err
    assert f"dissensus adapt {photos / 'run'} --labelled questions.csv --out ADAPTED" in err
    assert Path("questions.html").read_text().count("<img") == 6
    rows = fill("questions.csv", lambda row: Path(row["image"]).parent.name, 5)
    assert list(rows[0]) == ["image", "label", "votes", "reason"]
    assert len(rows[0]["votes"].split(";")) == 3
    code, out, err = run(capsys, "adapt", photos / "run", "--labelled", "questions.csv", "--out", "there", *QUIET)
    assert code == 0, err
    assert "5 labels; > is the choice." in out
    assert "calibrate it for verdicts: dissensus calibrate there --id SAMPLES" in err
    assert digest(photos / "run") == before
    assert sorted(os.listdir("there")) == [ADAPTATION, "ensemble", "run.json"]

    made, original = Run.open("there"), Run.open(photos / "run")
    document = adaptation.read(made)
    assert document.run == str(photos / "run")
    assert document.labels == 5
    assert made.settings["members"] == len(Detector.load("there").ensemble) == 1
    assert made.settings["active"] == 1
    assert made.info.data == original.info.data
    assert document.reason in made.info.notes[0]
    assert made.about["method"] == "deep-ensemble, adapted"
    assert original.about["method"] == "deep-ensemble"

    code, out, err = run(capsys, "calibrate", "there", "--id", "new", *QUIET)
    assert code == 0, err
    code, out, err = run(capsys, "predict", "there", "new", "--format", "csv", *QUIET)
    assert code == 0, err
    assert out.count("\n") == 49
    code, out, err = run(
        capsys, "evaluate", photos / "run", "there", "--id", photos / "features", "--shift", f"new={photos / 'pool'}",
        *QUIET,
    )  # fmt: skip
    assert code == 0, err
    names = [line.split("  ")[0].strip() for line in out.splitlines()]
    assert "deep-ensemble" in names
    assert "deep-ensemble, adapted" in names
    shutil.rmtree(photos / "run" / "evaluation")
    code, out, err = run(capsys, "report", "there", "--out", "page.html")
    assert code == 0, err
    page = Path("page.html").read_text()
    assert "deep-ensemble, adapted" in page
    assert f"dissensus adapt {photos / 'run'} --labelled LABELLED --out there" in page
    assert document.reason.split(":")[0] in page
    for target, where in (("onnx", "there.onnx"), ("hub", "hub")):
        code, out, err = run(capsys, "export", "there", "--to", target, "--out", where)
        assert code == 0, err
    text = Path("hub/README.md").read_text()
    assert f"Adapted by prior on member {document.member + 1} with 5 labels (" in text
    verdicts = Detector.from_pretrained("hub").predict("new")
    assert torch.equal(verdicts.label, Detector.load("there").predict("new").label)


def test_serve_takes_an_adapted_run(photos, tmp_path, capsys):
    from dissensus.serve.service import Service

    there = tmp_path / "there"
    assert run(capsys, "adapt", photos / "run", "--labelled", photos / "new", "--out", there, *QUIET)[0] == 0
    service = Service(Detector.load(there), "there")
    result = service.result(service.inspect("a.png", (photos / "new" / "red" / "00.png").read_bytes()))
    assert result["class"] in ("red", "blue")


def test_class_folders_lists_tables_tars_and_features_give_labels(photos, tmp_path, capsys):
    new = photos / "new"
    (tmp_path / "list.txt").write_text("".join(f"{p}\t{p.parent.name}\n" for p in sorted(new.rglob("*.png"))[:6]))
    (tmp_path / "table.csv").write_text(f"path,class\n{new}/red/00.png,red\n{new}/blue/01.png,blue\n")
    with tarfile.open(tmp_path / "new.tar", "w") as tar:
        tar.add(new, "new")
    for i, (labelled, count) in enumerate(
        [(new, 48), (tmp_path / "list.txt", 6), (tmp_path / "table.csv", 2), (tmp_path / "new.tar", 48),
         (photos / "pool", 48)]
    ):  # fmt: skip
        out = tmp_path / f"out-{i}"
        code, _, err = run(capsys, "adapt", photos / "run", "--labelled", labelled, "--out", out, *QUIET)
        assert code == 0, err
        assert adaptation.read(Run.open(out)).labels == count


def test_a_tar_and_features_need_the_pool_again(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with tarfile.open("new.tar", "w") as tar:
        tar.add(photos / "new", "new")
    for pool in ("new.tar", str(photos / "pool")):
        code, _, err = run(capsys, "ask", photos / "run", pool, "--count", 4, "--out", "q.csv", *QUIET)
        assert code == 0, err
        assert f"--labelled q.csv --pool {pool} --out ADAPTED" in err
        fill("q.csv", lambda row: "red" if int(row["row"]) % 2 else "blue")
        arguments = ("adapt", photos / "run", "--labelled", "q.csv", "--out", f"out-{len(pool)}", *QUIET)
        assert "add --pool" in refuse(capsys, *arguments)
        assert "another one" in refuse(capsys, *arguments, "--pool", photos / "features")
        code, _, err = run(capsys, *arguments, "--pool", pool)
        assert code == 0, err
        os.remove("q.csv")


def test_features_alone(clouds, tmp_path, capsys):
    table = tmp_path / "deep" / "q.csv"
    code, out, err = run(capsys, "ask", clouds / "run", clouds / "pool.npz", "--count", 99, "--out", table, *QUIET)
    assert code == 0, err
    assert "the pool has 60 samples: all are asked about" in err
    assert "row " in out
    labels = blobs(60, seed=4).labels
    fill(table, lambda row: str(int(labels[int(row["row"])])), 10)
    code, out, err = run(
        capsys, "adapt", clouds / "run", "--labelled", table, "--pool", clouds / "pool.npz", "--by", "head", "--train",
        clouds / "train.npz", "--out", tmp_path / "out", *QUIET,
    )  # fmt: skip
    assert code == 2
    x = blobs()
    np.savez(clouds / "train.npz", features=x.rows(slice(None)).numpy(), labels=x.labels.numpy())
    code, out, err = run(
        capsys, "adapt", clouds / "run", "--labelled", table, "--pool", clouds / "pool.npz", "--by", "head", "--train",
        clouds / "train.npz", "--out", tmp_path / "out", *QUIET,
    )  # fmt: skip
    assert code == 0, err
    assert "By head, as asked." in out
    assert adaptation.read(Run.open(tmp_path / "out")).way == "head"


def test_adapted_again_it_is_on_record(clouds, tmp_path, capsys):
    x = blobs(30, seed=6)
    np.savez(tmp_path / "a.npz", features=x.rows(slice(0, 5)).numpy(), labels=x.labels[:5].numpy())
    np.savez(tmp_path / "b.npz", features=x.rows(slice(5, 12)).numpy(), labels=x.labels[5:12].numpy())
    for source, labelled, out in ((clouds / "run", "a", "one"), (tmp_path / "one", "b", "two")):
        code, _, err = run(
            capsys, "adapt", source, "--labelled", tmp_path / f"{labelled}.npz", "--out", tmp_path / out, *QUIET
        )
        assert code == 0, err
    first, second = (adaptation.read(Run.open(tmp_path / name)) for name in ("one", "two"))
    assert second.before == (first.summary,)
    assert Run.open(tmp_path / "two").about["method"] == "sed-a2d, adapted"
    assert first.summary in card._adapted(Run.open(tmp_path / "two")).replace("\\", "")
    assert "this ensemble has one" in refuse(capsys, "ask", tmp_path / "two", clouds / "pool.npz")


def test_unreadable_images_are_left_out_of_a_pool_and_stop_an_adaptation(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos / "new" / "red", "pool/red")
    Path("pool/red/00.png").write_bytes(b"no image")
    code, _, err = run(capsys, "ask", photos / "run", "pool", "--count", 23, *QUIET)
    assert code == 0, err
    assert "1 of 24 images could not be read and are left out" in err
    assert "00.png" not in Path("questions.csv").read_text()
    message = refuse(capsys, "adapt", photos / "run", "--labelled", "pool", "--out", "out", *QUIET)
    assert "00.png" in message
    assert not Path("out").exists()
    for path in Path("pool/red").glob("*.png"):
        path.write_bytes(b"no image")
    os.remove("questions.csv")
    message = refuse(capsys, "ask", photos / "run", "pool", *QUIET)
    assert "none of 24 is" in message
    assert not Path("questions.csv").exists()


def test_ask_refuses_in_one_line(photos, clouds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pool = clouds / "pool.npz"
    ask = ("ask", clouds / "run", pool, *QUIET)
    assert "count must be at least 1" in refuse(capsys, *ask, "--count", 0)
    assert "--out must end in .csv" in refuse(capsys, *ask, "--out", "q.txt")
    assert "--sheet in .html" in refuse(capsys, *ask, "--sheet", "q.csv")
    os.mkdir("folder.csv")
    assert "is a folder" in refuse(capsys, *ask, "--out", "folder.csv")
    assert "does not exist" in refuse(capsys, "ask", clouds / "run", "nothing")
    os.mkdir("empty")
    assert "holds none" in refuse(capsys, "ask", clouds / "run", "empty")
    assert "no run at" in refuse(capsys, "ask", "nowhere", pool)
    assert "images need a trunk" in refuse(capsys, "ask", clouds / "run", photos / "new")
    assert "features of width" in refuse(capsys, "ask", photos / "run", pool)
    Path("filled.csv").write_text("row,label\n1,0\n")
    assert "filled.csv has some" in refuse(capsys, *ask, "--out", "filled.csv")
    Path("page.html").write_text("mine")
    assert "page.html is something else" in refuse(capsys, *ask, "--sheet", "page.html")
    assert not Path("questions.csv").exists()
    assert run(capsys, *ask)[0] == 0
    assert run(capsys, *ask)[0] == 0  # nothing is filled in: it may be written again


def test_adapt_refuses_in_one_line_and_writes_nothing(photos, clouds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    x = blobs(6)
    np.savez("six.npz", features=x.rows(slice(None)).numpy(), labels=x.labels.numpy())
    np.savez("bare.npz", features=x.rows(slice(None)).numpy())
    np.savez("other.npz", features=x.rows(slice(None)).numpy(), labels=x.labels.numpy() + 5)

    def refused(labelled, *more, source=clouds / "run", out="out"):
        message = refuse(capsys, "adapt", source, "--labelled", labelled, "--out", out, *more, *QUIET)
        assert not Path("out").exists()
        return message

    assert "got an unlabelled set" in refused("bare.npz")
    assert "'5', '6', '7' is not among '0', '1', '2'" in refused("other.npz")
    assert "there is no file" in refused("nothing.npz")
    assert "does not exist" in refused("nothing")
    assert "--pool is for a table of rows" in refused("six.npz", "--pool", "six.npz")
    Path("q.csv").write_text("row,label\n1,\n2,\n")
    assert "q.csv has none: fill in the column 'label'" in refused("q.csv")
    assert "has none: fill in" in refused("q.csv", "--pool", "six.npz")
    Path("q.csv").write_text("image,label\ngone.png,red\n")
    assert "gone.png" in refused("q.csv", source=photos / "run")
    Path("q.csv").write_text(f"image,label\n{photos}/new/red/00.png,green\n")
    assert "'green' is not among 'blue', 'red'" in refused("q.csv", source=photos / "run")
    os.mkdir("flat")
    shutil.copy(photos / "new" / "red" / "00.png", "flat")
    assert "the images of flat have none" in refused("flat", source=photos / "run")
    assert "features of width" in refused("six.npz", source=photos / "run")
    assert "within" not in refused("six.npz", "--train", "bare.npz")
    os.mkdir("full")
    Path("full/file").touch()
    assert "full holds files" in refused("six.npz", out="full")
    assert os.listdir("full") == ["file"]
    assert "outside of the run" in refused("six.npz", out=clouds / "run" / "inside")
    assert "holds files" in refused("six.npz", out=clouds / "run")
    one = FeatureSet.from_arrays(x.rows(slice(None)), [0] * 6)
    np.savez("one.npz", features=one.rows(slice(None)).numpy(), labels=one.labels.numpy())
    assert "labels of two classes" in refused("one.npz", "--by", "head")


def test_a_run_is_complete_or_absent(clouds, tmp_path, monkeypatch):
    opened = Run.open(clouds / "run")
    adapted = adapt(Detector.load(clouds / "run").ensemble, blobs(6, seed=3))
    monkeypatch.setattr(runs.documents, "write", lambda *_: (_ for _ in ()).throw(RunError("disk full")))
    with pytest.raises(RunError, match="disk full"):
        runs.save(adapted, opened, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path) if not name.endswith(".lock")] == []


def test_a_damaged_record_is_one_line(clouds, tmp_path):
    adapted = adapt(Detector.load(clouds / "run").ensemble, blobs(6, seed=3))
    made = runs.save(adapted, Run.open(clouds / "run"), tmp_path / "a")
    document = json.loads((tmp_path / "a" / ADAPTATION).read_text())
    assert adaptation.read(made).labels == 6
    messages = []
    for field, kind, text in damages(document):
        (tmp_path / "a" / ADAPTATION).write_text(text)
        try:
            adaptation.read(made)
        except RunError as error:
            messages.append((field, kind, str(error)))
    assert len(messages) > 50
    assert not [message for message in messages if "\n" in message[2]]
    assert adaptation.read(Run.open(clouds / "run")) is None
