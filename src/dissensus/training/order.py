"""BlockOrder: a random order of rows that a disk can read in long sequential runs.

Rows are cut into blocks of consecutive rows. A window is a set of blocks that fits in memory; training goes from
window to window, and rows are shuffled within each:

    epoch   = windows, one after the other
    window  = one random block of every stratum, a stratum being as many neighbouring blocks as there are windows
    batch   = positions of the epoch, of which each takes a random row of the window

Strata matter where rows are sorted by class: every window has blocks from the whole range of rows. An epoch visits
every row once. The order depends on the seed, the epoch and the size of the set only, and any part of it is computed
directly, so a resumed run starts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from dissensus._core.random import mix

BLOCK_BYTES = 2**18  # of consecutive rows: what a solid-state disk reads at full speed
WINDOW_BYTES = 2**28  # of rows that are shuffled together; two windows are in memory
WINDOW_ROWS = 2**20  # at most, because every member may have its own permutation of them
# Position p takes a row of lane p % lanes, and a lane is a run of the window's rows. So a process that has every n-th
# position reads an n-th of the window, if n divides the number of lanes.
LANES, LANE_ROWS = 64, 64  # lanes at most, and rows per lane at least


@dataclass(frozen=True)
class Window:
    """Rows that are shuffled together. They are numbered in the order of reading: block after block, ascending.

    Attributes:
        start: The position in the epoch of its first row.
        first: (k,) the first row of each block, ascending.
        offsets: (k + 1,) the number of each block's first row, and the number of rows.
        lanes: How many runs of rows share the positions in turn.
        seed: Seed of the permutations.
    """

    start: int
    first: Tensor
    offsets: Tensor
    lanes: int
    seed: int

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @property
    def stop(self) -> int:
        """The position after its last row."""
        return self.start + len(self)

    @cached_property
    def runs(self) -> list[range]:
        """The numbers of the rows of each lane; which lane has which run is random."""
        runs, begin = [range(0)] * self.lanes, 0
        for lane in torch.randperm(self.lanes, generator=_generator(self.seed)).tolist():
            end = begin + len(range((lane - self.start) % self.lanes, len(self), self.lanes))
            runs[lane], begin = range(begin, end), end
        return runs

    def permutation(self, copy: int) -> Tensor:
        """For each of its positions, the number of the row that is there: (n,) int32, each once."""
        numbers, generator = torch.empty(len(self), dtype=torch.int32), _generator(mix(self.seed, copy))
        for lane, run in enumerate(self.runs):
            drawn = torch.randperm(len(run), generator=generator, dtype=torch.int32)
            numbers[(lane - self.start) % self.lanes :: self.lanes] = drawn + run.start
        return numbers

    def rows(self, numbers: Tensor) -> Tensor:
        """The rows of the set that have these numbers: (...) -> (...) int64."""
        numbers = numbers.long().contiguous()
        block = torch.searchsorted(self.offsets, numbers, right=True) - 1
        return self.first[block] + numbers - self.offsets[block]

    def ranges(self, run: range) -> list[range]:
        """The rows of a run of numbers, as ranges of consecutive rows."""
        ranges = []
        for first, start, stop in zip(
            self.first.tolist(), self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True
        ):
            low, high = max(run.start, start), min(run.stop, stop)
            if low < high:
                ranges.append(range(first + low - start, first + high - start))
        return ranges


class BlockOrder:
    """Orders of `samples` rows, one per epoch and copy. Copies share windows and differ within them.

    Args:
        samples: How many rows there are.
        row_bytes: Bytes of a row, which decide how many rows a block and a window have.
        seed: Seed of the orders.
        copies: How many orders there are per epoch.
    """

    def __init__(self, samples: int, row_bytes: int, seed: int, copies: int = 1) -> None:
        self.samples, self.seed, self.copies = samples, seed, copies
        self.block_rows = max(1, min(BLOCK_BYTES // row_bytes, WINDOW_ROWS))
        self.blocks = -(-samples // self.block_rows)
        most = max(1, min(WINDOW_BYTES // row_bytes, WINDOW_ROWS) // self.block_rows)
        self.windows = -(-self.blocks // most)
        rows = min(samples, self.block_rows * -(-self.blocks // self.windows))
        self.lanes = min(LANES, 2 ** max(0, (rows // LANE_ROWS).bit_length() - 1))
        self._plan = lru_cache(maxsize=2)(self._draw)

    def window(self, epoch: int, number: int) -> Window:
        """Return a window of an epoch."""
        blocks, starts = self._plan(epoch)
        mine = blocks[number][blocks[number] < self.blocks]
        first = mine * self.block_rows
        sizes = (self.samples - first).clamp(max=self.block_rows)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return Window(int(starts[number]), first, offsets, self.lanes, mix(self.seed, 7, epoch, number))

    def window_of(self, epoch: int, position: int) -> int:
        """Return the number of the window that holds a position of an epoch."""
        return int(torch.searchsorted(self._plan(epoch)[1], position, right=True)) - 1

    def rows(self, epoch: int, start: int, stop: int) -> Tensor:
        """Return the rows at positions start..stop - 1 of an epoch: (copies, n) int64."""
        parts = []
        while start < stop:
            window = self.window(epoch, self.window_of(epoch, start))
            at = slice(start - window.start, min(stop, window.stop) - window.start)
            parts.append(torch.stack([window.rows(window.permutation(i)[at]) for i in range(self.copies)]))
            start = window.stop
        return torch.cat(parts, dim=1) if parts else torch.empty(self.copies, 0, dtype=torch.int64)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor]:
        """The blocks of each window (windows, strata), and the positions where windows start (windows + 1,).

        The last stratum may be short: a window without a block of it has a number beyond the last block.
        """
        strata = -(-self.blocks // self.windows)
        generator = _generator(mix(self.seed, 6, epoch))
        turns = torch.rand(strata, self.windows, generator=generator, dtype=torch.float64).argsort(1)
        blocks = (turns + torch.arange(strata)[:, None] * self.windows).T.contiguous()
        sizes = (self.samples - blocks * self.block_rows).clamp(min=0, max=self.block_rows).sum(1)
        return blocks, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
