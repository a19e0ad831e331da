"""An order in blocks visits every row once, depends on the seed only, and is the same however it is read."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.training import order
from dissensus.training.order import BlockOrder
from dissensus.training.windows import WindowReader

ROW = 8  # bytes


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 5 rows and windows of 40, in up to four lanes."""
    sizes(monkeypatch, 5, 40)


def sizes(monkeypatch, block: int, window: int, lane: int = 10) -> None:
    monkeypatch.setattr(order, "BLOCK_BYTES", block * ROW)
    monkeypatch.setattr(order, "WINDOW_BYTES", window * ROW)
    monkeypatch.setattr(order, "LANE_ROWS", lane)


@st.composite
def orders(draw):
    """Orders of sets of any size, in blocks and windows of any size."""
    with pytest.MonkeyPatch.context() as patch:
        block = draw(st.integers(1, 50))
        sizes(patch, block, block * draw(st.integers(1, 20)), draw(st.integers(1, 20)))
        return BlockOrder(draw(st.integers(1, 2000)), ROW, draw(st.integers(0, 9)), copies=draw(st.integers(1, 3)))


@settings(max_examples=60, deadline=None)
@given(orders(), st.integers(0, 5))
def test_an_epoch_visits_every_row_once(given_order, epoch):
    rows = given_order.rows(epoch, 0, given_order.samples)
    assert rows.shape == (given_order.copies, given_order.samples)
    assert torch.equal(rows.sort(1).values, torch.arange(given_order.samples).expand_as(rows))


@settings(max_examples=60, deadline=None)
@given(orders(), st.data())
def test_any_part_is_computed_alone(given_order, data):
    N = given_order.samples
    start = data.draw(st.integers(0, N - 1))
    stop = data.draw(st.integers(start, N))
    whole = given_order.rows(2, 0, N)
    assert torch.equal(given_order.rows(2, start, stop), whole[:, start:stop])


@settings(max_examples=60, deadline=None)
@given(orders())
def test_windows_follow_each_other_and_differ_by_a_block_at_most(given_order):
    windows = [given_order.window(1, number) for number in range(given_order.windows)]
    assert [window.start for window in windows] == [0, *(window.stop for window in windows[:-1])]
    assert windows[-1].stop == given_order.samples
    lengths = [len(window) for window in windows]
    assert max(lengths) - min(lengths) <= given_order.block_rows
    for window in windows:
        rows = window.rows(torch.arange(len(window)))
        assert torch.equal(rows, rows.sort().values)  # read in ascending order
        read = [row for run in [range(len(window))] for each in window.ranges(run) for row in each]
        assert read == rows.tolist()
        assert sorted(number for run in window.runs for number in run) == list(range(len(window)))


def test_seeds_epochs_and_copies_have_orders_of_their_own():
    def rows(seed=0, epoch=0, copies=2):
        return BlockOrder(500, ROW, seed, copies).rows(epoch, 0, 500)

    assert torch.equal(rows(), rows())
    assert torch.equal(rows(copies=3)[:2], rows())
    others = [rows()[0], rows()[1], rows(seed=1)[0], rows(epoch=1)[0]]
    for i, one in enumerate(others):
        for other in others[:i]:
            assert (one != other).float().mean() > 0.8  # a copy has its own order within lanes of 10 rows
    # copies share windows
    window = BlockOrder(500, ROW, 0).window(0, 0)
    assert set(rows()[0, : len(window)].tolist()) == set(rows()[1, : len(window)].tolist())


