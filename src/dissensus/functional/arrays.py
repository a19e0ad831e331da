"""Array-likes that users pass, checked: features (N, ...), labels and groups (N,)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dissensus._core.errors import DataError

MAX_UNNAMED = 1_000_000  # one stray label must not create a billion class names

Array = NDArray[Any]
Values = Tensor | ArrayLike


def to_numpy(values: Values) -> Array:
    """Convert any array-like to NumPy, without a copy if NumPy has the dtype."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    has_dtype = not values.is_floating_point() or values.dtype in (torch.float16, torch.float32, torch.float64)
    return (values if has_dtype else values.float()).numpy()


def to_float32(rows: Array) -> Tensor:
    """(n, ...) of any float dtype -> float32 tensor, sharing memory if possible."""
    if not (rows.flags.writeable and rows.flags.c_contiguous):
        rows = rows.copy()  # torch warns about read-only arrays and does not take negative strides
    return torch.from_numpy(rows).float()


def check_features(features: Values, *, dtype: str = "float32", first: int = 0) -> Array:
    """Return features (N, ...) as float16, float32 or float64, every value finite in `dtype`.

    Args:
        features: Any array-like of numbers.
        dtype: The dtype they will be stored in.
        first: The number that messages give to row 0.

    Raises:
        DataError: If they are not numbers (N, ...), or not finite in `dtype`.
    """
    array = to_numpy(features)
    if array.ndim < 2:
        raise DataError(f"features must be (N, ...); got {array.shape}: for one row use features[None]")
    if 0 in array.shape[1:]:
        raise DataError(f"features need at least one value per row; got {array.shape}: check where they come from")
    if array.dtype not in (np.float16, np.float32, np.float64):
        if array.dtype.kind not in "biuf":
            raise DataError(f"features must be real numbers; got {array.dtype}: convert them to float32")
        array = array.astype(np.float32)
    limit = float(np.finfo(dtype).max)
    step = max(1, 2**22 // int(np.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        low, high = torch.aminmax(to_float32(array[start : start + step]))
        if not (-limit <= low and high <= limit):  # NaN compares false
            raise _bad_values(array, limit, first, step)
    return array


def _bad_values(array: Array, limit: float, first: int, step: int) -> DataError:
    chunks = (to_float32(array[start : start + step]) for start in range(0, len(array), step))
    peaks = torch.cat([chunk.flatten(1).abs().amax(1) for chunk in chunks])
    if len(bad := (~peaks.isfinite()).nonzero()):
        return DataError(
            f"features must be finite in float32; {len(bad)} of {len(array)} rows hold NaN or inf, "
            f"the first is row {first + int(bad[0])}: remove them, or check where they come from"
        )
    row = int((peaks > limit).nonzero()[0])
    return DataError(f"float16 holds values up to 65504; row {first + row} reaches {peaks[row]:g}: use dtype='float32'")


def check_codes(
    kind: str, values: Values, rows: int, names: Sequence[str] | None, *, first: int = 0
) -> NDArray[np.int64]:
    """Return the "labels" or "groups" (`kind`) of `rows` rows as (rows,) int64, each the index of a name.

    Strings are looked up in `names`.

    Raises:
        DataError: If they are not one index or name per row.
    """
    noun = "classes" if kind == "labels" else "groups"
    codes = to_numpy(values)
    if codes.shape != (rows,):
        raise DataError(f"{kind} must be ({rows},), one per row; got {codes.shape}: pass those of these rows")
    if names is not None and _is_text(codes):
        index = {str(name): i for i, name in enumerate(names)}
        if len(index) < len(names):
            raise DataError(f"{noun} must have different names; got {len(index)} names for {len(names)}: rename some")
        if unknown := [i for i, name in enumerate(codes.tolist()) if name not in index]:
            raise DataError(
                f"{kind} must be among the {len(names)} {noun} given; row {first + unknown[0]} has "
                f"{str(codes[unknown[0]])!r}: correct it, or add it to the {noun}"
            )
        codes = np.array([index[name] for name in codes.tolist()], np.int64)
    if codes.dtype.kind not in "iu":
        raise DataError(f"{kind} must be integers or names; got {codes.dtype}: number the {noun} 0, 1, 2, ...")
    limit = MAX_UNNAMED if names is None else len(names)
    if len(bad := np.flatnonzero((codes < 0) | (codes >= limit))):
        raise DataError(
            f"{kind} must lie in 0..{limit - 1} ({limit} {noun}); row {first + int(bad[0])} has "
            f"{codes[bad[0]]}: correct it or name all {noun}"
        )
    return codes.astype(np.int64)


def encode(
    kind: str, values: Values | None, rows: int, names: Sequence[str] | None
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the codes of all labels or groups, and the names that the codes refer to.

    Integers are indices into `names`, by default "0", "1", ...; strings are looked up in `names`, by default the
    distinct strings in sorted order. None stays None.

    >>> encode("labels", ["dog", "cat", "dog"], 3, None)
    (array([1, 0, 1]), ('cat', 'dog'))

    Raises:
        DataError: As `check_codes`.
    """
    if values is None:
        return None, default_names(names, -1)
    array = to_numpy(values)
    if names is None and _is_text(array):
        names = sorted(set(array.ravel().tolist()))
    codes = check_codes(kind, array, rows, names)
    return codes, default_names(names, int(codes.max(initial=-1)))


def default_names(names: Sequence[str] | None, top: int) -> tuple[str, ...]:
    """Return the names, or "0" to str(top) if there are none.

    Raises:
        DataError: If a name cannot be written to a file, such as that of a folder which is not UTF-8.
    """
    result = tuple(map(str, range(top + 1) if names is None else names))
    for name in result:
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            raise DataError(f"names of classes and groups must be UTF-8; {name!r} is not: rename it")
    return result


def _is_text(array: Array) -> bool:
    if array.dtype.kind == "O":  # such as a column of pandas
        return array.size > 0 and all(isinstance(value, str) for value in array.ravel())
    return array.dtype.kind == "U"
