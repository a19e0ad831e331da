"""Rows by number, from arrays that together hold a set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus.functional import arrays
from dissensus.functional.arrays import Array, Values


def positions(index: Values | slice, count: int) -> NDArray[np.int64]:
    """Return int64 row numbers within [0, count) for a slice, a mask (count,) or integers (...)."""
    if isinstance(index, slice):
        return np.arange(*index.indices(count))
    array = arrays.to_numpy(index)
    if array.dtype == bool and array.shape == (count,):
        return np.flatnonzero(array)
    if array.dtype.kind not in "iu" and array.size:
        raise DataError(f"rows are chosen by integers or a mask ({count},); got {array.dtype} {array.shape}")
    rows = array.astype(np.int64)
    if rows.size and not (-count <= rows.min() and rows.max() < count):
        raise IndexError(f"rows must lie in 0..{count - 1}; got {rows.min()}..{rows.max()}")
    return np.where(rows < 0, rows + count, rows)


def gather(parts: Sequence[Array], starts: NDArray[np.int64], index: NDArray[np.int64]) -> Tensor:
    """Return rows `index` (n,) of the concatenated arrays, which begin at rows `starts`, as (n, ...) float32."""
    if len(parts) == 1:
        return arrays.to_float32(parts[0][index])
    order = np.argsort(index)  # so that each shard is read once, front to back
    ordered = index[order]
    cuts = np.searchsorted(ordered, starts)
    x = np.empty((len(index), *parts[0].shape[1:]), parts[0].dtype)
    for i in np.flatnonzero(np.diff(cuts)).tolist():
        here = slice(cuts[i], cuts[i + 1])
        x[order[here]] = parts[i][ordered[here] - starts[i]]
    return arrays.to_float32(x)  # all at once: a call per shard costs more than it saves
