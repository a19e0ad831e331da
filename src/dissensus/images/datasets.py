"""Images that are in memory, or items of a data set of torchvision, Hugging Face or one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch.utils.data import Subset

from dissensus._core.errors import DataError
from dissensus.functional import arrays
from dissensus.functional.arrays import Values
from dissensus.images.labels import Codes, complete, numbered, renumbered
from dissensus.images.listing import Listing
from dissensus.images.readers import Arrays, Items


def list_arrays(
    images: Values,
    labels: Values | None,
    classes: Sequence[str] | None,
    groups: Values | None,
    group_names: Sequence[str] | None,
    names: Sequence[str] | None,
) -> Listing:
    """Images (N, H, W) or (N, H, W, 3) uint8, called by number where they have no names."""
    array = arrays.to_numpy(images)
    if array.dtype != np.uint8 or not (array.ndim == 3 or (array.ndim == 4 and array.shape[3] == 3)):
        raise DataError(
            f"images must be uint8 (N, H, W) or (N, H, W, 3); got {array.dtype} {array.shape}: "
            "scale them to 0..255 and put the channels last"
        )
    if names is not None and len(names) != len(array):
        raise DataError(f"every image has one name; got {len(names)} for {len(array)} images: pass one each")
    return Listing(
        names=[str(i) for i in range(len(array))] if names is None else names,
        reader=Arrays(array),
        sizes=[int(np.prod(array.shape[1:]))] * len(array),
        labels=labels,
        classes=classes,
        groups=groups,
        group_names=group_names,
    )


def list_dataset(dataset: Any, classes: Sequence[str] | None, image: str, label: str) -> Listing:
    """The items by number; labels that are names are numbered by `classes` or else by those of the data set."""
    _check(dataset, image)
    names = [str(i) for i in range(len(dataset))]
    known = _known_labels(dataset, label)
    found = [_plain(value) for value in (_read_labels(dataset, label) if known is None else known)]
    if classes is None:
        classes = _class_names(dataset, label)
    codes: Codes | None = None
    if set(found) - {None, -1}:
        codes, own = numbered(complete(found, names, "a label"))
        if own is not None and classes is not None:  # labels that are names, in an order given elsewhere
            codes = renumbered(codes, own, classes)
        elif own is not None:
            classes = own
    return Listing(names=names, reader=Items(dataset, image), sizes=[-1] * len(dataset), labels=codes, classes=classes)


def _check(dataset: Any, image: str) -> None:
    if isinstance(dataset, Mapping):
        raise DataError(f"images come from one data set; got a dict of {', '.join(map(str, dataset))}: choose one")
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"a data set is read by index; {type(dataset).__name__} has no length or no items by number: "
            "use the map-style form (streaming=False)"
        )
    columns = getattr(dataset, "column_names", None)
    if columns is not None and image not in columns:
        raise DataError(f"the data set has no column {image!r}: choose image among {', '.join(columns)}")


def _plain(label: Any) -> int | str | None:
    """A scalar of any library -> int, str or None."""
    with suppress(ValueError, RuntimeError):  # of an array, which is no label
        label = label.item() if hasattr(label, "item") else label
    if label is None or isinstance(label, int | str):
        return label
    raise DataError(f"a label is an integer or a name; got {type(label).__name__}: choose another column or data set")


def _known_labels(dataset: Any, label: str) -> Sequence[Any] | None:
    """The labels a data set keeps apart from its images; None where it keeps none."""
    if isinstance(dataset, Subset):
        inner = _known_labels(dataset.dataset, label)
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
    """The labels of all items, read one by one; the first readable item tells whether there are any."""
    found: list[Any] = []
    failed: tuple[int, Exception] | None = None
    for i in range(len(dataset)):
        try:
            item = dataset[i]
        except Exception as error:  # whatever a decoder raises
            failed = failed or (i, error)
        else:
            pair = isinstance(item, tuple | list) and len(item) > 1
            found.append(item[1] if pair else item.get(label) if isinstance(item, Mapping) else None)
            if found[0] is None:
                return [None] * len(dataset)
        if found and failed:
            raise DataError(
                f"labels are read with the images; item {failed[0]} fails with {failed[1]!r}: "
                "leave it out with torch.utils.data.Subset, or give the data set `targets`"
            ) from failed[1]
    return found or [None] * len(dataset)


def _class_names(dataset: Any, label: str) -> list[str] | None:
    """The names a data set gives its classes."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    features = getattr(dataset, "features", None)
    names = getattr(dataset, "classes", None)
    if names is None and isinstance(features, Mapping):
        names = getattr(features.get(label), "names", None)
    # torchvision's ImageNet has tuples of synonyms
    return [name if isinstance(name, str) else ", ".join(name) for name in names] if names else None
