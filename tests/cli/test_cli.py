"""The command line as a user meets it: results on stdout, one line and exit code 2 for a mistake."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from dissensus import __version__, suites
from dissensus.cli import COMMANDS, main, parser
from dissensus.cli.lists import LISTS
from dissensus.training import Run
from dissensus.training.options import TUNABLE
from tests.commands import refuse, run
from tests.conftest import blobs
from tests.damage import sealed
from tests.trees import image

QUICK = ["--epochs", "2", "--batch_size", "64", "--no-progress"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "mine"
    assert main(["train", "digits", "--out", str(out), *QUICK]) == 0
    return out


def test_train_prints_the_run_folder_and_evaluate_a_table(trained, capsys):
    code, out, err = run(capsys, "evaluate", trained, "--suite", "digits", "--no-progress")
    assert code == 0
    assert "AUROC combined" in out
    assert "sed-a2d" in out
    assert err == ""


@pytest.mark.parametrize("kind", ["csv", "json", "md", "tex"])
def test_evaluate_prints_the_same_table_in_other_formats(kind, trained, capsys):
    code, out, _ = run(capsys, "evaluate", trained, "--suite", "digits", "--format", kind)
    assert code == 0
    starts = {"csv": "method,accuracy id", "json": "[", "md": "| method", "tex": r"\begin{tabular}"}
    assert out.startswith(starts[kind])
    assert "AUROC combined" in out
    assert out.partition("\n\n")[0].count("sed-a2d") == 1  # a note may follow


def test_evaluate_compares_any_runs_by_folder_where_nothing_else_differs(trained, tmp_path, capsys):
    copy = shutil.copytree(trained, tmp_path / "copy")
    command = ["--suite", "digits", "--no-progress", "--no-keep", "--format", "md"]
    _, out, _ = run(capsys, "evaluate", trained, copy, trained, *command)
    rows = [line.split("|")[1].strip() for line in out.splitlines()[2:] if line.startswith("|")]
    assert rows == [f"sed-a2d ({trained})", f"sed-a2d ({copy})", "single + max softmax", "single + knn"]
    assert main(["train", "digits", "--out", str(tmp_path / "seed"), "--seed", "1", *QUICK]) == 0
    assert main(["train", "digits", "--out", str(tmp_path / "lr"), "--lr", "0.01", *QUICK]) == 0
    capsys.readouterr()
    _, out, _ = run(capsys, "evaluate", trained, tmp_path / "seed", tmp_path / "lr", *command)
    rows = [line.split("|")[1].strip() for line in out.splitlines()[2:] if line.startswith("|")]
    assert len(rows) == 2 + 2  # with the baselines
    assert all(row.startswith("sed-a2d lr=") for row in rows[:2])
    assert " ± " in out.splitlines()[2]


def test_evaluate_compares_runs_of_different_backbones_each_through_its_own(trained, tmp_path, capsys):
    suites.load("digits", backbone="pixels").train.save(tmp_path / "pixels")
    assert main(["train", str(tmp_path / "pixels"), "--out", str(tmp_path / "run"), *QUICK]) == 0
    capsys.readouterr()
    flags = ["--suite", "digits", "--no-progress", "--no-keep", "--format", "csv"]
    _, out, _ = run(capsys, "evaluate", trained, tmp_path / "run", *flags)
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == [
        "sed-a2d backbone=test_vit-1-32",
        "sed-a2d backbone=none",
        "single + max softmax",
        "single + knn",
    ]


def test_evaluate_on_named_feature_sets_and_to_a_file(trained, tmp_path, capsys):
    suite = suites.load("digits")
    sets = {s.name: s.features for s in suite.sets}
    sets["id"].save(tmp_path / "id")
    np.savez(tmp_path / "photos.npz", features=sets["photos"].rows(slice(None)).numpy())
    code, out, err = run(
        capsys, "evaluate", trained, "--id", tmp_path / "id", "--ood", f"photos={tmp_path / 'photos.npz'}",
        "--out", tmp_path / "numbers.csv", "--score", "bma",
    )  # fmt: skip
    assert code == 0
    assert "AUROC bma" in out
    assert "photos" in out
    assert (tmp_path / "numbers.csv").read_text().startswith("method,")
    assert "wrote" in err


def test_train_from_npz_and_config_with_flags_on_top(tmp_path, capsys):
    features = blobs()
    np.savez(tmp_path / "x.npz", features=features.rows(slice(None)).numpy(), labels=features.labels.numpy())
    (tmp_path / "c.yaml").write_text("method: deep-ensemble\nmembers: 3\nepochs: 2\nlr: 0.5\n")
    code, out, _ = run(
        capsys, "train", "--config", tmp_path / "c.yaml", "--lr", "0.01", tmp_path / "x.npz", "--out", tmp_path / "run"
    )
    assert code == 0
    assert out.strip() == str(tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert (settings["method"], settings["members"], settings["lr"]) == ("deep-ensemble", 3, 0.01)


def test_flags_are_written_with_hyphens_or_underscores(tmp_path, capsys):
    code, out, _ = run(capsys, "train", "digits", "--out", tmp_path / "run", "--batch-size=128", "--epochs", "1")
    assert code == 0
    assert out.strip() == str(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["batch_size"] == 128


@pytest.mark.parametrize("what", [name for name in LISTS if name not in ("backbones", "corruptions")])
def test_list(what, capsys):
    code, out, _ = run(capsys, "list", what)
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    known = {
        "methods": "sed-a2d",
        "scores": "pds",
        "aggregates": "vote",
        "suites": "digits",
        "tails": "mlp",
        "views": "jigsaw",
        "norms": "layer",
    }
    assert what not in known or known[what] in names
    assert all(len(line.split()) > 3 for line in out.splitlines()), "every name is explained"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digitz", "--out", "{}/run"], "did you mean 'digits'"),
        (["train", "{}/nowhere", "--out", "{}/run"], "nowhere is not: check the path"),
        (["train", "digits", "--out", "{}/run", "--method", "sed-a2dd"], "unknown method 'sed-a2dd': did you mean"),
        (["train", "digits", "--out", "{}/run", "--tail", "lin"], "unknown tail 'lin': did you mean 'linear'"),
        (["train", "digits", "--out", "{}/run", "--active", "9"], "active=9 with members=5"),
        (["train", "digits", "--out", "{}/run", "--active", "1"], "nobody to disagree with"),
        (["train", "digits", "--out", "{}/run", "--epochs", "many"], "--epochs must be a whole number; got 'many'"),
        (["train", "digits", "--out", "{}/run", "--epoch", "3"], "did you mean '--epochs'?"),
        (
            ["train", "digits", "--out", "{}/run", "--precision", "8"],
            "unknown --precision '8': known: 32-true",
        ),
        (["train", "digits", "--out", "{}/run", "--devices", "0"], "devices must be at least 1; got 0"),
        (["train", "digits", "--out", "{}/run", "--members", "0"], "at least one member"),
        (["train", "digits", "--out", "{}/run", "--accelerator", "tpu"], "cannot run on accelerator=tpu"),
        (["train", "digits", "--out", "{}/run", "--members", "100000000000"], "too little memory"),
        (["train", "digits", "--out", "{}/" + "a" * 300], "File name too long"),
        (["train", "digits", "--out", ""], "must name something"),
        (["train", "digits"], "required, but not given: --out"),
        (["train", "digits", "--out", "{}/file/run"], "the output must be a folder; {}/file is a file: choose another"),
        (["train", "{}/photos", "--out", "{}/run"], "{}/photos is a folder of images: extract them first with diss"),
        (["train", "digits", "--out", "{}/run", "--lr", "nan"], "lr must be finite and above 0; got nan"),
        (["train", "digits", "--out", "{}/run", "--lr", "-inf"], "lr must be finite and above 0; got -inf"),
        (["train", "digits", "--out", "{}/run", "--foo"], "unknown argument '--foo': see: dissensus train --help"),
        (["tune", "digits", "--out", "{}/file"], "the output must be a folder; {}/file is a file: choose another"),
        (["tune", "digits", "--out", "{}/file/run"], "the output must be a folder; {}/file is a file: choose another"),
        (["tune", "{}/photos", "--out", "{}/run"], "first with dissensus extract {}/photos --out FEATURES"),
        (["tune", "digits", "--out", "{}/run", "--budget", "-5m"], "--budget must be a positive time such as 90s"),
        (["demo", "--out", "{}/file"], "the output must be a folder; {}/file is a file: choose another"),
        (["study", "all", "--suite", "digits", "--out", "{}/file"], "the output must be a folder; {}/file is a file"),
        (["suite", "photos"], "unknown action 'photos': known: check"),
        (["evaluate", "{}/nowhere", "--suite", "digits"], "no such folder; train one with"),
        (["evaluate", "{}", "--suite", "digits"], "is not a run"),
        (["list", "score"], "unknown list 'score': did you mean 'scores'"),
        (["trian"], "unknown command 'trian': did you mean 'train'?"),
        (["--loud"], "a command is required"),
        ([], "a command is required, such as: dissensus demo"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(arguments, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    image(tmp_path / "photos" / "cat" / "1.png")
    line = refuse(capsys, *[argument.format(*[tmp_path] * 2) for argument in arguments])
    assert message.format(tmp_path) in line
    assert not (tmp_path / "run").exists()


def test_evaluate_misuse(trained, tmp_path, capsys):
    assert "either --suite NAME or --id FEATURES; got neither" in refuse(capsys, "evaluate", trained)
    both = refuse(capsys, "evaluate", trained, "--suite", "digits", "--ood", "a=b")
    assert "a suite has its own sets; got --suite with --ood" in both
    assert "did you mean 'bma'" in refuse(capsys, "evaluate", trained, "--suite", "digits", "--score", "bmaa")
    assert "did you mean 'soup'" in refuse(capsys, "evaluate", trained, "--suite", "digits", "--aggregate", "soop")
    assert "must end in .csv" in refuse(capsys, "evaluate", trained, "--suite", "digits", "--out", tmp_path / "x.doc")
    assert "features of width 64" in refuse(capsys, "evaluate", trained, "--suite", "dominoes")
    assert "--ood takes NAME=FEATURES; got 'x'" in refuse(capsys, "evaluate", trained, "--id", "digits", "--ood", "x")
    (tmp_path / "half").mkdir()
    info = json.loads((trained / "run.json").read_text()) | {"status": "running"}
    (tmp_path / "half" / "run.json").write_text(sealed(info))
    assert "is not finished" in refuse(capsys, "evaluate", tmp_path / "half", "--suite", "digits")


def test_a_config_takes_dashes_and_underscores_and_arguments_of_every_kind(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", features=blobs().rows(slice(None)).numpy(), labels=blobs().labels.numpy())
    (tmp_path / "c.yaml").write_text(
        f"features: {tmp_path / 'x.npz'}\nout: {tmp_path / 'run'}\nlabel-smoothing: 0.1\nbatch_size: 64\nlr: 1e-2\n"
        "epochs: 1\nprogress: false\nclip: null\n"
    )
    code, out, _ = run(capsys, "train", f"--config={tmp_path / 'c.yaml'}", "--batch_size", "32")
    assert (code, out.strip()) == (0, str(tmp_path / "run"))
    settings = Run.open(tmp_path / "run").settings
    assert (settings["label_smoothing"], settings["batch_size"], settings["lr"]) == (0.1, 32, 0.01)
    (tmp_path / "r.yaml").write_text("paths: [a, b]\nscore: bma\n")
    name, arguments, _ = parser.parse(["report", "--config", str(tmp_path / "r.yaml")])
    assert (name, arguments["paths"], arguments["score"]) == ("report", ["a", "b"], "bma")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch: 3", "unknown option in {} 'epoch': did you mean 'epochs'"),
        ("epochs: many", "epochs in {}: must be a whole number; got 'many'"),
        ("epochs: [1, 2]", "epochs in {}: must be one value; got [1, 2]"),
        ("lr: {a: 1}", "lr in {}: must be one value; got {'a': 1}"),
        ("resume: 3", "resume in {}: must be true or false; got 3"),
        ("init: fast", "init in {}: unknown --init 'fast': known: pretrained, random"),
        ("- 1", "--config must map options to values; {} holds [1]"),
        ("", "--config must map options to values; {} holds None"),
        ("a: [", "{} must be YAML; it is not (line 1: expected the node content"),
        ("a: 2024-13-45", "{} must be YAML; it is not (month must be in 1..12"),
    ],
)
def test_a_wrong_config_is_one_line(text, message, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    line = refuse(capsys, "train", "digits", "--out", tmp_path / "run", "--config", path)
    assert message.replace("{}", str(path)) in line
    assert not (tmp_path / "run").exists()


def test_a_config_that_is_missing_is_one_line(tmp_path, capsys):
    line = refuse(capsys, "train", "digits", "--out", tmp_path / "run", "--config", tmp_path / "no.yaml")
    assert "cannot be read: No such file" in line
    assert "--config needs a value" in refuse(capsys, "train", "digits", "--out", tmp_path / "run", "--config")


def test_a_config_that_is_not_text_is_refused(tmp_path, capsys):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    assert "must be YAML in UTF-8; it is not (invalid start byte): save it as UTF-8" in refuse(
        capsys, "train", "digits", "--out", tmp_path / "run", "--config", tmp_path / "c.yaml"
    )


def test_bad_npz_files_are_named(tmp_path, capsys):
    (tmp_path / "text.npz").write_text("no arrays here")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    np.savez(tmp_path / "nan.npz", features=np.full((4, 2), np.nan), labels=np.array([0, 1, 0, 1]))
    np.savez(tmp_path / "short.npz", features=np.ones((4, 2)), labels=np.array([0, 1, 0]))
    np.savez(tmp_path / "one.npz", features=np.ones((4, 2)), labels=np.zeros(4, dtype=int))
    np.savez(tmp_path / "empty.npz", features=np.ones((0, 2)), labels=np.zeros(0, dtype=int))
    np.savez(tmp_path / "negative.npz", features=np.ones((3, 2)), labels=np.array([0, -1, 2]))
    whole = (tmp_path / "one.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "plain.npy", np.ones((3, 2)))
    (tmp_path / "plain.npy").rename(tmp_path / "plain.npz")
    expected = {
        "cut": "cannot be read as .npz",
        "plain": "cannot be read as .npz",
        "missing": "there is no file",
        "text": "cannot be read as .npz",
        "other": "must hold `features`",
        "nan": "4 of 4 rows hold NaN or inf, the first is row 0",
        "short": "labels must be (4,), one per row; got (3,)",
        "one": "at least two classes; all 4 samples are of class 0",
        "empty": "at least one row",
        "negative": "row 1 has -1",
    }
    for name, message in expected.items():
        assert message in refuse(capsys, "train", tmp_path / f"{name}.npz", "--out", tmp_path / "run"), name
        assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.name != "posix", reason="pipes are reported otherwise")
def test_output_that_nobody_reads_any_more_is_dropped(capsys):
    ours, theirs = os.pipe()
    os.close(ours)
    before = signal.getsignal(signal.SIGPIPE)
    try:
        command = [sys.executable, "-m", "dissensus", "list", "methods"]
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(theirs)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
    run(capsys, "list", "methods")
    assert signal.getsignal(signal.SIGPIPE) == before, "a closed connection must not kill the process"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(name, capsys):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert re.search(rf"^Example: (.* \| )?dissensus {name} ", out, re.MULTILINE)
    lines = out.splitlines()
    bare = [i for i, line in enumerate(lines) if re.match(r"  --\S+( \S+)*$", line)]
    assert all(lines[i + 1].startswith(" " * 20) for i in bare), "every flag is explained"
    flags = re.findall(r"--[\w-]+", out)
    assert flags
    assert not [flag for flag in flags if "_" in flag], "flags are shown with dashes"


def test_help_groups_flags_and_shows_defaults(capsys):
    _, out, _ = run(capsys, "train", "--help")
    headings = [line for line in out.splitlines() if re.fullmatch(r"[a-z ]+:", line)]
    assert headings == ["positional arguments:", "options:", "training:", "output:", "devices:"]
    text = " ".join(out.split())
    assert "--label-smoothing X share of the label that is spread over all classes (default: 0.0)" in text
    assert "--lr X peak learning rate; by default 0.12 / features^(2/3) for linear tails" in text
    assert "--resume, --no-resume continue the run that the folder holds, if it is the same (default: yes)" in text
    assert "by default as many as every member needs for --member-epochs" in text


def test_every_training_option_is_a_flag_everywhere(capsys):
    for name in ("train", "run", "study"):
        _, out, _ = run(capsys, name, "--help")
        assert all(f"--{option.replace('_', '-')} " in out for option in TUNABLE), name


def test_list_says_what_can_be_listed(capsys):
    _, out, _ = run(capsys, "list", "--help")
    assert all(name in out for name in LISTS)


def test_version_and_completion(capsys):
    code, out, err = run(capsys, "--version")
    first, *parts = out.splitlines()
    assert (code, first, err) == (0, f"dissensus {__version__}", "")
    versions = dict(line.split(maxsplit=1) for line in parts)
    assert versions["numpy"] == np.__version__
    assert versions["python"] == platform.python_version()
    assert "onnx" in versions["extras"]
    code, out, _ = run(capsys, "--print-completion", "bash")
    assert code == 0
    assert "dissensus" in out
    assert "evaluate" in out
    assert "--label-smoothing" in out
    assert "unknown shell 'bush': did you mean 'bash'" in refuse(capsys, "--print-completion", "bush")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "--help"], ["run", "--help"], ["list", "methods"], ["trian"]]
)
def test_what_needs_no_pytorch_does_not_load_it(arguments):
    code = (
        "import sys; from dissensus.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False False"


def test_python_m_dissensus():
    done = subprocess.run(
        [sys.executable, "-m", "dissensus", "list", "methods"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("single ")
    wrong = subprocess.run([sys.executable, "-m", "dissensus", "trian"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("dissensus: error: unknown command 'trian': did you mean 'train'?")
