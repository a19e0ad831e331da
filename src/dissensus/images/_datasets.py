"""Images in memory, and items of a data set: torchvision, Hugging Face or any other with a length and items."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import IterableDataset, Subset

from dissensus._core.errors import DataError
from dissensus.functional import arrays
from dissensus.functional.arrays import Values
from dissensus.images._labels import Coder, label_values
from dissensus.images._listing import Listing
from dissensus.images.decoding import BadImage, decode, decoding_errors, digest, load_image, pixel_digest, to_rgb
from dissensus.images.names import Names


@dataclass(frozen=True, eq=False)
class Items:
    """Images (N, H, W) or (N, H, W, 3) uint8 in memory, or those of a map-style data set; a place is an index."""

    dataset: Any
    key: str = ""

    @property
    def identity(self) -> str:
        """The sha256 of pixels in memory, which all have one size; the fingerprint that Hugging Face data sets keep."""
        if isinstance(self.dataset, np.ndarray):
            return hashlib.sha256(np.ascontiguousarray(self.dataset).data).hexdigest()
        return str(getattr(self.dataset, "_fingerprint", ""))

    def load(self, name: str, place: int, size: int) -> tuple[Image.Image, str]:
        with decoding_errors():  # most data sets decode while they fetch
            value = input_of(self.dataset[place], self.key)
        return from_value(value)


def input_of(item: Any, key: str = "image") -> Any:
    """Return what an item (input, ...), a dict, or an input by itself holds besides its label.

    Raises:
        BadImage: If it holds nothing, or is a dict without the key.
    """
    if isinstance(item, Mapping):
        if key not in item:
            raise BadImage(f"a dict of {', '.join(map(str, item)) or 'nothing'}, not of {key}")
        return item[key]
    if isinstance(item, tuple | list):
        if not item:
            raise BadImage("an item without an image")
        return item[0]
    return item


def from_value(value: Any) -> tuple[Image.Image, str]:
    """Return the image that an item of a data set holds, as RGB, and its digest; raise BadImage if there is none."""
    if isinstance(value, Mapping):  # Hugging Face's Image(decode=False)
        if value.get("bytes") is None and value.get("path"):
            return load_image(str(value["path"]))
        value = value.get("bytes")
    if isinstance(value, bytes):
        return decode(value), digest(value)
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8:
            raise BadImage(f"an array of {value.dtype}, not uint8")
        with decoding_errors():
            value = Image.fromarray(value)
    if not isinstance(value, Image.Image):
        raise BadImage(f"an item of type {type(value).__name__}, not an image")
    image = to_rgb(value)
    return image, pixel_digest(image)


def list_arrays(images: Values, names: Sequence[str] | None, **labels: Any) -> Listing:
    """List images (N, H, W) or (N, H, W, 3) uint8, named by their index by default."""
    array = arrays.to_numpy(images)
    if array.dtype != np.uint8 or not (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3)):
        raise DataError(
            f"images must be uint8 (N, H, W) or (N, H, W, 3); got {array.dtype} {array.shape}: "
            "scale them to 0..255 and put the channels last"
        )
    if names is not None and len(names) != len(array):
        raise DataError(f"every image has one name; got {len(names)} for {len(array)} images: pass one each")
    return Listing(
        names=_numbers(len(array)) if names is None else names,
        reader=Items(array),
        sizes=np.full(len(array), np.prod(array.shape[1:], dtype=np.int64)),
        **labels,
    )


def list_dataset(dataset: Any, classes: Sequence[str] | None, image: str, label: str) -> Listing:
    """List the items by index; labels that are names are numbered by `classes` or else by those of the data set."""
    check_items(dataset)
    columns = getattr(dataset, "column_names", None)
    if columns is not None and image not in columns:
        raise DataError(f"the data set has no column {image!r}: choose image among {', '.join(columns)}")
    names = _numbers(len(dataset))
    stored = _stored_labels(dataset, label)
    labels = Coder.of(plain_label(value) for value in (_read_labels(dataset, label) if stored is None else stored))
    codes, found = label_values(labels, names, "a label")
    known = class_names(dataset, label) if classes is None else classes
    return Listing(
        names=names,
        reader=Items(dataset, image),
        sizes=np.full(len(dataset), -1),
        labels=codes if codes is None or found is None or known is None else [found[code] for code in codes],
        classes=found if known is None else known,
    )


def _numbers(count: int) -> Names:
    return Names.of(map(str, range(count)))


def check_items(dataset: Any) -> None:
    """Raise if the items of a data set cannot be read by index."""
    if isinstance(dataset, Mapping):
        raise DataError(f"images come from one data set; got a dict of {', '.join(map(str, dataset))}: choose one")
    by_number = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not by_number:
        raise DataError(
            f"a data set is read by index; {type(dataset).__name__} has no length or no items by number: "
            "use the map-style form (streaming=False)"
        )


def plain_label(label: Any) -> int | str | None:
    """Convert a scalar of any library."""
    with suppress(ValueError, RuntimeError):  # of an array, which is not a label
        label = label.item() if hasattr(label, "item") else label
    if label is None or isinstance(label, int | str):
        return label
    raise DataError(f"a label is an integer or a name; got {type(label).__name__}: choose another column or data set")


def _stored_labels(dataset: Any, label: str) -> Sequence[Any] | None:
    """Return the labels that a data set keeps apart from its images; None if it keeps none."""
    if isinstance(dataset, Subset):
        inner = _stored_labels(dataset.dataset, label)
        return None if inner is None else [inner[i] for i in dataset.indices]
    if (columns := getattr(dataset, "column_names", None)) is not None:
        return list(dataset[label][:]) if label in columns else [None] * len(dataset)
    for name in ("targets", "labels", "_labels"):
        values = getattr(dataset, name, None)
        if values is not None and hasattr(values, "__len__") and len(values) == len(dataset):
            change = getattr(dataset, "target_transform", None)
            return [change(value) for value in values] if change is not None else list(values)
    return None


def _read_labels(dataset: Any, label: str) -> list[Any]:
    """Read the labels of all items one by one; the first readable item decides whether there are any."""
    labels: list[Any] = []
    failed: tuple[int, Exception] | None = None
    for i in range(len(dataset)):
        try:
            item = dataset[i]
        except Exception as error:  # whatever a decoder raises
            failed = failed or (i, error)
        else:
            pair = isinstance(item, tuple | list) and len(item) > 1
            labels.append(item[1] if pair else item.get(label) if isinstance(item, Mapping) else None)
            if labels[0] is None:
                return [None] * len(dataset)
        if labels and failed:
            raise DataError(
                f"labels are read with the images; item {failed[0]} fails with {failed[1]!r}: "
                "leave it out with torch.utils.data.Subset, or give the data set `targets`"
            ) from failed[1]
    return labels or [None] * len(dataset)


def class_names(dataset: Any, label: str) -> list[str] | None:
    """Return the names of the classes that a data set knows; None if it knows none."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    features = getattr(dataset, "features", None)
    names = getattr(dataset, "classes", None)
    if names is None and isinstance(features, Mapping):
        names = getattr(features.get(label), "names", None)
    # torchvision's ImageNet has tuples of synonyms
    return [name if isinstance(name, str) else ", ".join(name) for name in names] if names else None
