"""calibrate and predict as a user meets them: files, folders, lists and features; broken files have their rows."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dissensus import backbones
from dissensus.cli import main
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet, extract
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit
from tests.commands import refuse, run
from tests.forks import until


def pictures(folder, count, seed=0):
    """Reddish and bluish noise, in class folders."""
    generator = np.random.default_rng(seed)
    for c, colour in enumerate(("red", "blue")):
        (folder / colour).mkdir(parents=True)
        for i in range(count):
            pixels = generator.integers(0, 90, (40, 40, 3), np.uint8)
            pixels[..., 2 * c] += 150
            Image.fromarray(pixels).save(folder / colour / f"{i:02d}.png")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A calibrated run on images, more images of the kind, and their features."""
    home = tmp_path_factory.mktemp("home")
    backbone = backbones.create("resnet10t", "random", layers=1, size=32)
    made = {}
    for name, count, seed in (("train", 30, 0), ("fresh", 30, 1)):
        images = ImageSet.find(pictures(home / name, count, seed))
        made[name] = extract(images, backbone, home / f"{name}-features", workers=0, progress=False)
    ensemble = Ensemble(tails.create("linear", made["train"].width, 2), members=3)
    fit(ensemble, made["train"], "deep-ensemble", epochs=5, lr=1e-2, batch_size=16, out=home / "run", progress=False)
    shutil.copytree(home / "run", home / "uncalibrated")
    Detector.load(home / "run").calibrate(made["fresh"], 0.1).save(home / "run")
    return home


@pytest.fixture
def copy(home, tmp_path):
    """A run to change."""
    return shutil.copytree(home / "uncalibrated", tmp_path / "copy")


@pytest.mark.parametrize("kind", ["fresh", "fresh-features"])
def test_calibrate_takes_images_or_features(kind, home, copy, capsys):
    code, out, err = run(capsys, "calibrate", copy, "--id", home / kind, "--false-alarms", "10%")
    assert code == 0
    assert out.startswith(f"{DEFAULT_SCORE}: out above ")
    assert "at most 10.00% of ID samples are called out" in err
    assert "n = 30" in err
    kept = Detector.load(copy).threshold
    assert kept.false_alarms == 0.1
    expected = Detector.load(home / "run").threshold
    assert len(kept.calibrated.values[0]) == len(expected.calibrated.values[0])
    # the scores themselves: their ranks differ, because features are float16 on disk
    for values, others in zip(kept.references, expected.references, strict=True):
        assert values.tolist() == pytest.approx(others.tolist(), rel=0.02, abs=2e-3)


def test_calibrate_on_the_training_images_warns(home, copy, capsys):
    for kind in ("train", "train-features"):
        code, _, err = run(capsys, "calibrate", copy, "--id", home / kind)
        assert code == 0
        assert "these are the training data" in err


def test_calibrate_several_scores_by_class(home, copy, capsys):
    where = ["--id", home / "fresh-features", "--false-alarms", "0.2"]
    code, out, _ = run(capsys, "calibrate", copy, *where, "--score", "pds", "average_energy", "--by-class")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["blue", "red"]
    assert Detector.load(copy).score_name == "pds+average_energy"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--id", "{home}/fresh-features", "--false-alarms", "0.001"], "needs 999 calibration samples; got 60"),
        (["--id", "{home}/fresh-features", "--false-alarms", "0"], "between 0 and 1"),
        (["--id", "{home}/fresh-features", "--false-alarms", "7"], "must be a share"),
        (["--id", "{home}/fresh-features", "--score", "pdss"], "did you mean 'pds'"),
        (["--id", "{home}/nowhere"], "there is no file or folder"),
        ([], "either --id SAMPLES or --suite NAME; got neither"),
        (["--id", "{home}/fresh", "--suite", "digits"], "got both"),
        (["--id", "{home}/fresh", "--root", "data"], "belong to --suite"),
    ],
)
def test_calibrate_misuse_leaves_the_run_as_it_was(arguments, words, home, copy, capsys):
    assert words in refuse(capsys, "calibrate", copy, *[a.format(home=home) for a in arguments])
    assert Detector.load(copy).threshold is None


