"""Two processes give the result of one, up to summation order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dissensus.models.ensemble import Ensemble

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import torch
from lightning_fabric import Fabric
from tests.conftest import blobs, linear
from dissensus.features import FeatureSet
from dissensus import fit
from dissensus.functional import losses
from dissensus.training.methods import METHODS, Method

losses.REGULARISERS["own"] = losses.Regulariser(losses.a2d)
METHODS["sed-own"] = Method("A2D by autograd", "own", active=2)

if __name__ == "__main__":
    processes, out = int(sys.argv[1]), sys.argv[2]
    fabric = Fabric(accelerator="cpu", devices=processes)
    fabric.launch()
    torch.set_num_threads(1)
    for method in ("sed-a2d", "sed-divdis", "sed-own", "divdis", "deep-ensemble"):
        elsewhere = FeatureSet.from_arrays(torch.randn(50, 6, generator=torch.Generator().manual_seed(5)))
        # 121 samples in batches of 32: the last batch has 25, which two processes cannot share evenly
        ensemble = linear()
        fit(ensemble, blobs(121), method, epochs=4, batch_size=32, lr=0.05, out=out + "/" + method, fabric=fabric,
            disagreement=elsewhere if method == "divdis" else None, progress=False)
        assert ensemble.fitted
        assert ensemble.score_digests == fabric.broadcast(ensemble.score_digests), "every rank has the same scores"
"""


@pytest.mark.slow
def test_one_and_two_processes_agree(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[2])))
    for processes in (1, 2):
        done = subprocess.run(
            [sys.executable, str(script), str(processes), str(tmp_path / str(processes))],
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    for method in ("sed-a2d", "sed-divdis", "sed-own", "divdis", "deep-ensemble"):
        one, two = (Ensemble.load(tmp_path / str(processes) / method / "ensemble") for processes in (1, 2))
        for name, value in one.stacked().items():
            torch.testing.assert_close(two.stacked()[name], value, rtol=1e-3, atol=1e-4)
