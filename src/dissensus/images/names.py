"""Names: any number of strings in one buffer, so that a hundred million names are no hundred million objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_CHUNK = 2**16


class Names(Sequence[str]):
    """A sequence of strings in UTF-8, with 8 bytes beside each; equal to a list or tuple of the same strings.

    >>> names = Names.of(["cat/1.jpg", "dog/2.jpg"])
    >>> names[1], names.take([1, 0]) == ["dog/2.jpg", "cat/1.jpg"], len(names)
    ('dog/2.jpg', True, 2)

    Strings are made when they are asked for. Names of files that are not UTF-8 stay as Python has them, and indexing
    writes to no shared memory, so that forked processes share one copy.
    """

    __slots__ = ("_array", "_data", "_offsets")

    def __init__(self, array: pa.LargeBinaryArray) -> None:
        if array.offset:
            raise ValueError("names begin at the first byte of their buffer")
        self._array = array
        _, offsets, data = array.buffers()
        # An empty array has no buffers.
        self._offsets = np.frombuffer(offsets, np.int64)[: len(array) + 1] if len(array) else np.zeros(1, np.int64)
        self._data = memoryview(data) if data is not None else memoryview(b"")

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Return the same strings, without a list of them in between."""
        if isinstance(names, Names):
            return names
        builder = Builder()
        for name in names:
            builder.add(name)
        return builder.names()

    @classmethod
    def joined(cls, parts: Iterable[tuple[str, Names]]) -> Names:
        """Return the names of all parts, each with the prefix of its part."""
        return cls.of(prefix + name for prefix, names in parts for name in names)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...

    @overload
    def __getitem__(self, i: slice) -> Names: ...

    def __getitem__(self, i: int | slice) -> str | Names:
        if isinstance(i, slice):
            return self.take(np.arange(len(self))[i])
        at = i + len(self) if i < 0 else i
        if not 0 <= at < len(self):
            raise IndexError(f"names are numbered 0..{len(self) - 1}; got {i}")
        return str(self._data[self._offsets[at] : self._offsets[at + 1]], "utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _CHUNK):
            offsets = self._offsets[start : start + _CHUNK + 1]
            data = bytes(self._data[offsets[0] : offsets[-1]])
            edges = (offsets - offsets[0]).tolist()
            for low, high in pairwise(edges):
                yield data[low:high].decode("utf-8", "surrogatepass")

    def chunks(self) -> Iterator[list[str]]:
        """Yield lists of some thousand names."""
        for start in range(0, len(self), _CHUNK):
            yield list(self[start : start + _CHUNK])

    def take(self, index: Sequence[int] | NDArray[Any]) -> Names:
        """Return the names at these positions; a negative one counts from the end."""
        at = np.asarray(index, np.int64)
        at = np.where(at < 0, at + len(self), at)
        if len(at) and not (at.min() >= 0 and at.max() < len(self)):
            raise IndexError(f"names are numbered 0..{len(self) - 1}; got {at.min()}..{at.max()}")
        return Names(self._array.take(pa.array(at)))

    def argsort(self) -> NDArray[np.int64]:
        """Return the positions (N,) of the names in sorted order; UTF-8 sorts as Python's strings do."""
        order: NDArray[np.int64] = pc.array_sort_indices(self._array).to_numpy().astype(np.int64)
        return order

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Names):
            return bool(self._array.equals(other._array))
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a tuple of the same strings would have to have the same

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"Names({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"

    def __reduce__(self) -> tuple[type[Names], tuple[pa.LargeBinaryArray]]:
        return Names, (self._array,)


class Builder:
    """Collects names one by one."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._offsets = array("q", [0])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add(self, name: str) -> None:
        """Append a name."""
        self._data += name.encode("utf-8", "surrogatepass")
        self._offsets.append(len(self._data))

    def names(self) -> Names:
        """Return all names; nothing may be added afterwards."""
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._data)]
        return Names(pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers))
