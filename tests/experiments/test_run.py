"""dissensus suite check and dissensus run: folders of tiny images to a table; and real images, where they are."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import tarfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from scipy import stats

from dissensus import suites
from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus.backbones import engines
from dissensus.detection.detector import Detector
from dissensus.evaluation import results
from dissensus.experiments import runner
from dissensus.features import FeatureSet
from dissensus.training import Run, TrainOptions, step
from tests.commands import refuse, run
from tests.trees import TINY_FLAGS, classes, images

ROOT = Path(__file__).parents[2]
QUICK = [*TINY_FLAGS, "--epochs", "2", "--batch-size", "8", "--members", "2"]


def settings(folder: Path) -> dict:
    return Run.open(folder).settings


def forbid(monkeypatch):
    """From now on nothing may be extracted or trained."""

    def nothing(*args):
        raise AssertionError("nothing should be done again")

    monkeypatch.setattr(engines, "create", nothing)
    monkeypatch.setattr(step.Stepper, "__call__", nothing)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Three classes to train on, the same in blue, and junk; nothing to disagree on."""
    root = tmp_path_factory.mktemp("photos")
    classes(root / "train", count=8)
    classes(root / "val", count=4)
    classes(root / "shift" / "blue", count=2)
    images(root / "ood" / "junk", 5)
    return root


# --- suite check ---------------------------------------------------------------------------------------------


def test_check_says_what_is_there(photos, capsys):
    code, out, err = run(capsys, "suite", "check", "folders", "--root", photos)
    assert code == 0
    lines = [line.split() for line in out.splitlines()[2:] if not line.startswith("---")]
    assert lines == [
        ["set", "role", "where", "images", "classes", "state"],
        ["train", "train", "train", "18", "3", "found"],
        ["id", "id", "val", "12", "3", "found"],
        ["held-out", "held-out", "train", "6", "3", "found"],
        ["blue", "shift", "shift/blue", "6", "3", "found"],
        ["junk", "ood", "ood/junk", "5", "-", "found"],
    ]
    assert err == (
        "folders: there is no held-out/, so it sets aside a fifth of each class to calibrate on\n"
        f"run it with: dissensus run --suite folders --root {photos} --out runs/folders\n"
    )


def test_check_says_what_is_missing_and_how_to_get_it(tmp_path, capsys):
    classes(tmp_path / "photo", count=10)
    code, out, _ = run(capsys, "suite", "check", "pacs", "--root", tmp_path)
    assert code == 0, "what can be done without is no mistake"
    assert re.search(r"^photo +id +photo +6 +3 +found$", out, re.M)
    assert re.search(
        r"^art, cartoon, sketch missing: unpack PACS \(Li et al. 2017\) as pacs/photo/dog", out, flags=re.MULTILINE
    )
    assert re.search(r"^textures +ood .* missing$", out, re.M)
    assert re.search(r"^textures missing: unpack the Describable Textures", out, re.M)
    (tmp_path / "empty").mkdir()
    code, out, err = run(capsys, "suite", "check", "imagenet", "--root", tmp_path / "empty")
    assert code == 2
    assert len(re.findall("  missing$", out, re.M)) == 8
    assert err == "dissensus: error: suite imagenet cannot be run without train and val: see the list for how\n"


def test_check_says_what_cannot_be_used(photos, tmp_path, capsys):
    shutil.copytree(photos, tmp_path / "photos")
    images(tmp_path / "photos" / "shift" / "blue" / "fox")
    code, out, err = run(capsys, "suite", "check", "folders", "--root", tmp_path / "photos")
    assert code == 2
    assert re.search(r"^blue unusable: classes must be those of .* has also fox", out, re.MULTILINE)
    assert err == "dissensus: error: suite folders cannot be run with blue as is: see the list for how\n"


