"""Training on a hundred million rows: nothing of that size is held in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.functional.arrays import to_numpy
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import checks, fit, options
from dissensus.training.step import Stepper
from tests.conftest import blobs, linear

ROWS, WIDTH, CLASSES = 10**8, 64, 10


class Generated:
    """A set whose rows are computed when they are read; half of each row tells its class."""

    passes, has_labels, shape, width = 1, True, (WIDTH,), WIDTH
    classes, provenance, images, fingerprint = tuple(map(str, range(CLASSES))), {}, None, "0" * 64

    def __init__(self, rows: int) -> None:
        self.count, self.nbytes, self.longest, self.expected = rows, 2 * rows * WIDTH, 0, 0

    def __len__(self) -> int:
        return self.count

    def verify(self, progress=False) -> None:
        """Generated rows do not change."""

    @property
    def labels(self) -> Tensor:
        pytest.fail("all labels were asked for")

    @property
    def class_counts(self) -> Tensor:
        return torch.full((CLASSES,), self.count // CLASSES)

    def labels_at(self, rows: slice | Tensor) -> Tensor:
        return self._numbers(rows) % CLASSES

    def rows(self, rows: slice | Tensor) -> Tensor:
        numbers = self._numbers(rows)
        self.longest = max(self.longest, numbers.numel())
        noise = ((numbers[..., None] * 7919 + torch.arange(WIDTH) * 31) % 1009) / 1009
        return noise + (torch.arange(WIDTH) % CLASSES == numbers[..., None] % CLASSES)

    def expect(self, ranges: Sequence[range]) -> None:
        self.expected += sum(map(len, ranges))

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        for start in range(0, self.count, batch_size):
            at = slice(start, min(start + batch_size, self.count))
            yield self.rows(at), at

    def _numbers(self, rows: slice | Tensor) -> Tensor:
        if isinstance(rows, slice):
            return torch.arange(*rows.indices(self.count))
        return torch.from_numpy(to_numpy(rows)).long()


class Enough(Exception):  # noqa: N818
    """What ends the training early."""


def largest_tensor(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the largest number of elements that permutations, ranges and empty tensors are made with."""
    largest = [0]
    for name in ("randperm", "arange", "empty", "zeros", "ones", "rand", "randint"):
        make = getattr(torch, name)

        def recorded(*args, make=make, **keywords):
            value = make(*args, **keywords)
            largest[0] = max(largest[0], value.numel())
            return value

        monkeypatch.setattr(torch, name, recorded)
    return largest


@pytest.mark.parametrize("method", ["sed-a2d", "deep-ensemble"])
def test_steps_on_a_hundred_million_rows_hold_two_windows(method, monkeypatch):
    from dissensus.training import order

    monkeypatch.setattr(order, "WINDOW_BYTES", 2**22)  # 32,768 rows
    monkeypatch.setattr(order, "BLOCK_BYTES", 2**17)
    train, losses = Generated(ROWS), []
    ensemble = Ensemble(tails.create("linear", WIDTH, CLASSES), members=3)
    original = Stepper.__call__

    def counted(self, *args):
        if len(losses) == 200:  # beyond the first window
            raise Enough
        statistics = original(self, *args)
        losses.append(float(statistics[1]))
        return statistics

    monkeypatch.setattr(Stepper, "__call__", counted)
    largest = largest_tensor(monkeypatch)
    tracemalloc.start()
    try:
        with pytest.raises(Enough):
            fit(ensemble, train, method, epochs=1, batch_size=256, progress=False)
        python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert largest[0] <= 4 * 2**22 // 2  # a window of float16, in elements; a hundred million it is not
    assert train.expected >= 200 * 256  # announced before they are read
    assert train.longest <= 2**17 // (2 * WIDTH)  # read block by block
    assert python < 50e6
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])  # it learns


def test_the_size_decides_how_to_shuffle(tmp_path, monkeypatch):
    from dissensus.training.run import Run

    fit(linear(), blobs(), epochs=1, out=tmp_path / "small", progress=False)
    monkeypatch.setattr(options, "FULL_BYTES", blobs().nbytes - 1)
    fit(linear(), blobs(), epochs=1, out=tmp_path / "large", progress=False)
    fit(linear(), blobs(), epochs=1, out=tmp_path / "chosen", shuffle="full", progress=False)
    found = {name: Run.open(tmp_path / name).settings["shuffle"] for name in ("small", "large", "chosen")}
    assert found == {"small": "full", "large": "blocks", "chosen": "full"}


def test_parts_of_huge_sets_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(checks, "LISTED", 100)
    with pytest.raises(DataError, match=r"early_stop holds samples out of at most 100 samples; got 120: leave it out"):
        fit(linear(), blobs(), early_stop=0.1, progress=False)
    with pytest.raises(DataError, match=r"two-stage divides the training set of at most 100 samples; got 120: use sed"):
        fit(linear(), blobs(), "two-stage", confidence=0.9, progress=False)
    with pytest.raises(DataError, match="samples of weight zero are left out of at most 100 samples; got 120: train"):
        fit(linear(), blobs(), sample_weight=torch.arange(120), progress=False)


def test_weights_and_passes_go_with_blocks(monkeypatch):
    from tests.conftest import small_blocks

    small_blocks(monkeypatch)
    rows, labels = blobs().rows(slice(None)), blobs().labels
    twice = FeatureSet.from_arrays(torch.cat([rows, rows + 0.1]), labels.repeat(2), provenance={"passes": 2})
    quick = {"epochs": 4, "batch_size": 16, "lr": 0.05, "shuffle": "blocks", "progress": False}
    plain = fit(linear(), twice, "sed-a2d", **quick)
    equal = fit(linear(), twice, "sed-a2d", sample_weight=torch.full((120,), 2.0), **quick)
    heavy = fit(linear(), twice, "sed-a2d", sample_weight=1 + torch.arange(120) % 3, **quick)
    assert plain.fingerprint == equal.fingerprint
    assert plain.fingerprint != heavy.fingerprint