def test_a_stale_calibration_is_calibrated_again_as_it_says(home, copy, capsys):
    shutil.copy(home / "run" / "detector.json", copy)
    assert "calibrate again" in refuse(capsys, "predict", copy, home / "fresh-features")
    code, _, _ = run(capsys, "calibrate", copy, "--id", home / "fresh-features", "--score", "pds+bma")
    assert code == 0
    assert Detector.load(copy).score_name == "pds+bma"


def test_json_lines_have_one_object_an_image(home, capsys):
    code, out, err = run(capsys, "predict", home / "run", home / "fresh", "--workers", 0, "--explain")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    expected = sorted(str(path) for path in (home / "fresh").rglob("*.png"))
    assert [row["path"] for row in rows] == expected
    assert {row["class"] for row in rows} == {"red", "blue"}
    assert all(len(row["votes"]) == 3 and row["error"] is None for row in rows)
    combined = list(Detector.load(home / "run").threshold.scores)
    assert len(combined) > 1
    assert all([part["score"] for part in row["parts"]] == combined for row in rows)
    assert all(0 < part["p_value"] <= 1 for row in rows for part in row["parts"])
    assert all((row["verdict"] == "out") == (row["p_value"] <= 0.1) for row in rows)
    out_count = sum(row["verdict"] == "out" for row in rows)
    assert "60 in " in err
    assert f": {out_count} out of distribution" in err


