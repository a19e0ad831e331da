"""An ensemble on small sets of every role, evaluated."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from dissensus.evaluation._evaluate import evaluate
from dissensus.evaluation.suite import SuiteSet
from dissensus.features import FeatureSet
from dissensus.training._fit import fit
from tests.conftest import blobs, linear


@pytest.fixture(scope="package")
def ensemble():
    return fit(linear(), blobs(), "sed-a2d", epochs=10, lr=0.05, batch_size=32, progress=False)


@pytest.fixture(scope="package")
def sets():
    away = FeatureSet.from_arrays(4 * torch.randn(60, 6, generator=torch.Generator().manual_seed(3)))
    noisy = blobs(seed=1, noise=2.0)
    grouped = FeatureSet.from_arrays(noisy.rows(slice(None)), noisy.labels, groups=torch.arange(120) % 2)
    return [
        SuiteSet("id", "id", blobs(seed=2)),
        SuiteSet("noisy-1", "shift", blobs(seed=1, noise=1.5), family="noisy"),
        SuiteSet("noisy-5", "shift", noisy, family="noisy"),
        SuiteSet("away", "ood", away),
        SuiteSet("halves", "groups", grouped),
    ]


@pytest.fixture(scope="package")
def frame(ensemble, sets):
    about = {"method": "sed-a2d", "active": 2, "diversity": 0.5, "seed": 0}
    return evaluate(ensemble, sets, about=about, held_out=blobs(seed=4), progress=False)


def value(frame: pd.DataFrame, **where: str) -> float:
    (found,) = frame[(frame[list(where)] == list(where.values())).all(axis=1)]["value"]
    return float(found)
