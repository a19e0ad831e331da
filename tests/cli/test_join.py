"""Several backbones on the command line: run, join, and every command on the run that results."""

from __future__ import annotations

import json
import os
import shutil

import pandas as pd
import pytest

from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.serve.adapting import why_not
from dissensus.serve.cards import card
from dissensus.serve.neighbours import Neighbours
from dissensus.serve.service import Service
from dissensus.training import Run
from tests.commands import refuse, run
from tests.trees import classes, images

QUICK = [
    "--weights", "random", "--size", "32", "--workers", "0", "--no-progress", "--epochs", "2", "--batch-size", "8",
    "--members", "2", "--methods", "deep-ensemble",
]  # fmt: skip
NAMES = ("test_vit", "test_efficientnet")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    classes(root / "train", count=8)
    classes(root / "held-out", count=14)
    classes(root / "val", count=4)
    images(root / "ood" / "junk", 5)
    return root


@pytest.fixture(scope="module")
def home(photos, tmp_path_factory):
    """The result of run with two backbones; nothing of it is changed by a test."""
    from dissensus.cli import main

    home = tmp_path_factory.mktemp("runs")
    assert main(["run", "--root", str(photos), "--backbone", *NAMES, *QUICK, "--out", str(home)]) == 0
    return home


@pytest.fixture
def copied(home, tmp_path):
    """The joined run, to change."""
    return shutil.copytree(home, tmp_path / "home") / "deep-ensemble"


def of_each(home, name: str) -> str:
    """The features of a set, of both backbones."""
    return ",".join(str(home / "features" / "folders" / f"{backbone}-32px" / name) for backbone in NAMES)


def test_run_joins_the_backbones_of_every_method(home):
    joined = Run.open(home / "deep-ensemble")
    assert {name: folder.name for name, folder in joined.parts.items()} == {name: name for name in NAMES}
    assert joined.settings["members"] == 4
    frame = pd.read_csv(home / "results.csv")
    members = frame.groupby("run", sort=False)["members"].first().to_dict()
    parts = {f"deep-ensemble/parts/{name}": 2 for name in NAMES}
    assert list(members.items()) == [*parts.items(), ("deep-ensemble", 4)]
    detector = Detector.load(home / "deep-ensemble")
    assert detector.threshold.false_alarms == 0.05
    assert len(detector.threshold.references) == 5
    assert len(detector.threshold.calibrated.values[0]) == 21, "42 held-out images, half of them rank the scores"
    page = (home / "report.html").read_text()
    assert "dissensus join" in page
    assert "mahalanobis@test_vit" in page
    assert not list((home / "deep-ensemble" / "ensemble").glob("*.safetensors")), "weights are not copied"


def test_a_second_call_repeats_nothing_and_keeps_the_calibration(home, photos, capsys):
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.suffix in (".safetensors", ".npy")}
    code, _, _ = run(capsys, "run", "--root", photos, "--backbone", *NAMES, *QUICK, "--out", home)
    assert code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_every_command_takes_the_joined_run(home, copied, photos, tmp_path, capsys):
    code, out, err = run(capsys, "predict", copied, photos / "ood", photos / "val" / "cat", "--explain", "--workers", 0)
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 9
    assert len(rows[0]["votes"]) == 4
    assert [part["score"] for part in rows[0]["parts"]][:2] == [f"mahalanobis@{name}" for name in NAMES]
    code, out, err = run(capsys, "predict", copied, of_each(home, "junk"))
    assert code == 0, err
    assert len(out.splitlines()) == 5
    suite = ["--suite", "folders", "--root", photos, "--features", home / "features"]
    code, out, err = run(capsys, "evaluate", copied, *suite, "--no-progress")
    assert code == 0, err
    assert "AUROC combined" in out
    sets = [
        "--id",
        of_each(home, "id"),
        "--ood",
        f"junk={of_each(home, 'junk')}",
        "--held-out",
        of_each(home, "held-out"),
    ]
    code, again, err = run(capsys, "evaluate", copied, *sets, "--no-progress")
    assert code == 0, err
    assert again == out, "by suite or by features"
    for samples in (["--id", photos / "held-out"], ["--id", of_each(home, "held-out")], suite):
        code, out, err = run(capsys, "calibrate", copied, *samples, "--score", "mahalanobis")
        assert code == 0, err
        assert out.startswith("mahalanobis@test_vit+mahalanobis@test_efficientnet: out above ")
    code, out, err = run(capsys, "report", copied, "--out", tmp_path / "page.html")
    assert code == 0, err