def test_a_window_has_a_block_of_every_part_of_the_set_and_mixes_its_rows():
    blocks = BlockOrder(4000, ROW, 0)
    window = blocks.window(0, 3)
    strata = window.first // (blocks.windows * blocks.block_rows)
    assert strata.tolist() == list(range(8))
    # which rows are in a batch together is random: those of the first batch over many epochs come from all blocks
    firsts = [BlockOrder(40, ROW, seed).rows(0, 0, 8)[0] // 5 for seed in range(200)]
    share = torch.bincount(torch.cat(firsts), minlength=8) / 1600
    assert (share - 1 / 8).abs().max() < 0.03
    together = [len(set(first.tolist())) for first in firsts]
    assert 4 < sum(together) / 200 < 8


def test_more_rows_than_int32_counts(monkeypatch):
    monkeypatch.undo()
    huge = BlockOrder(3 * 10**9, 1536, 0)
    rows = huge.rows(0, 2_999_999_000, 2_999_999_200)
    assert rows.dtype == torch.int64
    assert rows.min() >= 0
    assert rows.max() > 2**31
    assert rows.max() < 3 * 10**9
    assert rows.unique().numel() == 200
    assert len(huge.window(0, 0)) * 1536 <= order.WINDOW_BYTES


def features(count: int, passes: int = 1) -> FeatureSet:
    """Rows that hold their own number, in two columns of float32: ROW bytes."""
    x = torch.arange(count, dtype=torch.float32)[:, None].repeat(1, 2)
    return FeatureSet.from_arrays(x, torch.arange(count) % 3, provenance={"passes": passes})


@settings(max_examples=25, deadline=None)
@given(st.integers(60, 400), st.integers(1, 40), st.integers(1, 5), st.data())
def test_ranks_together_read_what_the_order_says(count, size, world, data):
    rows, start = features(count), data.draw(st.integers(0, count - 1))
    stop = min(count, start + size)
    expected = BlockOrder(count, ROW, 4).rows(1, start, stop)[0]
    parts = []
    for rank in range(world):
        reader = WindowReader(rows, BlockOrder(count, ROW, 4), stop - start, rank, world)
        # a batch begins at a multiple of its size: only then do lanes belong to ranks
        if start % (stop - start):
            reader.lanes = range(reader.order.lanes)
        drawn = reader.take(1, start, stop)
        reader.close()
        assert torch.equal(drawn.whole, expected)
        assert torch.equal(drawn.rows, expected[rank::world])
        assert torch.equal(drawn.x[:, 0].long(), drawn.rows)
        assert torch.equal(drawn.labels, drawn.rows % 3)
        parts.append(drawn.rows)
    assert sum(map(len, parts)) == stop - start


def test_reading_on_and_starting_anywhere_give_the_same_batches():
    rows = features(600, passes=2)
    members = torch.tensor([2, 0])

    def batches(first):
        reader = WindowReader(rows, BlockOrder(300, ROW, 0, 3), 16)
        drawn = []
        for step in range(first, 3 * 19):
            epoch, number = divmod(step, 19)
            drawn.append(reader.take(epoch, number * 16, min(300, number * 16 + 16), members))
        reader.close()
        return drawn

    whole = batches(0)
    assert whole[0].x.shape == (2, 16, 2)
    assert whole[18].x.shape == (2, 12, 2)
    for first in (1, 18, 19, 40):
        for one, other in zip(whole[first:], batches(first), strict=True):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.labels, other.labels)
    for epoch in range(3):  # epochs read the passes in turn
        seen = torch.cat([drawn.rows for drawn in whole[epoch * 19 : epoch * 19 + 19]], dim=1)
        assert torch.equal(seen.sort(1).values[0], torch.arange(300) + epoch % 2 * 300)


class Counting:
    """A set that counts the rows that are read, and by which thread."""

    def __init__(self, whole: FeatureSet) -> None:
        self.whole, self.read, self.threads = whole, 0, set()

    def __len__(self):
        return len(self.whole)

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def rows(self, index):
        self.threads.add(threading.current_thread().name)
        x = self.whole.rows(index)
        self.read += len(x)
        return x


def test_a_rank_reads_its_share_in_a_thread_and_nothing_beyond_the_last_batch():
    counts = []
    for world in (1, 2, 4, 3):
        rows = Counting(features(400))
        reader = WindowReader(rows, BlockOrder(400, ROW, 0), 12, 0, world, last=(0, 120))
        for start in range(0, 120, 12):
            reader.take(0, start, start + 12)
        reader.close()
        assert threading.current_thread().name not in rows.threads
        counts.append(rows.read)
    assert counts == [120, 60, 30, 120]  # three windows of 40; three ranks cannot share four lanes


def test_features_of_two_bytes_stay_as_they_are_in_memory(tmp_path):
    stored = FeatureSet.from_arrays(torch.randn(100, 4), torch.arange(100) % 2).save(tmp_path / "half")
    reader = WindowReader(stored, BlockOrder(100, ROW, 0), 10)
    drawn = reader.take(0, 30, 40)
    assert reader._current[1].x.dtype == torch.float16
    assert torch.equal(drawn.x, stored.rows(drawn.rows))
    reader.close()


def test_an_error_while_reading_ahead_is_raised():
    class Broken(Counting):
        def rows(self, index):
            if self.read >= 40:
                raise DataError("the shard is gone")
            return super().rows(index)

    reader = WindowReader(Broken(features(400)), BlockOrder(400, ROW, 0), 10)
    reader.take(0, 0, 40)
    with pytest.raises(DataError, match="the shard is gone"):
        reader.take(0, 40, 50)
    reader.close()
