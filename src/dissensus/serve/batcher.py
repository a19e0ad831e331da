"""Batcher: items that arrive together are prepared in a few threads, and share one pass in another.

batcher = Batcher(prepare=decode, run=predict, most=32, wait=0.005, threads=2)
future = batcher.submit(upload)        # cancelled futures leave the queue
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Ready = TypeVar("Ready")
Result = TypeVar("Result")


class Batcher(Generic[Item, Ready, Result]):
    """A queue in front of a function of batches.

    A pass takes what is ready. It waits for more only while other items are being prepared, so that a lone one never
    waits. At most two batches are prepared ahead.

    Args:
        prepare: Turns an item into what `run` takes; called in one of `threads` threads.
        run: Turns what is ready into results, in order; called in one thread.
        most: Items per pass.
        wait: Seconds for which a pass waits for items that are being prepared.
        threads: How many items are prepared at a time.

    Attributes:
        passes, items: How many there were.
    """

    def __init__(
        self,
        prepare: Callable[[Item], Ready],
        run: Callable[[Sequence[Ready]], Sequence[Result]],
        *,
        most: int,
        wait: float,
        threads: int,
    ) -> None:
        self._prepare, self._run, self._most, self._wait = prepare, run, most, wait
        self._ready: Queue[tuple[Future[Result], Ready] | None] = Queue(2 * most)
        self._preparing, self._counting = 0, threading.Lock()
        self.passes = self.items = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prepare")
        self._worker = threading.Thread(target=self._work, name="pass", daemon=True)
        self._worker.start()

    def submit(self, item: Item) -> Future[Result]:
        """Return the future result of an item."""
        future: Future[Result] = Future()
        with self._counting:
            self._preparing += 1
        self._pool.submit(self._prepare_one, item, future)
        return future

    @property
    def waiting(self) -> int:
        """How many items are not yet in a pass."""
        return self._preparing + self._ready.qsize()

    @property
    def alive(self) -> bool:
        """Whether results can be expected."""
        return self._worker.is_alive()

    def close(self) -> None:
        """Finish what was submitted, and end the threads."""
        self._pool.shutdown()
        if self.alive:
            self._ready.put(None)
            self._worker.join()

    def _prepare_one(self, item: Item, future: Future[Result]) -> None:
        try:
            if not future.cancelled():
                self._ready.put((future, self._prepare(item)))
        except Exception as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
        finally:
            with self._counting:
                self._preparing -= 1

    def _work(self) -> None:
        while (first := self._ready.get()) is not None:
            self._pass([pair for pair in self._together(first) if pair[0].set_running_or_notify_cancel()])

    def _together(self, first: tuple[Future[Result], Ready]) -> list[tuple[Future[Result], Ready]]:
        """Return the first item and those that are ready with it."""
        batch, until = [first], time.monotonic() + self._wait
        while len(batch) < self._most:
            try:
                left = until - time.monotonic()
                pair = self._ready.get(timeout=left) if self._preparing and left > 0 else self._ready.get_nowait()
            except Empty:
                break
            if pair is None:  # the end, after this batch
                self._ready.put(None)
                break
            batch.append(pair)
        return batch

    def _pass(self, batch: Sequence[tuple[Future[Result], Ready]]) -> None:
        if not batch:
            return
        try:
            results = self._run([ready for _, ready in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][0].set_exception(error)
                return
            for pair in batch:  # so that one of them does not spoil the others
                self._pass([pair])
            return
        self.passes += 1
        self.items += len(batch)
        for (future, _), result in zip(batch, results, strict=True):
            future.set_result(result)


class Budget:
    """An amount of which several threads may use a part at a time, first come, first served."""

    def __init__(self, amount: int) -> None:
        self._free, self._amount = amount, amount
        self._turn, self._returned = threading.Lock(), threading.Condition()

    @contextmanager
    def take(self, part: int) -> Iterator[None]:
        """Wait until `part` of the amount is free, and use it; more than there is counts as all of it."""
        part = min(part, self._amount)
        with self._turn, self._returned:
            self._returned.wait_for(lambda: self._free >= part)
            self._free -= part
        try:
            yield
        finally:
            with self._returned:
                self._free += part
                self._returned.notify()
