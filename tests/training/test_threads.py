"""Small steps run in one thread, whatever the number of cores; large ones in as many as there are."""

import pytest
import torch

from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import TrainOptions
from dissensus.training.options import Task
from dissensus.training.threads import suited_threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("width", "classes", "main", "threads"),
    [(768, 50, "active", 1), (768, 1000, "active", 2), (1280, 70, "active", 1), (1280, 70, "all", 2)],
)
def test_threads_depend_on_the_work_of_a_step(width, classes, main, threads, two_threads):
    ensemble = Ensemble(tails.create("linear", width, classes), members=5)
    settings = TrainOptions(batch_size=256, main=main).resolve("sed-a2d", 5, Task(1000))
    with suited_threads(ensemble, (width,), settings, torch.device("cpu")):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2
    with suited_threads(ensemble, (width, 7, 7), settings, torch.device("cpu")):
        assert torch.get_num_threads() == 2
