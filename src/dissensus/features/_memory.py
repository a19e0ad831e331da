"""Memory: the rows of a `FeatureSet` in arrays."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dissensus.features._storage import Kind, Rows, Text
from dissensus.functional.arrays import Array


class Memory:
    """Rows in arrays."""

    def __init__(self, features: Array, labels: Rows | None, groups: Rows | None) -> None:
        self._features, self._codes = features, {"label": labels, "group": groups}
        self.count, self.shape, self.dtype = len(features), features.shape[1:], features.dtype
        self.kinds = frozenset(kind for kind, codes in self._codes.items() if codes is not None)
        self._values = ""  # sha256 of the features, once it is known

    def read(self, rows: Rows) -> Array:
        return self._features[rows]

    def expect(self, ranges: Sequence[range]) -> None:
        """Do nothing: there is no disk."""

    def codes(self, kind: Kind, rows: Rows | None = None) -> NDArray[np.int64]:
        codes = self._codes[kind]
        assert codes is not None  # the caller looks at `kinds`
        return codes if rows is None else codes[rows]

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.bincount(self.codes("label"))

    def texts(self, column: Text, rows: Rows) -> list[str] | None:
        return None

    def fingerprint(self, names: Sequence[Sequence[str]] | None) -> str:
        if not self._values:
            values, step = hashlib.sha256(), max(1, 2**22 // math.prod(self.shape))
            for start in range(0, self.count, step):
                values.update(np.ascontiguousarray(self._features[start : start + step]).data)
            self._values = values.hexdigest()
        digest = hashlib.sha256(json.dumps([self.count, self.shape, str(self.dtype), names, self._values]).encode())
        for codes in () if names is None else self._codes.values():
            digest.update(b"none" if codes is None else codes.tobytes())
        return digest.hexdigest()

    def verify(self, progress: Callable[[range], Any]) -> None:
        """Do nothing: there are no files."""
