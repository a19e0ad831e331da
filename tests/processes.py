"""Train in one process and in two: the ensembles agree up to summation order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from dissensus.models.ensemble import Ensemble

MAIN = """
import sys
sys.path.insert(0, {root!r})
import torch
from lightning_fabric import Fabric
from tests.conftest import blobs, linear
from dissensus import fit

{script}

if __name__ == "__main__":
    processes, out, *methods = sys.argv[1:]
    fabric = Fabric(accelerator="cpu", devices=int(processes))
    fabric.launch()
    torch.set_num_threads(1)
    for method in methods:
        train(method, out + "/" + method, fabric)
"""


def one_and_two_processes(script: str, tmp_path: Path, methods: Sequence[str]) -> None:
    """Run a script that defines `train(method, out, fabric)` in one process and in two, and compare the ensembles."""
    file = tmp_path / "script.py"
    file.write_text(MAIN.format(root=str(Path(__file__).parents[1]), script=script))
    for processes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, str(file), processes, str(tmp_path / processes), *methods],
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    for method in methods:
        one, two = (Ensemble.load(tmp_path / processes / method / "ensemble") for processes in ("1", "2"))
        for name, value in one.stacked().items():
            torch.testing.assert_close(two.stacked()[name], value, rtol=1e-3, atol=1e-4)
