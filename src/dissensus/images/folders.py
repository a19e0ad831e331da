"""A folder of images, or of class folders with images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from dissensus._core.errors import DataError
from dissensus.images.decoding import SUFFIXES
from dissensus.images.labels import by_folder
from dissensus.images.listing import Listing, PathLike, explained, size_of
from dissensus.images.readers import Files
from dissensus.images.tars import PACKED, packed


def list_folder(root: PathLike, unlabelled: bool) -> Listing:
    """Every image beneath, sorted by path and labelled by first folder; names are paths under the root."""
    root = os.path.abspath(root)
    found, folders = _walk(root)
    if not found:
        raise _no_images(root)
    names = sorted(found)
    labels, classes = (None, None) if unlabelled else by_folder([name.split("/") for name in names], root)
    if classes is not None and (empty := sorted(folders - set(classes))):
        raise DataError(
            f"every class folder holds images; {os.path.join(root, empty[0])} holds none: "
            "add some, delete the folder, or hide it with a leading dot"
        )
    return Listing(
        names=names, reader=Files(root), sizes=[found[name] for name in names], labels=labels, classes=classes
    )


def _no_images(root: str) -> DataError:
    if compressed := sorted(name for name in os.listdir(root) if name.lower().endswith(PACKED)):
        return packed(os.path.join(root, compressed[0]))
    return DataError(
        f"a folder of images holds files ending in {' '.join(SUFFIXES)}; {root} holds none: check the path"
    )


def _walk(root: str) -> tuple[dict[str, int], set[str]]:
    """Every image beneath -> its size, by posix path under `root`; and the folders directly in `root`."""
    found: dict[str, int] = {}
    folders: set[str] = set()
    todo: list[tuple[str, frozenset[str]]] = [("", frozenset([os.path.realpath(root)]))]
    with explained(root):
        while todo:
            prefix, above = todo.pop()
            with os.scandir(os.path.join(root, prefix)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        real = os.path.realpath(entry.path)
                        if real in above:
                            continue  # a link back up, which would go round without end
                        if not prefix:
                            folders.add(entry.name)
                        todo.append((f"{prefix}{entry.name}/", above | {real}))
                    elif entry.name.lower().endswith(SUFFIXES) and (entry.is_file() or entry.is_symlink()):
                        found[prefix + entry.name] = size_of(entry.path)
    return found, folders


def walk(paths: Iterable[str]) -> Iterator[str]:
    """Yield every path as given and, of a folder, every image below it, sorted within each folder."""
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for folder, inner, files in os.walk(path):
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(files):
                if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                    yield os.path.join(folder, name)