def test_what_takes_one_backbone_names_the_parts(home, photos, tmp_path, capsys):
    joined = home / "deep-ensemble"
    parts = ", ".join(str(joined / "parts" / name) for name in NAMES)
    end = f"at a time; {joined} joins test_vit and test_efficientnet: give one of {parts}"
    assert refuse(capsys, "export", joined, "--to", "onnx", "--out", tmp_path / "x.onnx") == (
        f"export writes one backbone {end}"
    )
    assert refuse(capsys, "ask", joined, photos / "val", "--out", tmp_path / "q.csv") == f"ask takes one backbone {end}"
    labelled = ["--labelled", photos / "val", "--out", tmp_path / "adapted"]
    assert refuse(capsys, "adapt", joined, *labelled) == f"adapt takes one backbone {end}"
    assert not list(tmp_path.iterdir())


def test_join_is_what_run_does(home, photos, tmp_path, capsys):
    parts = [home / "deep-ensemble" / "parts" / name for name in NAMES]
    code, out, err = run(capsys, "join", *parts, "--out", tmp_path / "joined")
    assert code == 0, err
    assert out == f"{tmp_path / 'joined'}\n"
    assert "joined test_vit and test_efficientnet: 4 members; calibrate them together" in err
    code, _, err = run(capsys, "calibrate", tmp_path / "joined", "--id", of_each(home, "held-out"))
    assert code == 0, err
    mine, theirs = (Detector.load(folder).threshold for folder in (tmp_path / "joined", home / "deep-ensemble"))
    assert mine.calibrated.values[0].equal(theirs.calibrated.values[0])
    code, _, _ = run(capsys, "join", *parts, "--out", tmp_path / "joined")
    assert code == 0
    assert Detector.load(tmp_path / "joined").threshold is not None, "a second call keeps the calibration"


@pytest.mark.parametrize(
    ("backbones", "words"),
    [
        (["test_vit", "test_vit"], "must differ in name or layers; got test_vit twice: name each once"),
        (["test_vit:1", "test_vit:1"], "must differ in name or layers; got test_vit twice"),
        (["test_vit:3", "test_vit"], "layers after a colon must be 1 or 2; got --backbone test_vit:3"),
        (["test_vit", "test_vitt"], "unknown backbone 'test_vitt': did you mean 'test_vit'"),
    ],
)
def test_backbones_that_cannot_be_joined(backbones, words, photos, tmp_path, capsys):
    small = shutil.copytree(photos / "val", tmp_path / "small")
    assert words in refuse(capsys, "run", "--root", small, "--backbone", *backbones, *QUICK, "--out", tmp_path / "out")


def test_options_that_do_not_go_with_several_backbones(photos, home, tmp_path, capsys):
    command = ["run", "--root", photos, "--backbone", *NAMES]
    assert "--weights is a file for one backbone; got 2" in refuse(
        capsys, *command, "--weights", "w.safetensors", "--out", tmp_path / "out"
    )
    assert "auto chooses for one backbone; got 2" in refuse(
        capsys, *command, "--methods", "auto", "--out", tmp_path / "out"
    )
    flags = [*QUICK, "--features", home / "features"]
    one = home / "deep-ensemble" / "parts" / "test_vit"
    shutil.copytree(one, tmp_path / "single" / "deep-ensemble")
    assert "holds a run that does not join test_vit and test_efficientnet" in _last(
        run(capsys, *command, *flags, "--out", tmp_path / "single")
    )
    shutil.copytree(home / "deep-ensemble", tmp_path / "joined" / "deep-ensemble")
    single = ["run", "--root", photos, "--backbone", "test_vit", *flags]
    assert "holds another run" in _last(run(capsys, *single, "--out", tmp_path / "joined"))


def _last(outcome) -> str:
    code, _, err = outcome
    assert code == 2
    return err.splitlines()[-1]


