"""The command `python -m benchmarks`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import CASES, run
from benchmarks.__main__ import main


def test_help_shows_flags_and_cases(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    assert all(flag in text for flag in ("--cases", "--repeats", "--json", "--out", "--quick"))
    assert all(f"  {name} " in text for name in CASES)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "flor"], "unknown case 'flor': did you mean 'floor'? known: "),
        (["--cases"], "argument --cases: expected at least one argument"),
        (["--repeats", "few"], "argument --repeats: invalid int value: 'few'"),
        (["--repeats", "0"], "repeats must be at least 1; got 0"),
        (["--case", "floor"], "unrecognized arguments: --case floor"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(arguments, message, capsys):
    try:
        code = main(arguments)
    except SystemExit as exit_:
        code = exit_.code
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith(f"benchmarks: error: {message}")
    assert captured.err.count("\n") == 1


def test_ctrl_c_is_one_line(monkeypatch, capsys):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_bench", interrupt)
    assert main(["--cases", "floor"]) == 130
    assert capsys.readouterr().err.split("\n") == ["", "benchmarks: interrupted", ""]


def test_all_flags(tmp_path, capfd):
    out = tmp_path / "bench.json"
    assert main(["--cases", "floor", "--repeats", "2", "--quick", "--json", "--out", str(out)]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads(out.read_text())
    assert printed["quick"] is True
    assert [(result["name"], result["repeats"]) for result in printed["results"]] == [("floor", 2)]


def test_help_does_not_load_pytorch():
    code = "import sys, benchmarks.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
