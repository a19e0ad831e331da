"""From what stands beside an image, a folder, a number or a name, to a label and the names of the classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError

Codes = NDArray[np.int64]
INTEGER = re.compile(r"[+-]?[0-9]+")


def by_folder(trees: Sequence[Sequence[str]], where: str) -> tuple[Codes | None, list[str] | None]:
    """Paths, split -> labels and class names by first folder; none of either where all lie at the top."""
    flat = [tree for tree in trees if len(tree) == 1]
    if len(flat) == len(trees):
        return None, None
    if flat:
        raise DataError(
            f"images lie in class folders or all at the top; {where} has both, such as {flat[0][0]!r}: "
            "move them, or take all as unlabelled"
        )
    classes = sorted({tree[0] for tree in trees})
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[tree[0]] for tree in trees]), classes


def complete(labels: Sequence[int | str | None], names: Sequence[str], what: str) -> list[int | str]:
    """The labels, none of which may be None; `what` an image without one should be given."""
    known = [label for label in labels if label is not None]
    if len(known) < len(labels):
        raise DataError(
            f"all images have a label or none has; {len(labels) - len(known)} of {len(labels)} have none, the first is "
            f"{names[list(labels).index(None)]!r}: give it {what}, or take all as unlabelled"
        )
    return known


def numbered(labels: Sequence[int | str]) -> tuple[Codes | None, list[str] | None]:
    """Integers stand for themselves, all -1 for unlabelled; other labels are names, numbered in sorted order."""
    if all(isinstance(label, int) or INTEGER.fullmatch(label) for label in labels):
        codes = np.array([int(label) for label in labels])
        return (None, None) if (codes == -1).all() else (codes, None)
    return in_order([str(label) for label in labels])


def in_order(texts: Sequence[str]) -> tuple[Codes, list[str]]:
    """Each text's place among the distinct ones, and these, sorted: as numbers if all are integers."""
    names = sorted(set(texts))
    if all(map(INTEGER.fullmatch, names)):
        names.sort(key=int)
    number = {name: i for i, name in enumerate(names)}
    return np.array([number[text] for text in texts], np.int64), names


def renumbered(labels: Codes | None, old: Sequence[str], new: Sequence[str]) -> Codes | None:
    """Labels that number the classes `old` -> the same by `new`, matched by name; all that occur must be there."""
    names = [str(name) for name in new]
    number = {name: i for i, name in enumerate(names)}
    if len(number) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"classes have different names; {twice!r} comes twice: rename one")
    if labels is None:
        return None
    missing = [old[i] for i in np.unique(labels).tolist() if old[i] not in number]
    if missing:
        some = ", ".join(map(repr, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise DataError(
            f"every class must be one of the {len(names)} given; {len(missing)} are not: {some}: "
            "rename or remove them, or take the images as unlabelled"
        )
    return np.array([number.get(name, -1) for name in old], np.int64)[labels]
