"""Samples: everything that a detector takes, as features or as a source of images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dissensus._core.errors import DataError
from dissensus._core.places import as_text, is_url
from dissensus.features import FeatureSet
from dissensus.features.joined import Features, JoinedFeatures, is_features, open_features
from dissensus.functional import arrays
from dissensus.images import IMAGE_COLUMNS, LISTINGS, ImageSet, ImageStream, is_one_image, is_stream, walk

PathLike = str | os.PathLike[str]
Array = NDArray[Any]
Picture = Image.Image | Array | Tensor
Many: TypeAlias = "pd.DataFrame | pd.Series[str] | Sequence[PathLike] | Sequence[Picture] | Sequence[FeatureSet]"
Samples: TypeAlias = "Features | ImageSet | PathLike | Picture | Many"
"""What a detector takes: see `Detector.predict`. A list of `FeatureSet`s is one of the same samples per backbone."""

KINDS = (
    "samples must be a path, an image, an array, a DataFrame, a FeatureSet, an ImageSet, or a list of paths or images"
)


class Resolved(NamedTuple):
    """Samples in one of the forms that are run, and their names; without names they are numbered."""

    source: Features | ImageSet | Sequence[str] | Sequence[Image.Image | Array]
    names: Sequence[str] = ()


def resolve(samples: Samples) -> Resolved:
    """Return samples of any form as features or images; raise if a detector does not take them, or there are none."""
    if isinstance(samples, FeatureSet | JoinedFeatures):
        return Resolved(samples)
    if isinstance(samples, ImageSet):
        return Resolved(samples, samples.names)
    if isinstance(samples, str | os.PathLike):
        return _from_path(as_text(samples))
    if isinstance(samples, Image.Image):
        return Resolved([samples])
    if isinstance(samples, Tensor | np.ndarray):
        return _from_array(arrays.to_numpy(samples))
    if isinstance(samples, pd.DataFrame):
        return _from_frame(samples)
    items = samples.tolist() if isinstance(samples, pd.Series) else samples
    if isinstance(items, Sequence) and len(items):
        return _from_list(items)
    if isinstance(samples, ImageStream):
        raise DataError("an ImageStream is read in order: use Detector.stream, or extract it first")
    if hasattr(samples, "column_names"):  # a data set of Hugging Face
        wrap = "wrap it: ImageSet.from_dataset or ImageStream.from_dataset"
        raise DataError(f"{KINDS}; got {type(samples).__name__}; {wrap}")
    empty = "an empty " if isinstance(items, Sequence) else ""
    raise DataError(f"{KINDS}; got {empty}{type(samples).__name__}")


def stream_of(
    samples: Samples | ImageStream | Iterable[PathLike],
) -> Features | ImageSet | ImageStream | Iterator[str]:
    """Return what `Detector.stream` runs on: features, images, or an iterator of any number of paths."""
    if isinstance(samples, FeatureSet | JoinedFeatures | ImageSet | ImageStream):
        return samples
    if isinstance(samples, str | os.PathLike):
        path = as_text(samples)
        if is_stream(path):
            return ImageStream.find(path, unlabelled=True)
        if is_features(path):
            return open_features(path)
        return ImageSet.find(path, unlabelled=True) if is_listing(path) else walk([path])
    if isinstance(samples, Iterable) and not isinstance(samples, Image.Image | Tensor | np.ndarray | pd.DataFrame):
        return walk(map(_checked_path, samples))
    raise _not_streamed(samples)


def _checked_path(path: object) -> str:
    if not isinstance(path, str | os.PathLike):
        raise _not_streamed(path)
    return as_text(path)


def _not_streamed(value: object) -> DataError:
    return DataError(
        f"a stream takes paths, an ImageSet, an ImageStream or a FeatureSet; got {type(value).__name__}: use predict"
    )


def is_listing(path: str) -> bool:
    """Whether a path names a file of many images: a list (.txt), a table (.csv, .tsv, .parquet) or a .tar."""
    return path.lower().endswith(LISTINGS)


def _from_path(path: str) -> Resolved:
    if is_features(path):
        return Resolved(open_features(path))
    if is_url(path):
        folder = not (is_one_image(path) or is_listing(path))
    elif os.path.exists(path):
        folder = os.path.isdir(path)
    else:
        raise DataError(f"samples must exist; there is no file or folder {path}: check the path")
    if not folder and not is_listing(path):
        return Resolved([path], (path,))
    try:
        images = ImageSet.find(path)  # With labels, if there are any: `Detector.calibrate` recognises training images.
    except DataError:
        images = ImageSet.find(path, unlabelled=True)
    return Resolved(images, tuple(os.path.join(path, name) for name in images.names) if folder else images.names)


def _from_array(array: Array) -> Resolved:
    if _is_image(array):
        return Resolved([array])
    if array.ndim == 4 and len(array) and _is_image(array[0]):
        return Resolved(list(array))
    return Resolved(FeatureSet.from_arrays(array[None] if array.ndim == 1 else array))


def _from_frame(frame: pd.DataFrame) -> Resolved:
    column = next((name for name in IMAGE_COLUMNS if name in frame), None)
    if column is not None:
        return _from_list(frame[column].tolist()) if len(frame) else resolve([])
    numeric = frame.select_dtypes(["number", "bool"])
    if other := [str(name) for name in frame.columns if name not in numeric]:
        raise DataError(
            "a DataFrame needs numeric columns, one for each feature, or a column of image paths named "
            f"{' or '.join(IMAGE_COLUMNS[:2])}; column {other[0]!r} is not numeric: drop it, or rename it"
        )
    values = numeric.to_numpy(dtype=np.float64, na_value=np.nan)
    return Resolved(FeatureSet.from_arrays(values), tuple(map(str, frame.index)))


def _from_list(items: Sequence[Any]) -> Resolved:
    if all(isinstance(item, str | os.PathLike) for item in items):
        paths = list(walk([as_text(item) for item in items]))
        if not paths:
            raise DataError(f"folders must hold images; {', '.join(map(str, items))[:200]} hold none: check the paths")
        return Resolved(paths, tuple(paths))
    if all(isinstance(item, FeatureSet) for item in items):
        return Resolved(JoinedFeatures(items))
    pictures = [arrays.to_numpy(item) if isinstance(item, Tensor) else item for item in items]
    if all(isinstance(item, Image.Image) or _is_image(item) for item in pictures):
        return Resolved(pictures)
    known = [isinstance(item, str | os.PathLike | Image.Image) or _is_image(item) for item in pictures]
    if all(known):
        raise DataError("a list of samples holds either paths or images; got a mixture: pass two lists")
    wrong = pictures[known.index(False)]
    shape = f" {wrong.dtype} {wrong.shape}" if isinstance(wrong, np.ndarray) else ""
    raise DataError(
        f"a list of samples holds paths, PIL images or uint8 arrays (H, W, 3); got {type(wrong).__name__}{shape}: "
        "for features pass one array (N, D)"
    )


def _is_image(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3 and value.shape[-1] == 3