def test_check_of_stored_corruptions_counts_them(tmp_path, capsys):
    for part in ("train", "val", "imagenet-c/noise/shot_noise/5", "imagenet-c/noise/shot_noise/1"):
        classes(tmp_path / part, ("n01440764", "n01498041"), count=1)
    code, out, _ = run(capsys, "suite", "check", "imagenet", "--root", tmp_path)
    assert code == 0
    assert re.search(r"^C +shift +\S+/\{corruption\}/\{severity\} +2 x 2 +2 +found$", out, re.M)
    assert "\nC found, but 28 of 30 missing" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "pac"], "unknown suite 'pac': did you mean 'pacs'"),
        (["check", "digits"], "'digits' has its own data: there is nothing to look for"),
        (["check", "pacs", "--root", "{}/nowhere"], "--root must be a folder"),
        (["check", "{}/own.yaml"], "own.yaml cannot be read: No such file"),
        (["chek", "pacs"], "chek"),
    ],
)
def test_check_misuse(arguments, message, tmp_path, capsys):
    assert message in refuse(capsys, "suite", *[argument.format(tmp_path) for argument in arguments])


# --- run -----------------------------------------------------------------------------------------------------


def test_run_does_the_whole_job_and_a_second_call_repeats_nothing(photos, tmp_path, capsys, monkeypatch):
    command = ["run", "--suite", "folders", "--root", photos, "--out", tmp_path / "run", *QUICK]
    code, out, err = run(capsys, *command)
    assert code == 0
    methods = ["single", "deep-ensemble", "sed-a2d"]
    assert [line.split()[0] for line in out.splitlines() if line.split()[:1] in [[m] for m in methods]][:3] == methods
    assert "AUROC combined" in out
    assert "junk" in out
    assert "folders 3/3: sed-a2d" in err
    assert f"<h1>{photos.name}</h1>" in (tmp_path / "run" / "report.html").read_text()
    frame = results.read(tmp_path / "run" / "results.csv")
    assert set(frame["method"]) == set(methods)
    assert set(frame["dataset"]) == {"id", "blue", "junk"}
    assert "<table" in (tmp_path / "run" / "report.html").read_text()
    for method in methods:
        assert settings(tmp_path / "run" / method)["backbone"]["name"] == "test_vit"
    assert settings(tmp_path / "run" / "sed-a2d")["epochs"] == 2
    assert (tmp_path / "run" / "features" / "folders" / "test_vit-32px" / "train" / "index.json").is_file()

    forbid(monkeypatch)
    assert run(capsys, *command)[:2] == (0, out)
    line = refuse_quietly(capsys, *command, "--diversity", "0.3")
    assert "holds another run (diversity is 0.003 there, 0.3 here); choose another --out" in line
    line = refuse_quietly(capsys, *command, "--lr", "0.0123456789012345")
    assert re.search(r"holds another run \(lr is 0\.0\d{2,7} there, 0.0123457 here\); choose another", line)


def test_one_folder_of_class_folders_is_enough(tmp_path, capsys):
    classes(tmp_path / "photos", count=40)
    flags = [*QUICK, "--methods", "deep-ensemble"]
    code, out, err = run(capsys, "run", "--root", tmp_path / "photos", "--out", tmp_path / "run", *flags)
    assert code == 0
    assert "deep-ensemble" in out
    lines = [line for line in err.splitlines() if "sets aside" in line]
    assert len(lines) == 1
    assert lines[0].endswith("(train 72, id 24, held-out 24)")
    detector = Detector.load(tmp_path / "run" / "deep-ensemble")
    assert detector.threshold is not None, "calibrated on what was set aside"
    folder = tmp_path / "run" / "features" / "folders" / "test_vit-32px"
    measured = detector.predict(FeatureSet.open(folder / "id")).out.double().mean()
    line = (
        "at 5% false alarms, n = 24: 0.2% to 11.7% nine times in ten, narrower with more held-out images; "
        f"measured on id: {measured:.1%} of 24"
    )
    assert f"deep-ensemble: {line}" in err.splitlines()
    assert line in (tmp_path / "run" / "report.html").read_text()
    classes(tmp_path / "few", count=5)
    code, _, err = run(capsys, "run", "--root", tmp_path / "few", "--out", tmp_path / "run-few", *flags)
    assert code == 0
    assert "nine times in ten" not in err
    assert "no detector was calibrated; 5% false alarms need 19 held-out samples, there are 3: dissensus calib" in err