def test_broken_files_have_rows_of_their_own(home, tmp_path, capsys, monkeypatch):
    good = next((home / "fresh" / "red").iterdir())
    (tmp_path / "a.png").write_bytes(b"%PDF-1.7 a document")
    (tmp_path / "b.jpg").touch()
    (tmp_path / "c.png").write_bytes(good.read_bytes()[:-80])
    shutil.copy(good, tmp_path / "d.png")
    paths = "\n".join([str(tmp_path), str(tmp_path / "gone.png")])
    monkeypatch.setattr(sys, "stdin", io.StringIO(paths))
    code, out, err = run(capsys, "predict", home / "run", "-", "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["error"] for row in rows] == [
        "not an image", "empty file", "truncated", "", "no such file or directory",
    ]  # fmt: skip
    assert rows[0]["verdict"] == rows[0]["class"] == ""
    assert rows[3]["class"] in ("red", "blue")
    assert "4 could not be read" in err


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_names_that_are_not_text_go_through(home, tmp_path):
    name = os.path.join(os.fsencode(tmp_path), b"caf\xe9 au\nlait.png")
    shutil.copy(next((home / "fresh" / "red").iterdir()), os.fsdecode(name))
    command = [sys.executable, "-m", "dissensus", "predict", home / "run", tmp_path, "--format", "csv"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert name in done.stdout


STDIN = "import sys; sys.stdin = open({!r})"


@pytest.mark.slow
def test_ctrl_c_while_paths_are_waited_for(home, forks, tmp_path):
    os.mkfifo(tmp_path / "paths")
    with open(os.open(tmp_path / "paths", os.O_RDWR), "w") as stdin:  # waits for no reader
        first = STDIN.format(str(tmp_path / "paths"))
        command = forks.start("predict", home / "run", "-", "--workers", 2, first=first)
        print(next((home / "fresh" / "red").iterdir()), file=stdin, flush=True)
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        until(lambda: len(children.read_text().split()) == 2)  # it has workers, and waits for more
        time.sleep(0.5)
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait(30) == 130
    assert command.err.splitlines()[-1] == "dissensus: stopped"


def test_a_closed_stdin_or_stdout_is_one_line(home, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        assert "stdin; it is closed" in refuse(capsys, "predict", home / "run", "-", "--workers", 0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        with pytest.raises(SystemExit, match="2"):
            main(["predict", str(home / "run"), str(home / "fresh")])
    assert "stdout; it is closed" in capsys.readouterr().err


def test_a_name_too_long_costs_its_row(home, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{'x' * 300}\n{home / 'fresh' / 'red' / '00.png'}\n"))
    code, out, _ = run(capsys, "predict", home / "run", "-")
    assert code == 0
    assert [json.loads(line)["error"] for line in out.splitlines()] == ["file name too long", None]


def test_a_list_on_stdin(home, capsys, monkeypatch):
    paths = sorted(str(path) for path in (home / "fresh" / "blue").iterdir())[:5]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join([*paths[:2], "", *paths[2:]]) + "\n"))
    code, out, _ = run(capsys, "predict", home / "run", "-", "--workers", 0)
    assert code == 0
    assert [json.loads(line)["path"] for line in out.splitlines()] == paths


@pytest.mark.parametrize("kind", ["image", "list", "table", "tar", "npz"])
def test_one_path_of_every_kind(kind, home, tmp_path, capsys):
    files = sorted((home / "fresh" / "blue").iterdir())[:3]
    with tarfile.open(tmp_path / "few.tar", "w") as tar:
        for file in files:
            tar.add(file, file.name)
    (tmp_path / "few.txt").write_text("\n".join([*map(str, files), str(tmp_path / "gone.png")]))
    (tmp_path / "few.csv").write_text("\n".join(["path", *map(str, files)]))
    np.savez(tmp_path / "few.npz", features=FeatureSet.open(home / "fresh-features").rows(slice(0, 3)).numpy())
    paths = {"image": files[0], "list": "few.txt", "table": "few.csv", "tar": "few.tar", "npz": "few.npz"}
    code, out, err = run(capsys, "predict", home / "run", tmp_path / paths[kind], "--workers", 0)
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == {"image": 1, "list": 4}.get(kind, 3)
    expected = Detector.load(home / "run").predict([str(file) for file in files])
    for row, verdict in zip(rows, expected, strict=False):
        assert row["score"] == pytest.approx(verdict.score, abs=0.2 if kind == "npz" else 1e-5)
    if kind == "list":
        assert rows[3]["error"] == "no such file or directory"


def test_features_and_a_file_to_write(home, tmp_path, capsys):
    code, out, _ = run(capsys, "predict", home / "run", home / "fresh-features", "--out", tmp_path / "new" / "rows.csv")
    assert (code, out) == (0, "")
    rows = list(csv.DictReader((tmp_path / "new" / "rows.csv").read_text().splitlines()))
    assert [row["path"] for row in rows] == [str(i) for i in range(60)]


def test_a_table_on_a_terminal(home, tmp_path, capsys):
    (tmp_path / "empty.png").touch()
    code, out, _ = run(
        capsys, "predict", home / "run", home / "fresh" / "red" / "00.png", tmp_path / "empty.png", "--format", "table",
        "--explain",
    )  # fmt: skip
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["verdict", "p-value", "score", "sure", "class", "path"]
    assert lines[2].startswith(("nothing unusual ", "out "))
    assert lines[2].endswith("00.png")
    assert lines[3].strip().startswith("votes: ")
    parts = ", ".join(rf"{name} [01]\.\d{{4}}" for name in Detector.load(home / "run").threshold.scores)
    assert re.fullmatch(f" +p-values: {parts}", lines[4])
    assert lines[5] == f"error: empty file: {tmp_path / 'empty.png'}"


def test_another_rate_without_calibrating_again(home, capsys):
    counts = []
    for rate in ("5%", "50%"):
        _, out, _ = run(capsys, "predict", home / "run", home / "fresh-features", "--false-alarms", rate)
        counts.append(sum(json.loads(line)["verdict"] == "out" for line in out.splitlines()))
    assert counts[0] <= 3 < 20 < counts[1] <= 30  # of the 60 that were calibrated on


def test_without_calibration_it_says_so_and_goes_on(home, capsys):
    code, out, err = run(capsys, "predict", home / "uncalibrated", home / "fresh-features")
    assert code == 0
    assert "is not calibrated, so there are no p-values and no verdicts: dissensus calibrate" in err
    assert json.loads(out.splitlines()[0])["verdict"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "{tmp}/empty"], "no image to predict"),
        (["{run}", "{home}/fresh", "--out", "rows.txt"], "must end in .jsonl or .csv"),
        (["{run}", "{home}/fresh", "--out", "rows.csv", "--format", "jsonl"], "must agree"),
        (["{run}", "-", "{home}/fresh"], "the list on stdin must be the only path"),
        (["{run}", "{home}/fresh-features", "{home}/fresh"], "features must be the only path"),
        (["{run}", "{home}/fresh", "list.txt"], "a list, table or tar must be the only path"),
        (["{run}", "list.txt"], "list.txt does not exist"),
        (["{run}", "x.npz"], "there is no file x.npz"),
        (["{run}", "{home}/fresh", "nothere.jpg"], "there is no file or folder nothere.jpg: check the path"),
        (["{run}", "{home}/fresh", "--score", "bma"], "unknown argument '--score': see: dissensus predict --help"),
        (
            ["{home}", "{home}/fresh"],
            "is not a run: it has no run.json; give one of the runs in it: run, uncalibrated",
        ),
        (["{run}", "{home}/fresh", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["{home}/nowhere", "{home}/fresh"], "there is no such folder"),
        (["{home}/uncalibrated", "{home}/fresh", "--false-alarms", "5%"], "needs a calibrated run"),
        (["{run}", "{home}/fresh", "--false-alarms", "0.001"], "needs 999 calibration samples; got 30"),
    ],
)
def test_predict_misuse(arguments, words, home, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    given = [a.format(run=home / "run", home=home, tmp=tmp_path) for a in arguments]
    assert words in refuse(capsys, "predict", *given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_where_nothing_can_be_read_the_code_is_2(home, tmp_path, capsys):
    (tmp_path / "empty.png").touch()
    code, out, err = run(capsys, "predict", home / "run", tmp_path / "empty.png", "--out", tmp_path / "rows.csv")
    assert code == 2
    assert not (tmp_path / "rows.csv").exists()
    code, out, err = run(capsys, "predict", home / "run", tmp_path / "empty.png")
    assert code == 2
    assert json.loads(out)["error"] == "empty file"
    assert "at least one image must be readable; none of 1 is" in err


def test_a_run_on_bare_features_says_how_to_take_images(tmp_path, train, capsys):
    from tests.conftest import linear

    fit(linear(), train, "deep-ensemble", epochs=1, out=tmp_path / "run", progress=False)
    code, _, err = run(capsys, "predict", tmp_path / "run", tmp_path)
    assert code == 2
    assert err.splitlines()[-1].startswith("dissensus: error: images need a trunk; this detector was trained on")


@pytest.mark.slow
def test_ctrl_c_leaves_no_half_written_file(home, forks, tmp_path):
    good = next((home / "fresh" / "red").iterdir())
    (tmp_path / "many.txt").write_text(f"{good}\n" * 50_000)
    first = STDIN.format(str(tmp_path / "many.txt"))
    command = forks.start("predict", home / "run", "-", "--out", tmp_path / "rows.jsonl", first=first)
    until(lambda: any(partial.stat().st_size for partial in tmp_path.glob(".rows.jsonl.*.tmp")), 60)
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(60) == 130
    assert command.err.splitlines()[-1] == "dissensus: stopped"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.txt"]


@pytest.mark.slow
def test_a_long_list_holds_memory_flat(home, forks, tmp_path):
    """A list of 1,500 with one broken in a hundred: peak memory is that of a list of 200."""
    good = sorted((home / "fresh").rglob("*.png"))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    peak = (
        "; import resource, multiprocessing.util; multiprocessing.util.Finalize(None, lambda: print("
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr), exitpriority=1)"
    )
    peaks = {}
    for count in (200, 1_500):
        names = [str(broken if i % 100 == 0 else good[i % len(good)]) for i in range(count)]
        (tmp_path / "names").write_text("\n".join(names))
        out = tmp_path / f"{count}.jsonl"
        first = STDIN.format(str(tmp_path / "names")) + peak
        done = forks.run("predict", home / "run", "-", "--out", out, "--workers", 1, first=first)
        assert done.code == 0, done.err
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [row["path"] for row in rows] == names
        assert sum(row["error"] == "not an image" for row in rows) == count // 100
        peaks[count] = int(done.err.splitlines()[-1])
    assert peaks[1_500] < peaks[200] + 40, peaks


