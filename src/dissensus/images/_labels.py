"""Labels as codes: a number per image, and every distinct label once."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError
from dissensus.images._files import shared_folders

INTEGER = re.compile(r"[+-]?[0-9]{1,18}")  # of 64 bits; a longer one is a name
Label = int | str | None


class Coder:
    """Labels in the order that they are added, numbered by first occurrence."""

    def __init__(self) -> None:
        self.values: dict[Label, int] = {}
        self._codes = array("q")

    @classmethod
    def of(cls, labels: Iterable[Label]) -> Coder:
        """Add all these labels."""
        coder = cls()
        for label in labels:
            coder.add(label)
        return coder

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, label: Label) -> None:
        """Append a label."""
        self._codes.append(self.values.setdefault(label, len(self.values)))

    @property
    def codes(self) -> NDArray[np.int64]:
        """The index (N,) of each label among `values`."""
        return np.frombuffer(self._codes, np.int64) if len(self._codes) else np.zeros(0, np.int64)

    def mapped(self, labels: Sequence[Label]) -> Coder:
        """Return the same with `labels` instead of `values`, one for each."""
        coder = Coder()
        index = [coder.values.setdefault(label, len(coder.values)) for label in labels]
        coder._codes = array("q", np.array(index, np.int64)[self.codes].tobytes())
        return coder

    def sorted(self) -> tuple[NDArray[np.int64], list[str]]:
        """Return codes (N,) into the distinct labels as text, and these, sorted."""
        texts = [str(value) for value in self.values]
        classes = sorted(set(texts))
        index = {name: i for i, name in enumerate(classes)}
        return np.array([index[text] for text in texts], np.int64)[self.codes], classes


def label_values(labels: Coder, names: Sequence[str], remedy: str) -> tuple[NDArray[np.int64] | None, list[str] | None]:
    """Return labels (N,): integers and no classes if all are integers, otherwise codes and classes.

    None if every label is None or -1.
    """
    if not set(labels.values) - {None, -1}:
        return None, None
    if None in labels.values:
        missing = np.flatnonzero(labels.codes == labels.values[None])
        raise DataError(
            f"all images have a label or none has; {len(missing)} of {len(labels)} have none, the first is "
            f"{names[int(missing[0])]!r}: give it {remedy}, or take all as unlabelled"
        )
    if all(INTEGER.fullmatch(str(label)) for label in labels.values):
        numbers = np.array([int(label) for label in labels.values if label is not None])
        return (None, None) if set(numbers.tolist()) == {-1} else (numbers[labels.codes], None)
    return labels.sorted()


def folder_labels(
    folders: Coder, names: Sequence[str], where: str
) -> tuple[NDArray[np.int64] | None, list[str] | None]:
    """Return the class of each image by its folder, "" being the top; None if all are at the top."""
    if set(folders.values) <= {""}:
        return None, None
    if "" in folders.values:
        first = int(np.flatnonzero(folders.codes == folders.values[""])[0])
        raise DataError(
            f"images lie in class folders or all at the top; {where} has both, such as "
            f"{names[first].rpartition('/')[2]!r}: move them, or take all as unlabelled"
        )
    return folders.sorted()


def branches(folders: Coder) -> Coder:
    """Return the first part of each folder's path after the folders that all of them share."""
    paths = [str(path).split("/") if path else [] for path in folders.values]
    shared = shared_folders(paths)
    return folders.mapped([path[shared] if len(path) > shared else "" for path in paths])
