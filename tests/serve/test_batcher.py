"""The queue: who shares a pass, in which order, and who leaves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError

import pytest

from dissensus.serve.batcher import Batcher, Budget


class Passes:
    """A function of batches that notes them, and waits until it may begin."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.begun = threading.Event()

    def __call__(self, batch: Sequence[int]) -> list[int]:
        self.begun.set()
        assert self.go.wait(10)
        self.batches.append(list(batch))
        if 13 in batch:
            raise ValueError("13")
        return [10 * item for item in batch]


@pytest.fixture
def passes() -> Passes:
    return Passes()


def batcher(passes: Passes, prepare: Callable[[int], int] = int, wait: float = 0.0) -> Batcher[int, int, int]:
    return Batcher(prepare, passes, most=4, wait=wait, threads=1)


def occupy(queue: Batcher[int, int, int], passes: Passes, *items: int) -> list:
    """Submit items that become ready while a pass of item 0 runs."""
    first = queue.submit(0)
    assert passes.begun.wait(10)
    futures = [first, *map(queue.submit, items)]
    while queue._preparing:
        time.sleep(0.001)
    return futures


def test_items_that_are_ready_together_share_a_pass_in_order(passes):
    queue = batcher(passes)
    futures = occupy(queue, passes, 1, 2, 3, 4, 5)
    assert queue.waiting == 5
    passes.go.set()
    assert [future.result(10) for future in futures] == [0, 10, 20, 30, 40, 50]
    assert passes.batches == [[0], [1, 2, 3, 4], [5]]
    assert (queue.passes, queue.items, queue.waiting) == (3, 6, 0)


def test_cancelled_items_leave_the_queue(passes):
    prepared = []
    queue = batcher(passes, lambda item: prepared.append(item) or item)
    first, gone, last = occupy(queue, passes, 1, 2)
    assert gone.cancel()
    passes.go.set()
    assert last.result(10) == 20
    assert passes.batches == [[0], [2]]
    with pytest.raises(CancelledError):
        gone.result()
    assert not first.cancel()
    assert prepared == [0, 1, 2]


def test_items_cancelled_before_their_turn_are_not_prepared(passes):
    prepared, go = [], threading.Event()

    def prepare(item: int) -> int:
        assert go.wait(10)
        prepared.append(item)
        return item

    queue = batcher(passes, prepare)
    passes.go.set()
    first, gone = queue.submit(1), queue.submit(2)
    gone.cancel()
    go.set()
    assert first.result(10) == 10
    queue.close()
    assert prepared == [1]


def test_an_item_that_fails_does_not_spoil_the_others(passes):
    queue = batcher(passes)
    futures = occupy(queue, passes, 1, 13, 3)
    passes.go.set()
    assert [futures[i].result(10) for i in (0, 1, 3)] == [0, 10, 30]
    with pytest.raises(ValueError, match="13"):
        futures[2].result()
    assert queue.alive
    with pytest.raises(ZeroDivisionError):
        batcher(passes, lambda item: 1 // item).submit(0).result(10)


def test_a_lone_item_does_not_wait_and_one_in_preparation_is_awaited(passes):
    passes.go.set()
    started = time.monotonic()
    assert batcher(passes, wait=60).submit(1).result(10) == 10
    assert time.monotonic() - started < 10

    queue = Batcher(lambda item: time.sleep(0.05 * item) or item, passes, most=4, wait=10, threads=2)
    slow, fast = queue.submit(2), queue.submit(0)
    assert (fast.result(10), slow.result(10)) == (0, 20)
    assert passes.batches == [[1], [0, 2]]


def test_closing_finishes_what_was_submitted(passes):
    queue = batcher(passes)
    futures = occupy(queue, passes, *range(1, 7))
    passes.go.set()
    queue.close()
    assert [future.result(0) for future in futures] == [0, 10, 20, 30, 40, 50, 60]
    assert not queue.alive


def test_a_budget_is_never_exceeded_and_serves_in_order():
    budget, used, peak, order = Budget(10), 0, 0, []
    lock = threading.Lock()

    def work(part: int) -> None:
        nonlocal used, peak
        with budget.take(part):
            with lock:
                order.append(part)
                used += min(part, 10)
                peak = max(peak, used)
            time.sleep(0.01)
            with lock:
                used -= min(part, 10)

    threads = [threading.Thread(target=work, args=(part,)) for part in (6, 6, 4, 99, 3, 3)]
    for thread in threads:
        thread.start()
        time.sleep(0.002)
    for thread in threads:
        thread.join(10)
    assert peak <= 10
    assert order == [6, 6, 4, 99, 3, 3]  # 4 would have fitted beside the first
