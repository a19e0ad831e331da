"""Sums over training features, and a sample of them: what fitted scores are computed from.

They are added up batch by batch, in one process or in several that each read a part of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dissensus._core.errors import DataError

PERMUTED = 2**24  # rows of which a sample is drawn by a permutation of all
LENGTHS = 2**22  # that are held before they are summed up: 32 MB


class Lengths(NamedTuple):
    """Of the n training features that are not zero: log |x|, and how it varies with the direction u."""

    n: int
    mean: float
    deviation: float
    directions: Tensor  # (D,), sum of u
    products: Tensor  # (D,), sum of u log |x|


class Moments(NamedTuple):
    """Sums over L2-normalised training features, in float64, and over the logarithms of their lengths."""

    counts: Tensor  # (C,) samples per class
    sums: Tensor  # (C, D)
    products: Tensor  # (D, D), sum of u u^T
    lengths: Lengths


@dataclass(frozen=True)
class Sample:
    """Rows of the training set: all of them, or a random part of a set that is too large to keep."""

    features: Tensor  # (n, D), as stored: float16 where that loses nothing
    index: Tensor  # (n,) their rows in the training set, ascending
    labels: Tensor  # (n,)
    peaks: Tensor  # (p,) largest mean logit of the `peak_rows`; empty without logits
    peak_rows: Tensor  # (p,) positions in `features`, ascending


class Exchange(Protocol):
    """How processes that each read a part of the rows put their sums together. All of them call it alike."""

    def agree(self, failure: Exception | None) -> None:
        """Raise in all processes if one of them failed."""
        ...

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over processes of tensors of the same shape."""
        ...

    def gather(self, value: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, in order; their first dimensions and dtypes may differ."""
        ...


class Summary:
    """Adds up `Moments` and collects a `Sample`.

    Args:
        rows: How many rows there are, over all processes.
        classes: How many classes there are.
        D: The width of the features.
        keep: How many rows the sample holds.
        part: How many rows will be added here.
        peaks: Of how many rows of the sample the logits are computed.
    """

    def __init__(self, rows: int, classes: int, D: int, keep: int, part: int, peaks: int) -> None:
        self.index = draw(rows, keep)
        self.peak_rows = draw(len(self.index), peaks)
        self.counts = torch.zeros(classes, dtype=torch.int64)
        self.sums = torch.zeros(classes, D, dtype=torch.float64)
        self.products = torch.zeros(D, D, dtype=torch.float64)
        self.crossed, self.directions = torch.zeros(2, D, dtype=torch.float64)
        self.spread, self.part = _Spread(), part
        self.bank = _Bank(len(self.index) if part == rows else 0, D)
        self.labels, self.peaks = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]

    def add(
        self, x: Tensor, u: Tensor, logs: Tensor, labels: Tensor, at: slice, peaks: Callable[[Tensor], Tensor]
    ) -> None:
        """Add the rows `at`: features (b, D), their directions and log lengths in float64, and their labels.

        `peaks` maps rows, counted within the batch, to their largest mean logits.
        """
        self.counts += torch.bincount(labels, minlength=len(self.counts))
        self.sums.index_add_(0, labels, u)
        self.products.addmm_(u.T, u)
        some = x.any(1)
        self.spread.add(logs[some])
        self.crossed += logs[some] @ u[some]
        self.directions += u[some].sum(0)
        kept = within(self.index, at)
        if self.part and not len(self.bank.rows):  # the first batch says where this part of the rows begins
            self.bank = _Bank(len(within(self.index, slice(at.start, at.start + self.part))), x.shape[1])
        self.bank.add(x[kept])
        self.labels.append(labels[kept])
        rows = within(self.index[self.peak_rows], at)
        if len(rows):
            self.peaks.append(peaks(rows))

    def result(self, exchange: Exchange | None = None) -> tuple[Moments, Sample]:
        """Return sums and sample, those of all processes together.

        Raises:
            DataError: If features are not finite.
        """
        n, mean, deviation = self.spread.total(exchange)
        counts, sums, products, crossed, directions = (
            value if exchange is None else exchange.sum(value)
            for value in (self.counts, self.sums, self.products, self.crossed, self.directions)
        )
        bank, labels, peaks = self.bank.rows, torch.cat(self.labels), torch.cat(self.peaks)
        if exchange is not None:
            bank, labels, peaks = (torch.cat(exchange.gather(value)) for value in (bank, labels, peaks))
        if not products.isfinite().all():
            raise DataError("training features must be finite; some are NaN or infinite: extract them again")
        return Moments(counts, sums, products, Lengths(n, mean, deviation, directions, crossed)), Sample(
            bank, self.index, labels, peaks, self.peak_rows
        )


class _Spread:
    """Number, mean and standard deviation of values that come in parts (Chan, Golub and LeVeque, 1979)."""

    def __init__(self) -> None:
        self.n, self.mean, self.deviation = 0, 0.0, 0.0
        self._parts, self._held = list[Tensor](), 0

    def add(self, values: Tensor) -> None:
        self._parts.append(values)
        self._held += len(values)
        if self._held > LENGTHS:
            self._fold()

    def total(self, exchange: Exchange | None) -> tuple[int, float, float]:
        self._fold()
        if exchange is not None:
            parts = exchange.gather(torch.tensor([[self.n, self.mean, self.deviation]], dtype=torch.float64))
            self.n, self.mean, self.deviation = 0, 0.0, 0.0
            for n, mean, deviation in torch.cat(parts).tolist():
                self._merge(int(n), mean, deviation)
        return self.n, self.mean, self.deviation

    def _fold(self) -> None:
        if self._held:
            values = torch.cat(self._parts)
            self._merge(len(values), float(values.mean()), float(values.std(correction=0)))
        self._parts, self._held = [], 0

    def _merge(self, n: int, mean: float, deviation: float) -> None:
        if not self.n or not n:
            if n:
                self.n, self.mean, self.deviation = n, mean, deviation
            return
        both, apart = self.n + n, mean - self.mean
        squares = self.n * self.deviation**2 + n * deviation**2 + apart**2 * self.n / both * n
        self.mean += apart * n / both
        self.n, self.deviation = both, (squares / both) ** 0.5


class _Bank:
    """Rows collected into one tensor (n, D), of float16 as long as that loses nothing."""

    def __init__(self, n: int, D: int) -> None:
        self.rows, self.filled = torch.empty(n, D, dtype=torch.float16), 0

    def add(self, rows: Tensor) -> None:
        if self.rows.dtype == torch.float16 and not torch.equal(rows.half().to(rows), rows):
            wider = torch.empty(self.rows.shape, dtype=rows.dtype)
            wider[: self.filled] = self.rows[: self.filled]
            self.rows = wider
        self.rows[self.filled : self.filled + len(rows)] = rows
        self.filled += len(rows)


def draw(total: int, most: int) -> Tensor:
    """At most `most` of range(total), ascending; always the same."""
    if total <= most:
        return torch.arange(total)
    generator = torch.Generator().manual_seed(0)
    if total <= max(PERMUTED, 4 * most):
        return torch.randperm(total, generator=generator)[:most].sort().values
    rows = torch.empty(0, dtype=torch.int64)
    while len(rows) < most:
        rows = torch.unique(torch.cat([rows, torch.randint(total, (most,), generator=generator)]))
    return rows[torch.randperm(len(rows), generator=generator)[:most]].sort().values


def within(index: Tensor, at: slice) -> Tensor:
    """Those of an ascending index that a slice holds, counted from its start."""
    first, last = torch.searchsorted(index, torch.tensor([at.start, at.stop])).tolist()
    inside: Tensor = index[first:last] - at.start
    return inside