def test_a_backbone_that_cannot_be_cut_twice(photos, tmp_path, capsys):
    command = ["run", "--root", photos, "--backbone", "test_resnet:1", "test_resnet:2", *QUICK, "--out", tmp_path]
    assert "must differ in name or layers; got test_resnet:1 2 times" in _last(run(capsys, *command))


def test_layers_of_one_backbone(photos, tmp_path, capsys):
    command = ["run", "--root", photos, "--backbone", "test_vit:1", "test_vit:2", *QUICK, "--out", tmp_path]
    code, _, err = run(capsys, *command)
    assert code == 0, err
    joined = Run.open(tmp_path / "deep-ensemble")
    assert list(joined.parts) == ["test_vit:1", "test_vit:2"]
    assert [folder.name for folder in joined.parts.values()] == ["test_vit-1", "test_vit-2"]
    assert len(Detector.load(joined.folder).predict(photos / "ood")) == 5, "tokens and vectors side by side"


def test_a_kill_in_the_second_extraction_keeps_the_first(photos, tmp_path, capsys, monkeypatch):
    command = ["run", "--root", photos, "--backbone", *NAMES, *QUICK, "--out", tmp_path / "run"]
    opened = FeatureSet.open

    class Killed(BaseException):
        pass

    from dissensus.backbones import engines

    create = engines.create

    def killed(name, backbone, device="cpu"):
        if backbone.name == NAMES[1]:
            raise Killed
        return create(name, backbone, device)

    monkeypatch.setattr(engines, "create", killed)
    with pytest.raises(Killed):
        run(capsys, *command)
    first = tmp_path / "run" / "features" / "folders" / f"{NAMES[0]}-32px"
    done = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    assert len(opened(first / "train")) == 24
    assert not os.path.exists(tmp_path / "run" / "deep-ensemble")
    monkeypatch.setattr(engines, "create", create)
    code, _, err = run(capsys, *command)
    assert code == 0, err
    assert {path: path.stat().st_mtime_ns for path in done} == done, "nothing of the first is extracted again"
    assert list(Run.open(tmp_path / "run" / "deep-ensemble").parts) == list(NAMES)


def test_a_joined_run_is_served(home, photos):
    service = Service(Detector.load(home / "deep-ensemble"), "joined", run=home / "deep-ensemble")
    inspection = service.inspect("0.png", (photos / "ood" / "junk" / "0.png").read_bytes(), details=True)
    result = service.result(inspection)
    assert result["score"] == pytest.approx(service.detector.predict(photos / "ood" / "junk").score[0].item(), rel=1e-3)
    assert len(result["votes"]) == 4
    assert "mahalanobis@test_vit" in card(service, inspection)
    assert why_not(service).startswith("Adapting takes one backbone; this run joins test_vit and test_efficientnet")
    assert Neighbours.of(service.detector) is None


def test_several_backbones_at_a_url(photos, memory, capsys):
    """The folder of the run is at a URL; the images are in a local folder."""
    code, _, err = run(capsys, "run", "--root", photos, "--backbone", *NAMES, *QUICK, "--out", memory)
    assert code == 0, err
    joined = Run.open(f"{memory}/deep-ensemble")
    assert [str(part) for part in joined.parts.values()] == [f"{memory}/deep-ensemble/parts/{name}" for name in NAMES]
    junk = ",".join(f"{memory}/features/folders/{name}-32px/junk" for name in NAMES)
    code, out, err = run(capsys, "predict", joined.folder, junk)
    assert code == 0, err
    assert len(out.splitlines()) == 5
    assert len(Detector.load(joined.folder).predict(photos / "ood")) == 5


def test_features_of_several_backbones_where_one_is_taken(home, photos, tmp_path, capsys):
    junk, one = of_each(home, "junk"), home / "deep-ensemble" / "parts" / NAMES[0]
    command = ["predict", home / "deep-ensemble", junk, "--out", tmp_path / "v.csv", "--part", "1/2"]
    assert f"divide features of one backbone, or images; {junk} is features of 2: give the images" in refuse(
        capsys, *command
    )
    for command in (
        ["ask", one, junk, "--out", tmp_path / "q.csv"],
        ["adapt", one, "--labelled", junk, "--out", tmp_path / "a"],
    ):
        assert f"ask and adapt take features of one backbone; {junk} is features of 2" in refuse(capsys, *command)