def test_a_run_is_evaluated_and_calibrated_on_the_split_it_was_trained_with(tmp_path, capsys):
    """A split with another seed would have training images in its test and held-out sets."""
    root, out = classes(tmp_path / "photos", count=40), tmp_path / "run"
    command = ["run", "--root", root, "--out", out, *QUICK, "--methods", "deep-ensemble"]
    assert run(capsys, *command, "--seed", "1")[0] == 0
    known = Detector.load(out / "deep-ensemble").threshold.calibrated.values[0]
    folder = out / "features" / "folders" / "test_vit-32px"
    assert {path.name for path in folder.iterdir()} == {"train-seed1", "id-seed1", "held-out-seed1"}
    suite = ["--suite", "folders", "--root", root, "--features", out / "features"]
    (out / "deep-ensemble" / "detector.json").unlink()
    assert run(capsys, "calibrate", out / "deep-ensemble", *suite)[0] == 0
    assert torch.equal(Detector.load(out / "deep-ensemble").threshold.calibrated.values[0], known)
    assert run(capsys, "evaluate", out / "deep-ensemble", *suite, "--out", tmp_path / "again.csv")[0] == 0
    assert accuracy(tmp_path / "again.csv", "id") == accuracy(out / "results.csv", "id")
    assert len(list(folder.iterdir())) == 3, "no other split was extracted"
    other = tmp_path / "other"
    assert run(capsys, *[other if part == out else part for part in command])[0] == 0
    both = [out / "deep-ensemble", other / "deep-ensemble"]
    assert run(capsys, "evaluate", *both, *suite, "--out", tmp_path / "both.csv")[0] == 0
    frame = results.read(tmp_path / "both.csv")
    for folder in both:  # each on its own split
        expected = results.read(folder.parent / "results.csv")
        assert frame[frame["run"] == str(folder)]["value"].tolist() == pytest.approx(expected["value"].tolist())


def refuse_quietly(capsys, *arguments: object) -> str:
    """Run what is refused after some work was told of; its last line."""
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("dissensus: error: ")
    return err.splitlines()[-1]


def test_all_methods_leave_out_what_the_data_do_not_allow(photos, tmp_path, capsys):
    command = ["run", "--suite", "folders", "--root", photos, "--out", tmp_path / "run", *QUICK, "--methods", "all"]
    code, _, err = run(capsys, *command)
    assert code == 0
    assert "folders goes on without a2d: the suite has no set to disagree on" in err
    assert "folders goes on without divdis: the suite has no set to disagree on" in err
    # three classes: nobody is less sure than 1/3
    assert "folders goes on without two-stage: confidence must be above 1/3" in err
    left = ["single", "deep-ensemble", "diverse-hps", "sed-a2d", "sed-divdis"]
    assert list(dict.fromkeys(results.read(tmp_path / "run" / "results.csv")["method"])) == left
    assert not (tmp_path / "run" / "two-stage").exists()


def test_a_method_asked_for_by_name_is_refused(photos, tmp_path, capsys):
    command = ["run", "--suite", "folders", "--root", photos, "--out", tmp_path / "run", *QUICK, "--methods"]
    line = refuse_quietly(capsys, *command, "a2d", "divdis")
    assert "a2d, divdis need a disagreement set; folders has none: choose other methods" in line
    code, _, err = run(capsys, *command, "a2d")
    assert code == 2
    assert "a2d needs a disagreement set; folders has none: choose other methods" in err
    assert "goes on without a2d" not in err
    assert "confidence must be above 1/3" in refuse_quietly(capsys, *command, "two-stage")


