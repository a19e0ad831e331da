"""The README's commands run in the order printed, on a folder of images made here; then its Python example."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import run
from tests.trees import classes

README = (Path(__file__).parent.parent / "README.md").read_text()


def commands() -> list[list[str]]:
    """The commands of the shell block that begins with `dissensus run`, without comments."""
    (block,) = re.findall(r"```sh\n(dissensus run .*?)```", README, flags=re.DOTALL)
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.mark.slow
def test_commands_and_example_run_as_printed(tmp_path, monkeypatch, capsys):
    photos = classes(tmp_path / "photos", count=35, side=40)  # a fifth is 21 images: 5% false alarms need 19
    monkeypatch.chdir(tmp_path)
    *finite, serving = commands()
    printed = {}
    for program, verb, *arguments in finite:
        assert program == "dissensus"
        code, printed[verb], messages = run(capsys, verb, *arguments)
        assert code == 0, messages
    assert [*printed, serving[1]] == ["run", "predict", "report", "export", "serve"]
    assert "sed-a2d" in printed["run"]
    rows = Path("verdicts.csv").read_text().splitlines()
    assert len(rows) == 1 + 105
    assert rows[0].startswith("path,label,class,confidence,score,p_value,verdict")
    assert {row.split(",")[6] for row in rows[1:]} <= {"nothing unusual", "out"}
    assert "sed-a2d" in Path("report.html").read_text()
    assert Path("photos.onnx").stat().st_size > 10**6
    assert verdict_of_server(serving, photos / "cat" / "0.png")["class"] == "cat"

    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("105 samples: ")


def verdict_of_server(command: list[str], image: Path) -> dict[str, object]:
    """Start the server on a free port, post one image to its API, and stop it with Ctrl-C."""
    import httpx

    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", "0"],
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
    )
    try:
        url = process.stdout.readline().strip()
        answer = httpx.post(f"{url}/api/predict", files={"files": image.read_bytes()}, timeout=60)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def test_it_fits_two_screens():
    assert len(README.splitlines()) <= 110
