"""Feature sets in memory and on disk that the tests share."""

import numpy as np
import pytest

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet


def arrays(rows=50, shape=(6,), classes=5, seed=0):
    """Random features, labels in which every class occurs, and groups of two kinds."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, *shape)).astype(np.float32), np.arange(rows) % classes, np.arange(rows) % 2


def on_disk(folder, *, rows=50, shape=(6,), shard_rows=7, dtype="float32"):
    x, y, g = arrays(rows, shape)
    features = FeatureSet.from_arrays(x, y, groups=g, group_names=["land", "water"])
    return x, features.save(folder, dtype=dtype, shard_rows=shard_rows)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(match):
    """DataError whose one line matches."""
    return pytest.raises(DataError, match=rf"\A[^\n]*{match}[^\n]*\Z")


def flip(path, at=-1):
    """Change one bit of a file, not its size."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
