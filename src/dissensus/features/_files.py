"""ShardFile: the rows of one .npy file.

Rows are read, not mapped: access to a mapped file that was truncated ends the process with SIGBUS, while a read of it
comes short, which is an error.
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

# What NumPy raises for an .npy file that is damaged.
NPY_ERRORS = (OSError, ValueError, EOFError, OverflowError, SyntaxError, TypeError, TokenError)
_SEEK = threading.Lock()  # where reading at an offset is two calls


class ShardFile:
    """An open .npy file of rows.

    Args:
        path: A local file. It may be removed once it is open, where the system allows that.
        rows: How many rows it must hold.
        shape: The shape of a row.
        dtype: Their type.

    Raises:
        OSError, ValueError, ...: One of `NPY_ERRORS`, if it cannot be read or holds something else.
    """

    def __init__(self, path: Path, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        with open(path, "rb", buffering=0) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            whole, fortran, kind = read(file)
            if (whole, kind, fortran and len(whole) > 1) != ((rows, *shape), dtype, False):
                raise ValueError(f"it holds {kind} {whole}")
            self._start = file.tell()
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self.shape, self.dtype = shape, dtype
        self._row_bytes = dtype.itemsize * math.prod(shape)

    def read(self, rows: NDArray[np.int64]) -> Array:
        """Return these rows (n, ...) in this order, one read for each run of neighbours.

        Raises:
            OSError: If they cannot be read.
            EOFError: If the file is shorter than it was.
        """
        values: Array = np.empty((len(rows), *self.shape), self.dtype)
        view, size = memoryview(values.reshape(-1).view(np.uint8)), self._row_bytes
        cuts = np.flatnonzero(np.diff(rows) != 1) + 1
        begins, firsts = [0, *cuts.tolist()], rows[[0, *cuts]].tolist() if len(rows) else []
        for begin, end, first in zip(begins, [*begins[1:], len(rows)], firsts, strict=False):
            _fill(self._file, view[begin * size : end * size], self._start + first * size)
        return values


def _fill(file: int, view: memoryview, offset: int) -> None:
    """Fill a buffer with the bytes at an offset."""
    while count := _read_at(file, view, offset):
        if count == len(view):
            return
        view, offset = view[count:], offset + count
    raise EOFError


def _read_at(file: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [view], offset)
    with _SEEK:
        os.lseek(file, offset, os.SEEK_SET)
        data = os.read(file, len(view))
    view[: len(data)] = data
    return len(data)