def test_waterbirds_has_worst_groups_and_a_set_to_disagree_on(tmp_path, capsys):
    lines = ["img_filename,y,split,place"]
    for split, count in ((0, 4), (1, 2), (2, 2)):
        for group in ("00", "01", "10", "11"):
            folder = tmp_path / "waterbirds" / f"{split}-{group}"
            lines += [f"{split}-{group}/{path.name},{group[0]},{split},{group[1]}" for path in images(folder, count)]
    (tmp_path / "waterbirds" / "metadata.csv").write_text("\n".join(lines))
    code, out, _ = run(
        capsys, "run", "--suite", "waterbirds", "--root", tmp_path, "--out", tmp_path / "run", *QUICK,
        "--methods", "single", "a2d", "divdis",
    )  # fmt: skip
    assert code == 0
    assert "worst group %" in out
    frame = results.read(tmp_path / "run" / "results.csv")
    worst = frame[(frame["metric"] == "worst_group") & (frame["role"] == "groups")]
    assert set(worst["method"]) == {"single", "a2d", "divdis"}
    assert settings(tmp_path / "run" / "a2d")["diversity"] == suites.training("waterbirds")["diversity"]
    assert settings(tmp_path / "run" / "a2d")["disagreement"] is not None


def test_run_with_two_layers_pretrained_and_augmented(photos, tmp_path, capsys):
    code, _, _ = run(
        capsys, "run", "--suite", "folders", "--root", photos, "--out", tmp_path / "run", *QUICK,
        "--methods", "single", "--layers", "2", "--init", "pretrained", "--augment", "2",
    )  # fmt: skip
    assert code == 0
    chosen = settings(tmp_path / "run" / "single")
    assert chosen["tail"] == {
        "name": "mlp",
        "features": 64,
        "classes": 3,
        "hidden": 192,
        "gamma": None,
        "eps": 1e-6,
        "norm": "none",
    }
    folder = tmp_path / "run" / "features" / "folders" / "test_vit-32px-2layers"
    index = json.loads((folder / "train-2passes" / "index.json").read_text())
    assert (index["count"], index["provenance"]["passes"]) == (36, 2)
    assert (folder / "id").is_dir()


