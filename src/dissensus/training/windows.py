"""WindowReader: batches in a `BlockOrder`. The next window is read while the current one is used."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from dissensus.features import FeatureSet
from dissensus.training.order import BlockOrder, Window


class Drawn(NamedTuple):
    """Rows of a batch. The first axis of `x` and `labels` is that of the copies, if copies were requested."""

    x: Tensor  # (..., b, *shape) float32, of this process
    labels: Tensor | None  # (..., b)
    rows: Tensor  # (..., b), of this process
    whole: Tensor  # (..., B), of the whole batch


class _Loaded(NamedTuple):
    """A window in memory: the lanes that this process needs."""

    window: Window
    x: Tensor  # (n, *shape), as stored
    labels: Tensor | None  # (n,)
    shift: Tensor  # (lanes,): what to add to the number of a row, to get its place in `x`
    permutations: Tensor  # (copies, rows of the window) int32


class WindowReader:
    """Reads a set of features in a `BlockOrder`; memory holds two windows.

    Args:
        features: Features to read. If they have several passes, epochs read them in turn.
        order: Order of the samples of a pass.
        batch_size: Rows per batch, which decides with `world` which rows this process needs.
        rank: This process has the positions rank, rank + world, ... of every batch.
        world: How many processes there are.
        last: The epoch and the position after the last one that will be requested; None: no end.
    """

    def __init__(
        self,
        features: FeatureSet,
        order: BlockOrder,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        last: tuple[int, int] | None = None,
    ) -> None:
        self.features, self.order, self.rank, self.world, self.last = features, order, rank, world, last
        shared = batch_size % world == 0 and order.lanes % world == 0
        self.lanes = range(rank, order.lanes, world) if shared else range(order.lanes)
        # two bytes per value are float16, which loses nothing; rows are float32 when read
        half = features.nbytes == 2 * len(features) * features.width
        self.dtype = torch.float16 if half else torch.float32
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dissensus-window")
        self._closed = threading.Event()
        self._current: tuple[tuple[int, int], _Loaded] | None = None
        self._next: tuple[tuple[int, int], Future[_Loaded]] | None = None

    def take(self, epoch: int, start: int, stop: int, copies: Tensor | None = None) -> Drawn:
        """Return the batch at positions start..stop - 1 of an epoch, in the orders of these copies.

        None: in the first order, without an axis of copies.
        """
        parts, at, chosen = [], start, torch.zeros(1, dtype=torch.int64) if copies is None else copies
        while at < stop:
            loaded = self._get(epoch, self.order.window_of(epoch, at))
            end = min(stop, loaded.window.stop)
            parts.append(self._part(loaded, chosen, at, end, start, epoch))
            at = end
        x, labels, rows, whole = (
            torch.cat(pieces, dim=1) if len(pieces) > 1 else pieces[0] for pieces in zip(*parts, strict=True)
        )
        known = labels if self.features.has_labels else None
        if copies is None:
            return Drawn(x[0], None if known is None else known[0], rows[0], whole[0])
        return Drawn(x, known, rows, whole)

    def close(self) -> None:
        """Stop the thread and release the windows."""
        self._closed.set()
        self._thread.shutdown(cancel_futures=True)
        self._current = self._next = None

    def _part(
        self, loaded: _Loaded, copies: Tensor, begin: int, end: int, start: int, epoch: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Positions begin..end - 1, which lie in one window, of a batch that begins at `start`."""
        window = loaded.window
        numbers = loaded.permutations[copies, begin - window.start : end - window.start].long()
        skip = (self.rank - (begin - start)) % self.world  # positions before this process has its first one
        mine = numbers[:, skip :: self.world]
        lanes = torch.arange(begin, end)[skip :: self.world] % self.order.lanes
        places = mine + loaded.shift[lanes]
        labels = torch.empty(0, 0) if loaded.labels is None else loaded.labels[places]
        # index_select, because x[places] gathers value by value
        x = loaded.x.index_select(0, places.flatten()).float().view(*places.shape, *loaded.x.shape[1:])
        whole = window.rows(numbers) + self._offset(epoch)
        return x, labels, whole[:, skip :: self.world], whole

    def _get(self, epoch: int, number: int) -> _Loaded:
        """Return a window, waiting for it if necessary, and start to read the next one."""
        key = (epoch, number)
        if self._current is not None and self._current[0] == key:
            return self._current[1]
        self._current = None
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] != key:
            ahead[1].cancel()  # not the next window after all
        loaded = (
            ahead[1].result()
            if ahead is not None and ahead[0] == key
            else self._thread.submit(self._load, epoch, number).result()
        )
        self._current = key, loaded
        following = (epoch, number + 1) if number + 1 < self.order.windows else (epoch + 1, 0)
        done = (epoch, loaded.window.stop) if following[0] == epoch else (epoch + 1, 0)
        if self.last is None or done < self.last:
            self._next = following, self._thread.submit(self._load, *following)
        return loaded

    def _load(self, epoch: int, number: int) -> _Loaded:
        window, features = self.order.window(epoch, number), self.features
        runs = sorted((window.runs[lane] for lane in self.lanes), key=lambda run: run.start)
        x = torch.empty(sum(map(len, runs)), *features.shape, dtype=self.dtype)
        labels = torch.empty(len(x), dtype=torch.int64) if features.has_labels else None
        filled, offset, shifts = 0, self._offset(epoch), dict[int, int]()
        ranges = [[range(rows.start + offset, rows.stop + offset) for rows in window.ranges(run)] for run in runs]
        features.expect([rows for parts in ranges for rows in parts])
        for run, parts in zip(runs, ranges, strict=True):
            shifts[run.start] = filled - run.start
            for rows in parts:
                if self._closed.is_set():
                    raise RuntimeError("the reader was closed")
                here, at = slice(filled, filled + len(rows)), slice(rows.start, rows.stop)
                x[here] = features.rows(at)
                if labels is not None:
                    labels[here] = features.labels_at(at)
                filled = here.stop
        shift = torch.tensor([shifts.get(run.start, 0) for run in window.runs])
        permutations = torch.stack([window.permutation(i) for i in range(self.order.copies)])
        return _Loaded(window, x, labels, shift, permutations)

    def _offset(self, epoch: int) -> int:
        """The first row of the pass that an epoch reads."""
        return epoch % self.features.passes * self.order.samples