def test_csv_explains_with_votes_and_p_values(home, capsys):
    path = home / "fresh" / "red" / "00.png"
    code, out, _ = run(capsys, "predict", home / "run", path, "--workers", 0, "--explain", "--format", "csv")
    assert code == 0
    (row,) = csv.DictReader(io.StringIO(out))
    assert len(row["votes"].split(";")) == 3
    combined = Detector.load(home / "run").threshold.scores
    assert [part.split("=")[0] for part in row["parts"].split(";")] == list(combined)


def test_a_long_expression_is_not_a_heading(home, tmp_path, capsys):
    copy = shutil.copytree(home / "run", tmp_path / "run")
    score = "4*mahalanobis+2*ensemble_entropy+feature_norm"
    detector = Detector.load(copy)
    detector.calibrate(FeatureSet.open(home / "fresh-features"), 0.1, score).save(copy)
    _, out, _ = run(capsys, "predict", copy, home / "fresh" / "red" / "00.png", "--format", "table", "--explain")
    lines = out.splitlines()
    assert lines[0].split() == ["verdict", "p-value", "score", "sure", "class", "path"]
    assert re.search(r"mahalanobis [01]\.\d{4}, ensemble_entropy [01]\.\d{4}, feature_norm [01]\.\d{4}$", lines[4])


