"""Two processes give the result of one, up to summation order."""

from __future__ import annotations

import pytest

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
        shuffle=shuffle or "full", disagreement=elsewhere if method == "divdis" else None, progress=False)
    assert ensemble.fitted
    assert ensemble.score_digests == fabric.broadcast(ensemble.score_digests), "every rank has the same scores"
"""


@pytest.mark.slow
def test_one_and_two_processes_agree(tmp_path):
    methods = ("sed-a2d", "sed-divdis", "sed-own", "divdis", "deep-ensemble", "deep-ensemble/blocks", "sed-a2d/blocks")
    one_and_two_processes(SCRIPT, tmp_path, methods)
