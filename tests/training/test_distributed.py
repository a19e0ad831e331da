"""Two processes give the result of one, up to summation order."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch

from dissensus.cli import main
from dissensus.models.ensemble import Ensemble
from tests.conftest import blobs
from tests.processes import one_and_two_processes

SCRIPT = """
from dissensus.training import options, order
order.BLOCK_BYTES, order.WINDOW_BYTES, order.LANE_ROWS, options.FULL_BYTES = 5 * 24, 40 * 24, 10, 0
from dissensus.features import FeatureSet
from dissensus.functional import losses
from dissensus.training.methods import METHODS, Method

losses.REGULARISERS["own"] = losses.Regulariser(losses.a2d)
METHODS["sed-own"] = Method("A2D by autograd", "own", active=2)

def train(method, out, fabric):
    method, _, shuffle = method.partition("/")
    elsewhere = FeatureSet.from_arrays(torch.randn(50, 6, generator=torch.Generator().manual_seed(5)))
    # 121 samples in batches of 32: the last batch has 25, which two processes cannot share evenly
    ensemble = linear()
    fit(ensemble, blobs(121), method, epochs=4, batch_size=32, lr=0.05, out=out, fabric=fabric,
        shuffle=shuffle or "full", disagreement=elsewhere if method == "divdis" else None, progress=False,
        logger="tensorboard" if method == "sed-divdis" else None)
    assert ensemble.fitted
    assert ensemble.score_digests == fabric.broadcast(ensemble.score_digests), "every rank has the same scores"
"""


@pytest.mark.slow
def test_one_and_two_processes_agree(tmp_path):
    methods = ("sed-a2d", "sed-divdis", "sed-own", "divdis", "deep-ensemble", "deep-ensemble/blocks", "sed-a2d/blocks")
    one_and_two_processes(SCRIPT, tmp_path, methods)
    for processes in "12":  # the first process logs
        assert len(list((tmp_path / processes / "sed-divdis" / "tensorboard").glob("events.*"))) == 1


@pytest.mark.slow
def test_two_nodes_of_torchrun_train_one_ensemble(tmp_path):
    rows = blobs(121)
    np.savez(tmp_path / "features.npz", features=rows.rows(slice(None)).numpy(), labels=rows.labels.numpy())
    train = ["-m", "dissensus", "train", str(tmp_path / "features.npz"), "--epochs", "3", "--batch-size", "32"]
    train += ["--accelerator", "cpu", "--shuffle", "blocks", "--no-progress", "--out"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    node = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    node += ["--master-addr", "127.0.0.1", "--master-port", port, "--node-rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    nodes = [
        subprocess.Popen(
            [*node, rank, *train, str(tmp_path / "two"), "--num-nodes", "2"],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=400) for process in nodes]
    finally:
        for process in nodes:
            process.kill()
    assert [process.returncode for process in nodes] == [0, 0], outputs
    assert [out.strip() for out, _ in outputs] == [str(tmp_path / "two"), ""]  # the first process speaks
    assert main([*train[2:], str(tmp_path / "one")]) == 0
    one, two = (Ensemble.load(tmp_path / name / "ensemble") for name in ("one", "two"))
    for name, value in one.stacked().items():
        torch.testing.assert_close(two.stacked()[name], value, rtol=1e-4, atol=1e-5)
    assert list(one.fitted) == list(two.fitted)