def test_names_neither_control_the_terminal_nor_begin_a_formula(home, tmp_path, capsys):
    good = next((home / "fresh" / "red").iterdir()).read_bytes()
    for name in ("\x1b[2Ja.png", "=b.png", "'-c.png", "d\n.png"):
        (tmp_path / name).write_bytes(good if "d" not in name else b"no image")
    names = sorted(path.name for path in tmp_path.iterdir())
    flags = ["--workers", 0, "--format"]
    _, out, err = run(capsys, "predict", home / "run", tmp_path, *flags, "table")
    assert "\x1b" not in out + err
    assert r"\x1b[2Ja.png" in out
    assert len(out.splitlines()) == 2 + 4
    _, out, _ = run(capsys, "predict", home / "run", tmp_path, *flags, "jsonl")
    assert sorted(Path(json.loads(line)["path"]).name for line in out.splitlines()) == names


def test_csv_restores_names(home, tmp_path, capsys, monkeypatch):
    good = next((home / "fresh" / "red").iterdir()).read_bytes()
    names = ["'-c.png", "=b.png", "+a.png", "plain.png"]
    for name in names:
        (tmp_path / name).write_bytes(good)
    monkeypatch.chdir(tmp_path)
    named = [*names[:2], "./+a.png", names[3]]
    code, _, _ = run(capsys, "predict", home / "run", *named, "--workers", 0, "--out", "v.csv")
    assert code == 0
    written = [row["path"] for row in csv.DictReader((tmp_path / "v.csv").read_text().splitlines())]
    assert written == ["''-c.png", "'=b.png", "./+a.png", "plain.png"]
    assert list(ImageSet.find("v.csv", unlabelled=True).names) == named