def test_what_the_suite_says_of_training_counts_unless_given(photos, tmp_path, capsys):
    text = "training: {epochs: 3, lr: 1e-3, label_smoothing: 0.2}\nsets:\n  train: {role: train, images: train}\n"
    (tmp_path / "own.yaml").write_text(text + "  val: {role: id, images: val}\n")
    code, out, _ = run(
        capsys, "run", "--suite", tmp_path / "own.yaml", "--root", photos, "--out", tmp_path / "run", *TINY_FLAGS,
        "--methods", "single", "--lr", "0.01",
    )  # fmt: skip
    assert code == 0
    assert out.startswith("own: The sets of own.yaml.")
    chosen = settings(tmp_path / "run" / "single")
    assert (chosen["epochs"], chosen["lr"], chosen["label_smoothing"]) == (3, 0.01, 0.2)
    (tmp_path / "own.yaml").write_text(text.replace("epochs: 3", "clip: -1") + "  val: {role: id, images: val}\n")
    line = refuse(capsys, "run", "--suite", tmp_path / "own.yaml", "--root", photos, "--out", tmp_path / "two")
    assert f"`training` of {tmp_path / 'own.yaml'}: clip must be above 0" in line
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run needs images; got neither --root DIR, a folder of class folders, nor --suite NAME"),
        (["--suite", "folders"], "suite 'folders' reads images from a folder: name it with --root DIR"),
        (["--suite", "folders", "--root", "{photos}/nowhere"], "--root must be a folder"),
        (["--suite", "folders", "--root", "{photos}/val/cat/0.png"], "--root must be a folder"),
        (["--suite", "folders", "--root", ""], "must name something; got an empty name"),
        (
            ["--suite", "pacs", "--root", "{photos}"],
            "suite pacs needs its train set, {photos}/pacs/photo or {photos}/photo; missing",
        ),
        (["--suite", "digits", "--root", "{photos}"], "suite 'digits' has its own data; got --root"),
        (["--suite", "dominoes", "--root", "{photos}"], "suite 'dominoes' has its own data; got --root"),
        (
            ["--suite", "dominoes", "--backbone", "lite0"],
            "'dominoes' takes seed, tie; got backbone: leave it out",
        ),
        (["--suite", "dominoes", "--augment", "2"], "suite 'dominoes' takes seed, tie; got augment: leave it out"),
        (["--suite", "domino"], "unknown suite 'domino': did you mean 'dominoes'"),
        (["--suite", "folders", "--root", "{photos}", "--methods", "sed"], "unknown method 'sed': did you mean"),
        (["--suite", "folders", "--root", "{photos}", "--tail", "lin"], "unknown tail 'lin': did you mean 'linear'"),
        (["--suite", "folders", "--root", "{photos}", "--epochs", "0"], "epochs must be at least 1; got 0"),
        (["--suite", "folders", "--root", "{photos}", "--members", "1"], "one active member has nobody to disagree"),
        (["--suite", "folders", "--root", "{photos}", "--members", "-3"], "members must be at least 1; got -3"),
        (["--root", "{photos}", "--methods", "single", "--members", "0"], "members must be at least 1; got 0"),
        (["--root", "{photos}", "--methods", "auto", "--members", "1"], "got members=1: use 2 or more"),
        (["--root", "{photos}", "--methods", "foo"], "unknown method 'foo': known: a2d, all, auto, deep-ensemble"),
        (["--root", "{photos}", "--methods", "all", "foo"], "unknown method 'foo': known: a2d, all, auto"),
        (["--root", "{photos}", "--workers", "-1"], "workers must be at least 0; got -1"),
        (["--root", "{photos}", "--engine", "onx"], "unknown engine 'onx': did you mean 'onnx'?"),
        (["--root", "{photos}", "--diversity", "inf"], "diversity must be finite and at least 0; got inf"),
        (["--suite", "folders", "--root", "{photos}", "--max-bad", "much"], "--max-bad must be a share"),
        (["--suite", "folders", "--root", "{photos}", "--backbone", "test_vitt"], "did you mean 'test_vit'"),
        (["--suite", "folders", "--root", "{photos}", "--seed", "-1"], "seed must be within 0..2147483647; got -1"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing_behind(arguments, message, photos, tmp_path, capsys):
    given = [argument.format(photos=photos) for argument in arguments]
    assert message.format(photos=photos) in refuse(capsys, "run", *given, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_among_the_images_is_refused(photos, capsys):
    inside = photos / "train" / "runs"
    code, _, err = run(capsys, "run", "--root", photos, *QUICK, "--out", inside)
    assert code == 2
    assert f"{inside / 'features'} is inside {photos / 'train'}: choose another --out" in err
    assert not inside.exists()


def test_an_output_at_a_url(photos, memory, capsys):
    code, _, err = run(capsys, "run", "--root", photos, *QUICK, "--methods", "deep-ensemble", "--out", memory)
    assert code == 0, err
    assert settings(f"{memory}/deep-ensemble")["members"] == 2
    assert len(FeatureSet.open(f"{memory}/features/folders/test_vit-32px/train")) == 18


@pytest.mark.parametrize("out", ["file", "file/run"])
def test_an_output_that_is_a_file_is_refused_before_images_are_read(out, photos, tmp_path, capsys):
    (tmp_path / "file").touch()
    line = refuse(capsys, "run", "--root", photos, "--out", tmp_path / out, *QUICK)
    assert line == f"the output must be a folder; {tmp_path / 'file'} is a file: choose another --out"


@pytest.mark.parametrize("suite", ["dominoes", "digits"])
def test_embedded_suites_run_without_a_root(suite, tmp_path, capsys):
    flags = [] if suite == "dominoes" else ["--backbone", "pixels"]
    code, out, _ = run(
        capsys, "run", "--suite", suite, "--out", tmp_path / "run", "--methods", "a2d", "--epochs", "1",
        "--no-progress", *flags,
    )  # fmt: skip
    assert code == 0
    assert out.startswith(f"{suite}: {suites.summary(suite)}")
    chosen = settings(tmp_path / "run" / "a2d")
    recipe = suites.training(suite)
    options = [name for name in recipe if name != "confidence"]  # that one is of two-stage
    assert [chosen[name] for name in options] == [recipe[name] for name in options]


def test_ctrl_c_stops_and_the_same_command_goes_on(photos, tmp_path, capsys, monkeypatch):
    def command(out: str) -> list[object]:
        return ["run", "--suite", "folders", "--root", photos, "--out", tmp_path / out, *QUICK]

    assert run(capsys, *command("whole"))[0] == 0

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return torch.zeros(1, 64)

    with monkeypatch.context() as patch:  # while images are read
        patch.setattr(engines, "create", lambda *args: interrupted)
        code, out, err = run(capsys, *command("stopped"))
        assert (code, out) == (130, "")
        assert err.endswith("dissensus: stopped; the same command goes on from here\n")
    steps = step.Stepper.__call__
    count = 0

    def ninth(*args):
        nonlocal count
        count += 1
        if count == 9:  # of the second method
            os.kill(os.getpid(), signal.SIGINT)
        return steps(*args)

    with monkeypatch.context() as patch:
        patch.setattr(step.Stepper, "__call__", ninth)
        code, out, err = run(capsys, *command("stopped"))
        assert (code, out) == (130, "")
        assert "folders 2/3: deep-ensemble" in err
        assert not (tmp_path / "stopped" / "results.csv").exists()
    assert run(capsys, *command("stopped"))[0] == 0
    whole, stopped = (tmp_path / name / "results.csv" for name in ("whole", "stopped"))
    assert whole.read_text() == stopped.read_text()


# --- docs/suites.md ------------------------------------------------------------------------------------------


def test_the_example_of_the_document_runs(tmp_path, capsys, monkeypatch):
    text = (ROOT / "docs" / "suites.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "leaves.yaml").write_text(example)
    root = tmp_path / "garden"
    kinds = ("ash", "beech", "oak")
    classes(root / "spring", kinds, count=10)
    classes(root / "autumn", kinds[:2], count=2)
    images(root / "meadow", 4)
    classes(root / "field", kinds, count=2)
    images(root / "stones", 4, side=40)
    lines = ["file,kind,soil,year"]
    for year in (2023, 2024):
        for kind in kinds:
            for soil in ("clay", "sand"):
                folder = root / "scans" / f"{year}-{kind}-{soil}"
                lines += [f"{folder.name}/{path.name},{kind},{soil},{year}" for path in images(folder, 1)]
    (root / "scans.csv").write_text("\n".join(lines))
    for corruption in ("snow", "frost"):
        for severity in (2, 4):
            classes(root / "winter" / corruption / str(severity), kinds, count=1)
    code, out, err = run(capsys, "suite", "check", tmp_path / "leaves.yaml", "--root", root)
    assert code == 0, out
    assert "missing" not in out
    monkeypatch.chdir(tmp_path)
    code, out, err = run(
        capsys, "run", "--suite", "leaves.yaml", "--root", root, "--out", "run", *TINY_FLAGS, "--epochs", "1",
        "--methods", "single", "a2d",
    )  # fmt: skip
    assert code == 0, err
    frame = results.read(tmp_path / "run" / "results.csv")
    sets = set(frame["dataset"])
    assert {"spring", "autumn", "stones", "soil", "haze-fog-1", "haze-fog-5", "winter-snow-2"} <= sets
    assert "worst group %" in out


def test_the_document_names_every_key_and_suite():
    from dissensus.suites import _recipe

    text = (ROOT / "docs" / "suites.md").read_text()
    for key in [*_recipe.Recipe.model_fields, *_recipe.SetRecipe.model_fields, *suites.SUITES]:
        assert f"`{key}`" in text, key


# --- real images ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """Unpacks so many images a class of one of the sets, or all; skips where it is not here."""

    def unpack(name: str, **folders: int | None) -> Path:
        path, root = ROOT.parent / "shared" / "data" / f"{name}.tar", tmp_path_factory.mktemp(name)
        if not path.is_file():
            pytest.skip(f"real images are not here: {path}")
        taken: Counter[str] = Counter()
        with tarfile.open(path) as file:
            for member in file:
                folder, limit = str(Path(member.name).parent), folders.get((*Path(member.name).parts, "", "")[1], 0)
                if member.isfile() and (limit is None or taken[folder] < limit):
                    taken[folder] += 1
                    file.extract(member, root, filter="data")
        return root

    return unpack


def accuracy(file: Path, dataset: str) -> float:
    frame = results.read(file)
    row = frame[(frame["dataset"] == dataset) & (frame["aggregate"] == "prediction") & (frame["metric"] == "accuracy")]
    return float(row["value"].item())


def fastest() -> list[str]:
    """Flags for the faster engine, where it is installed."""
    there = not extras.missing("onnx")
    return ["--engine", "onnx" if there else "eager", "--methods", "single", "--no-progress"]


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    logging.disable(logging.DEBUG)  # pytest would keep all that the exporter says
    yield
    logging.disable(logging.NOTSET)
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
def test_photos_of_pacs_reach_96_percent_and_the_detector_keeps_its_promise(real, tmp_path, capsys):
    root = real("pacs", photo=None)  # the other sets would take a minute
    code, _, err = run(capsys, "run", "--suite", "pacs", "--root", root, "--out", tmp_path / "run", *fastest())
    assert code == 0, err
    assert "pacs goes on without sketch (shift): missing" in err
    assert accuracy(tmp_path / "run" / "results.csv", "photo") >= 0.96
    found = [FeatureSet.open(path) for name in ("held-out*", "photo*") for path in (tmp_path / "run").rglob(name)
             if (path / "index.json").is_file()]  # fmt: skip
    rows = torch.cat([part.rows(slice(None)) for part in found])
    assert len(rows) > 450
    detector = Detector.load(tmp_path / "run" / "single")
    assert detector.threshold is not None  # calibrated by the job
    low, high = stats.binom.interval(0.99, len(rows) - 299, 0.05)
    alarms = 0
    for seed in range(20):
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        detector.calibrate(rows[order[:299]], 0.05, "bma")
        alarms += int(detector.predict(rows[order[299:]]).out.sum())
    assert low <= alarms / 20 <= high


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
def test_a_part_of_tiny_imagenet_is_learnt_as_well_as_by_hand(real, tmp_path, capsys):
    """20 of the 150 training images a class and 8 of 25 to test on; by hand 49%, and 59.4% with all."""
    root = real("tiny-imagenet", train=20, val=8)
    recipe = yaml.safe_load((ROOT / "src/dissensus/suites/recipes/tiny-imagenet.yaml").read_text())
    recipe["sets"] = {name: recipe["sets"][name] for name in ("train", "val")}
    del recipe["sets"]["train"]["part"]
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(recipe))
    code, _, err = run(
        capsys, "run", "--suite", tmp_path / "part.yaml", "--root", root, "--out", tmp_path / "run", *fastest()
    )
    assert code == 0, err
    assert accuracy(tmp_path / "run" / "results.csv", "val") >= 0.46


def test_run_with_the_method_that_tune_chooses(tmp_path, capsys, monkeypatch):
    from dissensus.adaptation import splits
    from dissensus.training import options

    monkeypatch.setattr(splits, "FOLDS", 1)
    monkeypatch.setattr(options, "UPDATES", 16)
    classes(tmp_path / "photos", count=70)
    arguments = ["run", "--root", tmp_path / "photos", "--methods", "deep-ensemble", "auto", "--out", tmp_path / "runs"]
    code, out, err = run(capsys, *arguments, *QUICK)
    assert code == 0, err
    frame = results.read(tmp_path / "runs" / "results.csv")
    assert set(frame["method"]) == {"deep-ensemble", "auto"}
    assert "\nauto " in out
    reason = json.loads((tmp_path / "runs" / "auto" / "tuning.json").read_text())["reason"]
    assert f"auto: {reason}" in err.splitlines()
    assert re.search(r"^auto: at 5% false alarms, n = \d+: .* measured on id: ", err, flags=re.MULTILINE)
    folder = tmp_path / "runs" / "auto"
    assert set(json.loads((folder / "tuning.json").read_text())["stand_ins"]) >= {"classes", "jigsaw", "recolour"}
    assert Detector.load(folder).threshold.name == json.loads((folder / "tuning.json").read_text())["choice"]["score"]
    assert settings(folder)["train"] == settings(tmp_path / "runs" / "deep-ensemble")["train"]
    forbid(monkeypatch)
    assert run(capsys, *arguments, *QUICK)[1] == out


@pytest.mark.parametrize(
    ("flags", "given"),
    [
        (["--tail", "mlp"], "tail=mlp"),
        (["--init", "pretrained"], "init=pretrained"),
        (["--lr", "0.1"], "lr=0.1"),
        (["--no-resume"], "resume=False"),
    ],
)
def test_auto_alone_takes_no_options_that_it_chooses_itself(flags, given, photos, tmp_path, capsys):
    command = ["run", "--root", photos, "--methods", "auto", "--out", tmp_path / "run", *TINY_FLAGS]
    line = refuse(capsys, *command, *flags)
    assert line.endswith(f"the rest itself; got {given}: leave it out, or name a method")
    assert not (tmp_path / "run").exists()
    assert "unknown norm 'l3'" in refuse(capsys, *command, "--norm", "l3")


def test_auto_has_the_norm_that_is_given_and_nothing_that_the_suite_recommends(photos, tmp_path, capsys, monkeypatch):
    text = "training: {lr: 0.1}\nsets: {train: {role: train, images: train}, val: {role: id, images: val}}\n"
    (tmp_path / "own.yaml").write_text(text)
    given = {}

    def stop(features, **options):
        given.update(options)
        raise DissensusError("enough")

    monkeypatch.setattr(runner, "tune", stop)
    refuse_quietly(
        capsys, "run", "--suite", tmp_path / "own.yaml", "--root", photos, "--out", tmp_path / "run", *TINY_FLAGS,
        "--methods", "auto", "--norm", "none", "--members", "3", "--seed", "4",
    )  # fmt: skip
    assert (given["norm"], given["members"], given["seed"]) == ("none", 3, 4)


def test_only_the_first_process_evaluates(tmp_path, monkeypatch):
    suite = suites.load("digits", backbone="pixels")
    job = runner.Job("single", TrainOptions(epochs=1))
    frame = runner.run_job(job, suite, tmp_path / "run", progress=False)
    assert len(frame)
    monkeypatch.setattr(runner.saved, "evaluate_run", lambda *args, **options: pytest.fail("evaluated"))
    monkeypatch.setattr(runner, "evaluated", lambda *args: None)
    monkeypatch.setattr(runner, "fit", lambda *args, **options: None)
    other = SimpleNamespace(is_global_zero=False, world_size=2)
    assert runner.run_job(job, suite, tmp_path / "run", progress=False, fabric=other).empty


def test_values_are_measured_again_with_another_default_score(tmp_path, monkeypatch):
    suite = suites.load("digits", backbone="pixels")
    runner.run_job(runner.Job("single", TrainOptions(epochs=1)), suite, tmp_path / "run", progress=False)
    assert runner.evaluated(tmp_path / "run", suite) is not None
    monkeypatch.setattr(runner.expressions, "DEFAULT_SCORE", "pds")
    assert runner.evaluated(tmp_path / "run", suite) is None
