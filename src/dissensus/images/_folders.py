"""Folders of images, local or at a URL: every image below them, with its size."""

from __future__ import annotations

import itertools
import os
import posixpath
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError
from dissensus._core.places import is_url
from dissensus.images._files import files_below, join
from dissensus.images._labels import Coder, folder_labels
from dissensus.images._listing import Files, Listing, PassedOver, listing_errors
from dissensus.images._tars import is_hidden
from dissensus.images.decoding import SUFFIXES
from dissensus.images.names import Builder, Names

VISITS = 100  # of one folder by links: thirty folders with two links each to the next are a billion


class Folder(NamedTuple):
    """What a folder at a URL holds, below it and not hidden: paths with sizes."""

    url: str
    files: list[tuple[str, int]]

    @classmethod
    def find(cls, url: str) -> Folder:
        """List a folder by one request."""
        url = url.rstrip("/")
        with listing_errors(url):
            files = files_below(url)
        return cls(url, [(path, size) for path, size in files if not is_hidden(path)])

    @property
    def top(self) -> list[str]:
        """Names of the files and folders in the folder itself, sorted; those of folders end in a slash."""
        return sorted({name + slash for name, slash, _ in (path.partition("/") for path, _ in self.files)})


def list_folder(root: str, unlabelled: bool) -> Listing:
    """List the images below a local folder."""
    root = os.path.abspath(root)
    names, sizes = Builder(), array("q")
    with listing_errors(root):
        for name, entry in _scan(root):
            names.add(name)
            sizes.append(_size(entry))
        with os.scandir(root) as scan:
            folders = {entry.name for entry in scan if is_folder(entry) and not os.path.samefile(entry.path, root)}
    return _listing(root, names, sizes, {name for name in folders if not name.startswith(".")}, unlabelled)


def list_remote_folder(folder: Folder, unlabelled: bool) -> Listing:
    """List the images below a folder at a URL."""
    names, sizes = Builder(), array("q")
    others = PassedOver()
    for path, size in folder.files:
        if path.lower().endswith(SUFFIXES):
            names.add(path)
            sizes.append(size)
        else:
            others.add(path)
    if names:
        others.report(folder.url)
    folders = {name[:-1] for name in folder.top if name.endswith("/")}
    return _listing(folder.url, names, sizes, folders, unlabelled)


def walk_folder(root: str) -> Iterator[str]:
    """Yield the path of every image below a folder, sorted within each folder; of a URL that is no folder, itself."""
    if not is_url(root):
        for _, images in itertools.groupby(_scan(root), lambda found: posixpath.dirname(found[0])):
            yield from (os.path.join(root, name) for name in sorted(name for name, _ in images))
        return
    paths, others = list[str](), PassedOver()
    for path, _ in Folder.find(root).files:
        if path.lower().endswith(SUFFIXES):
            paths.append(path)
        elif path:  # "" is the URL itself, which is read as it is
            others.add(path)
    if paths:
        others.report(root)
    else:
        yield root  # to be read, and reported
    # the images of a folder before the folders in it, as for local folders
    order = sorted(paths, key=lambda path: [*((1, part) for part in path.split("/")[:-1]), (0, path.split("/")[-1])])
    yield from (join(root.rstrip("/"), path) for path in order)


def _listing(root: str, names: Builder, sizes: array[int], folders: set[str], unlabelled: bool) -> Listing:
    found = names.names()
    order: NDArray[np.int64] = found.argsort()
    found = found.take(order)
    labels, classes = (None, None) if unlabelled else folder_labels(_tops(found), found, root)
    if classes is not None and (empty := sorted(folders - set(classes))):
        raise DataError(
            f"every class folder holds images; {join(root, empty[0])} holds none: "
            "add some, delete the folder, or hide it with a leading dot"
        )
    known = np.frombuffer(sizes, np.int64)[order] if len(found) else np.zeros(0, np.int64)
    return Listing(names=found, reader=Files(root), sizes=known, labels=labels, classes=classes)


def _tops(names: Names) -> Coder:
    return Coder.of(top if slash else "" for top, slash, _ in (name.partition("/") for name in names))


def _scan(root: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the path under `root` of every image below it, by folder; links are followed, hidden files left out.

    Whatever has the ending of an image is one, also a pipe, a device or a link to itself: reading it says what is
    wrong.
    """
    folders = [("", frozenset([os.path.realpath(root)]))]
    others, visits, images = PassedOver(), Counter[str](), 0
    while folders:
        prefix, above = folders.pop()
        inner = []
        with listing_errors(root), os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if is_folder(entry):
                    real = os.path.realpath(entry.path)
                    visits[real] += 1
                    if visits[real] > VISITS:
                        raise DataError(
                            f"a folder is reached by up to {VISITS} ways; {real} is by more, through links to links: "
                            "remove some"
                        )
                    if real not in above:  # a link back up would never end
                        inner.append((f"{prefix}{entry.name}/", above | {real}))
                elif entry.name.lower().endswith(SUFFIXES):
                    images += 1
                    yield prefix + entry.name, entry
                else:
                    others.add(entry.name)
        folders += sorted(inner, reverse=True)
    if images:
        others.report(root)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or leads to one; a link to itself does not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:  # reading it will say why
        return -1
