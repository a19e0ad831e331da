"""ShardFile: the rows of one .npy file.

Rows are read, not mapped: access to a mapped file that was truncated ends the process with SIGBUS, while a read of it
comes short, which is an error. A small file is kept in memory, because a read for every row of a random batch is slow.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.functional.arrays import Array

# What NumPy raises for a damaged .npy file, whose header is Python: it may be deeply nested or state any shape.
NPY_ERRORS = (
    OSError, ValueError, EOFError, OverflowError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError,
    TokenError,
)  # fmt: skip
SCATTERED = 32  # runs of neighbouring rows; more at once are worth reading the file as a whole
_HAS_PREADV = hasattr(os, "preadv")
_SEEK = threading.Lock()  # where reading at an offset is two calls


class ShardFile:
    """An open .npy file of rows.

    Args:
        path: A local file. It may be removed once it is open, where the system allows that.
        rows: How many rows it must hold.
        shape: The shape of a row.
        dtype: Their type.
        keep: Whether all rows may be kept in memory, once scattered ones are read.

    Raises:
        OSError, ValueError, ...: One of `NPY_ERRORS`, if it cannot be read or holds something else.
    """

    def __init__(self, path: Path, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any], keep: bool) -> None:
        with open(path, "rb", buffering=0) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            whole, fortran, kind = read(file)
            if (whole, kind, fortran and len(whole) > 1) != ((rows, *shape), dtype, False):
                raise ValueError(f"it holds {kind} {whole}")
            self._start = file.tell()
            self._file = os.dup(file.fileno())
        self._close = weakref.finalize(self, os.close, self._file)
        self._rows, self._shape, self._dtype, self._keep = rows, shape, dtype, keep
        self._row_bytes = dtype.itemsize * math.prod(shape)
        self._values: Array | None = None  # all rows

    def read(self, rows: NDArray[np.int64]) -> Array:
        """Return these rows (n, ...) in this order.

        Raises:
            OSError: If they cannot be read.
            EOFError: If the file is shorter than it was.
        """
        if self._values is not None:
            return self._values[rows]
        if not len(rows):
            return np.empty((0, *self._shape), self._dtype)
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)  # of runs of neighbours
        if self._keep and len(starts) > SCATTERED:
            self._values = self._runs([0, self._rows], [0])
            return self._values[rows]
        return self._runs([*starts.tolist(), len(rows)], rows[starts].tolist())

    def load(self) -> None:
        """Read all rows and close the file, so that it can be removed on any system."""
        self._values = self._runs([0, self._rows], [0])
        self._close()

    def _runs(self, cuts: list[int], firsts: list[int]) -> Array:
        """Return runs of rows one after the other: run i goes to cuts[i] to cuts[i + 1], and begins with firsts[i]."""
        values: Array = np.empty((cuts[-1], *self._shape), self._dtype)
        view, size = values.reshape(-1).view(np.uint8).data, self._row_bytes
        for i, first in enumerate(firsts):
            part, offset = view[cuts[i] * size : cuts[i + 1] * size], self._start + first * size
            while (count := _read_at(self._file, part, offset)) < len(part):
                if not count:
                    raise EOFError
                part, offset = part[count:], offset + count
        return values


def _read_at(file: int, view: memoryview, offset: int) -> int:
    """Read from an offset into a buffer; return how many bytes were read, 0 at the end of the file."""
    if _HAS_PREADV:
        return os.preadv(file, [view], offset)
    with _SEEK:
        os.lseek(file, offset, os.SEEK_SET)
        data = os.read(file, len(view))
    view[: len(data)] = data
    return len(data)
