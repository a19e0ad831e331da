"""Small labelled problems that train in a blink."""

from __future__ import annotations

import os
import signal

# Before NumPy and PyTorch are imported, and for the processes that tests start: the problems are tiny, a second thread
# costs more than it brings, and the threads of two workers of pytest-xdist would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

from dissensus.features import FeatureSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from tests.forks import Forks
from tests.hub_stub import Hub
from tests.storage import bucket, denied, memory, s3  # noqa: F401 - fixtures

torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def blobs(count: int = 120, width: int = 6, classes: int = 3, seed: int = 0, noise: float = 0.8) -> FeatureSet:
    """Gaussian clouds around one centre a class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % classes
    return FeatureSet.from_arrays(centres[labels] + noise * torch.randn(count, width, generator=generator), labels)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """The user's own cache is left alone; within a session features and exports are made once."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["DISSENSUS_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    """Commands in processes of their own."""
    if not hasattr(os, "fork"):
        pytest.skip("commands are forked from one process")
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture
def hub_stub(tmp_path, monkeypatch):
    """A hub on this machine, which huggingface_hub uses as if HF_ENDPOINT named it; "me" is logged in."""
    from huggingface_hub import constants

    stub = Hub(tmp_path / "hub")
    settings = {
        "ENDPOINT": stub.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": stub.url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "hub-cache"),
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),
        "HF_HUB_DISABLE_XET": True,  # another protocol for the same files
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "hf_me")
    yield stub
    stub.close()


@pytest.fixture
def train() -> FeatureSet:
    return blobs()


@pytest.fixture
def elsewhere() -> FeatureSet:
    generator = torch.Generator().manual_seed(5)
    return FeatureSet.from_arrays(3 * torch.randn(50, 6, generator=generator))


def linear(members: int = 4, seed: int = 0, width: int = 6, classes: int = 3, norm: str = "none") -> Ensemble:
    """On the blobs as they are: their lengths tell them apart in a few steps."""
    return Ensemble(tails.Linear(width, classes, norm), members=members, seed=seed)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 5 rows of the blobs and windows of 40, and every set to disagree on is large enough for them."""
    from dissensus.training import options, order

    monkeypatch.setattr(order, "BLOCK_BYTES", 5 * 24)
    monkeypatch.setattr(order, "WINDOW_BYTES", 40 * 24)
    monkeypatch.setattr(order, "LANE_ROWS", 10)
    monkeypatch.setattr(options, "FULL_BYTES", 0)
