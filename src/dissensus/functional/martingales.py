"""Conformal test martingales: is a stream still exchangeable with the calibration samples?

Each value of the stream is ranked among the calibration values and all values of the stream before it, ties broken at
random. While the stream is exchangeable with the calibration samples, these p-values are independent and uniform,
exactly and for any number of calibration samples (Vovk, Gammerman and Shafer 2005, theorem 8.2). P-values among the
calibration samples alone are not: they all share the error of one calibration set, which a long stream reveals.

A gambler bets on the p-values not being uniform. Its wealth begins at 1 and is a martingale while they are, so that it
ever reaches 1 / rate with probability at most `rate` (Ville's inequality), however long the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

CHUNK = 256  # values ranked at once
LIMITS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5)  # p-values that step bets tell apart
ODDS = (0.25, 0.5, 2.0, 4.0, 16.0, 64.0)  # by which a step bet changes the odds of a p-value below its limit
CELLS = 32  # of [0, 1], for bets on what was frequent recently
MEMORIES = (50.0, 400.0)  # p-values that these bets remember
STAKES = (0.3, 0.9)  # share of the wealth that they risk
PATIENCE = 1000.0  # p-values after which half of the reserve is left, about
LARGE = 1e100
GOLDEN = 0.6180339887498949  # its multiples modulo 1 are spread evenly


class Ranks:
    """Online p-values of values, one after another: how many before it are at least as large, ties broken at random.

    p_t = (#{i < t: s_i > s_t} + u_t (1 + #{i < t: s_i = s_t})) / t, over calibration and stream, u_t uniform.

    The state is the number of values at each edge and between edges. Values between the same two edges count as tied,
    which keeps the p-values uniform and independent if the edges are fixed, or calibration values of fixed rank.

    >>> ranks = Ranks.of(np.arange(9.0))
    >>> ranks.add(np.array([8.5, -1.0, 8.7]), np.array([0.5, 0.5, 0.5]))
    array([0.05      , 0.95454545, 0.08333333])
    """

    def __init__(self, edges: Array, counts: Counts) -> None:
        self.edges, self.counts = edges, counts  # (k,) ascending, distinct; (2k + 1,): below, at, between, ..., above

    @classmethod
    def of(cls, calibration: Array, edges: Array | None = None, most: int = 1000) -> Ranks:
        """Count calibration values (n,), at most `most` of which are edges if none are given."""
        if edges is None:
            ordered = np.sort(calibration)
            places = np.unique(np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(np.int64))
            edges = np.unique(ordered[places])
        empty = cls(edges, np.zeros(2 * len(edges) + 1, np.int64))
        return cls(edges, np.bincount(empty.cells(calibration), minlength=len(empty.counts)))

    def cells(self, values: Array) -> Counts:
        """The place of each value among edges and gaps: (n,) -> (n,), ascending."""
        return np.searchsorted(self.edges, values, "left") + np.searchsorted(self.edges, values, "right")

    def add(self, values: Array, uniform: Array) -> Array:
        """P-values of the next values, which are then counted; `uniform` breaks ties: (n,), (n,) -> (n,)."""
        cells = self.cells(values)
        parts = [self._add(cells[i : i + CHUNK], uniform[i : i + CHUNK]) for i in range(0, len(cells), CHUNK)]
        return np.concatenate(parts) if parts else np.empty(0)

    def _add(self, cells: Counts, uniform: Array) -> Array:
        before = int(self.counts.sum())
        above = before - np.cumsum(self.counts)
        larger, equal = above[cells], self.counts[cells]
        if len(cells) > 1:
            earlier = np.tri(len(cells), k=-1, dtype=bool)
            larger = larger + ((cells > cells[:, None]) & earlier).sum(1)
            equal = equal + ((cells == cells[:, None]) & earlier).sum(1)
        np.add.at(self.counts, cells, 1)
        p_values: Array = (larger + uniform * (equal + 1)) / (before + 1 + np.arange(len(cells)))
        return p_values


def step_bets(limits: Sequence[float] = LIMITS, odds: Sequence[float] = ODDS) -> tuple[Array, Array]:
    """Limit a and probability b of each step bet, which pays b / a if p <= a, else (1 - b) / (1 - a): (K,), (K,)."""
    a, ratio = (grid.ravel() for grid in np.meshgrid(np.array(limits), np.array(odds), indexing="ij"))
    return a, a * ratio / (a * ratio + 1 - a)


def reserve(samples: int) -> float:
    """Share of the wealth that is not yet invested in any bet after so many p-values: 1, then from 1/2 slowly to 0.

    Half bets on a stream that differs from its first sample on. The rest is invested bit by bit, for a stream that
    begins to drift later.
    """
    return 1.0 if samples == 0 else 0.5 / float(np.sqrt(1 + (samples - 1) / PATIENCE))


@dataclass
class Martingale:
    """The wealth of a gambler who bets on p-values, of one stream or of many at once.

    The wealth is split over step bets, which say that p-values below a limit become more or less frequent, and over
    adaptive bets, which say that p-values that were frequent recently are frequent again. More is invested over time
    from a reserve, as in the Sleeper/Stayer martingale (Vovk, Gammerman and Shafer 2022, algorithm 9.4): a bet that has
    lost everything before a drift wins with what is invested when it begins.

    >>> martingale = Martingale()
    >>> float(np.exp(max(float(martingale.add(np.array(0.001))) for _ in range(5)))) > 100
    True
    """

    streams: tuple[int, ...] = ()
    steps: tuple[Array, Array] = field(default_factory=step_bets)
    memories: Sequence[float] = MEMORIES
    reserve: Callable[[int], float] = reserve
    samples: int = 0

    def __post_init__(self) -> None:
        limits, probability = self.steps
        self.limits, place = np.unique(limits, return_inverse=True)
        below = np.arange(len(self.limits) + 1)[:, None] <= place  # p-values up to which limit, (limits + 1, K)
        self._pays = np.where(below, probability / limits, (1 - probability) / (1 - limits))
        adaptive = len(self.memories) * len(STAKES)
        count = self._pays.shape[1] + adaptive
        half = 0.5 if adaptive else 1.0
        self.shares = np.full(count, half / max(1, count - adaptive))
        self.shares[count - adaptive :] = (1 - half) / max(1, adaptive)
        self.wealth = np.zeros((*self.streams, count))  # of each bet, in units of exp(scale)
        self.scale = np.zeros(self.streams)
        self.recent = np.zeros((*self.streams, len(self.memories), CELLS))
        self._stakes = np.array(STAKES)
        self._keep = 1 - 1 / np.array(self.memories)[:, None]

    def add(self, p_values: Array) -> Array:
        """Bet on the next p-value of each stream: (*streams) -> log wealth (*streams)."""
        released = self.reserve(self.samples) - self.reserve(self.samples + 1)
        self.samples += 1
        unit = np.exp(-self.scale)
        self.wealth += (released * unit)[..., None] * self.shares
        self.wealth *= self._payoffs(p_values)
        total = self.wealth.sum(-1) + self.reserve(self.samples) * unit
        log_wealth: Array = np.log(total) + self.scale
        if (total > LARGE).any() or (total < 1 / LARGE).any():
            self.wealth /= total[..., None]
            self.scale = self.scale + np.log(total)
        return log_wealth

    def _payoffs(self, p_values: Array) -> Array:
        """What each bet pays per unit, at most 1 on average over uniform p-values: (*streams) -> (*streams, K)."""
        steps = self._pays[np.searchsorted(self.limits, p_values)]
        if not self.memories:
            return steps
        cell = np.minimum((p_values * CELLS).astype(np.int64), CELLS - 1)[..., None, None]
        density = CELLS * (self.recent + 1) / (self.recent.sum(-1, keepdims=True) + CELLS)
        pays = (density * (np.arange(CELLS) == cell)).sum(-1, keepdims=True)
        adaptive = 1 + self._stakes * (pays - 1)
        self.recent = self.recent * self._keep + (np.arange(CELLS) == cell)
        return np.concatenate([steps, adaptive.reshape(*self.streams, -1)], axis=-1)


class StreamTest:
    """Ranks of a stream and a martingale on them: values in, evidence against exchangeability out.

    Attributes:
        log_wealth: The logarithm of the martingale: P(it ever reaches log(1 / rate)) <= rate without a drift.
        since: The last sample at which the wealth was at most 1, about where a drift began.
    """

    def __init__(self, ranks: Ranks, martingale: Martingale, seed: int) -> None:
        self.ranks, self.martingale = ranks, martingale
        self.log_wealth, self.since = 0.0, 0
        self._bits = np.random.PCG64(seed)
        self._random = np.random.Generator(self._bits)

    def add(self, value: float) -> float:
        """Rank the next value and bet on its p-value, which is returned."""
        p_value = self.ranks.add(np.array([value]), self._random.random(1))
        self.log_wealth = float(self.martingale.add(p_value[0]))
        if self.log_wealth <= 0:
            self.since = self.martingale.samples
        return float(p_value[0])

    def resume(self, samples: int) -> None:
        """Continue after so many samples, whose state has been set: draw the random numbers that come next."""
        self.martingale.samples = samples
        self._bits.advance(samples)


def soonest(calibration: int, log_wealth: float, most: int = 1000) -> int | None:
    """Samples until step bets on a stream wholly above so many calibration values reach a wealth; None: over `most`."""
    martingale = Martingale(memories=())
    for t in range(1, most + 1):
        if martingale.add(np.array(t * GOLDEN % 1 * t / (calibration + t))) >= log_wealth:
            return t
    return None
