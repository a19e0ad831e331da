"""Train in one process and in two: the ensembles agree up to summation order."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from dissensus.models.ensemble import Ensemble

MAIN = """
import os, sys
sys.path.insert(0, {root!r})
import torch
from lightning_fabric import Fabric
from tests.conftest import blobs, linear
from dissensus import fit

{script}

if __name__ == "__main__":
    out, *methods = sys.argv[1:]
    for processes in (2,) if "LOCAL_RANK" in os.environ else (1, 2):  # Fabric starts this script again, for two
        fabric = Fabric(accelerator="cpu", devices=processes)
        fabric.launch()
        torch.set_num_threads(1)
        for method in methods:
            train(method, os.path.join(out, str(processes), method), fabric)
"""


def one_and_two_processes(script: str, tmp_path: Path, methods: Sequence[str]) -> None:
    """Run a script that defines `train(method, out, fabric)` in one process and in two, and compare the ensembles."""
    file = tmp_path / "script.py"
    file.write_text(MAIN.format(root=str(Path(__file__).parents[1]), script=script))
    command = [sys.executable, str(file), str(tmp_path), *methods]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    for method in methods:
        one, two = (Ensemble.load(tmp_path / processes / method / "ensemble") for processes in ("1", "2"))
        for name, value in one.stacked().items():
            torch.testing.assert_close(two.stacked()[name], value, rtol=1e-3, atol=1e-4)
