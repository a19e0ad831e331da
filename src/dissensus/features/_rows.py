"""Rows by number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError
from dissensus.functional import arrays
from dissensus.functional.arrays import Values


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
