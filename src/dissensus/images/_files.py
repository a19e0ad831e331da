"""Files by path or URL: reading whole files and parts of them, sizes, and joining of paths.

Nothing here keeps a file system or an open file: connections do not survive a fork, and worker processes are forked.
"""

from __future__ import annotations

import io
import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from dissensus._core.places import as_text, filesystem, is_url, place, storage_problem

PathLike = str | os.PathLike[str]
LISTINGS_AT_ONCE = 16
# s3fs asks for the size first, to divide large files; images are small.
ONE_REQUEST = {protocol: {"max_concurrency": 1} for protocol in ("s3", "s3a")}


def several(paths: PathLike | Sequence[PathLike]) -> Sequence[PathLike]:
    """Return a list of paths as it is, and one path as a list."""
    return paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]


def storage(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path on it.

    Raises:
        DissensusError: If the protocol is unknown, or its package is not installed.
    """
    try:
        return filesystem(url)
    except (ImportError, ValueError):
        place(url)
        raise


def join(root: str, name: str) -> str:
    """Return the path or URL of a name below a folder; a name that is absolute or a URL is returned as it is."""
    if is_url(name):
        return as_text(name)
    return posixpath.join(root, name) if is_url(root) else os.path.join(root, name)


def shared_folders(folders: Collection[Sequence[str]]) -> int:
    """Return how many parts all paths of folders, given as their parts, begin with."""
    columns = enumerate(zip(*folders, strict=False))
    return next((i for i, parts in columns if len(set(parts)) > 1), min(map(len, folders), default=0))


def read_bytes(path: str) -> bytes:
    """Return the contents of a file."""
    if is_url(path):
        fs, inside = storage(path)
        return cast(bytes, fs.cat_file(inside, **ONE_REQUEST.get(path.partition("://")[0], {})))
    mode = os.stat(path).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        raise OSError("not a file")  # a pipe or a device, which may never end
    with open(path, "rb") as file:
        return file.read()


def read_part(path: str, start: int, size: int) -> bytes:
    """Return up to `size` bytes of a file from `start` on, at a URL by one request."""
    if is_url(path):
        fs, inside = storage(path)
        return cast(bytes, fs.cat_file(inside, start=start, end=start + size)) if size else b""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(size)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a file for reading; it can seek."""
    if is_url(path):
        fs, inside = storage(path)
        with fs.open(inside, "rb") as file:
            yield file
    else:
        with open(path, "rb") as file:
            yield file


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8."""
    with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        yield from text


def sizes_of(paths: Iterable[str]) -> NDArray[np.int64]:
    """Return the bytes of files; -1 where a file cannot be examined, for reading it will say why.

    The folders of URLs are listed, each by one request, for a request per file takes too long.
    """
    sizes = []
    remote: dict[str, list[int]] = {}  # the positions of the files in each folder
    urls: dict[int, str] = {}
    for i, path in enumerate(paths):
        if is_url(path):
            remote.setdefault(path.rpartition("/")[0], []).append(i)
            urls[i] = path.rpartition("/")[2]
            sizes.append(-1)
        else:
            sizes.append(_size(path))
    if remote:
        with ThreadPoolExecutor(LISTINGS_AT_ONCE) as pool:
            for positions, listed in zip(remote.values(), pool.map(_sizes_in, remote), strict=True):
                for i in positions:
                    sizes[i] = listed.get(urls[i], -1)
    return np.array(sizes, np.int64)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return -1


def _sizes_in(folder: str) -> dict[str, int]:
    fs, inside = storage(folder + "/")
    try:
        fs.invalidate_cache()
        entries = fs.ls(inside, detail=True)
    except Exception as error:
        if storage_problem(error) is None:
            raise
        return {}  # not there, or the user may read it but not list it
    return {entry["name"].rpartition("/")[2]: known_size(entry) for entry in entries}


def size_now(path: str) -> int:
    """Return the bytes of one file, by a request; -1 if storage does not say. Raise if it is not there."""
    if not is_url(path):
        return os.stat(path).st_size
    fs, inside = storage(path)
    return known_size(fs.info(inside))


def known_size(entry: dict[str, Any]) -> int:
    """Return the bytes of an entry of a listing; -1 if it does not say."""
    size = entry.get("size")
    return -1 if size is None else int(size)


def files_below(url: str) -> Sequence[tuple[str, int]]:
    """Return path below the URL and size of all files there, by one listing; that of a file itself is ""."""
    fs, inside = storage(url)
    fs.invalidate_cache()  # listings of objects may be minutes old
    inside = inside.rstrip("/")
    entries = fs.find(inside, detail=True)
    fs.invalidate_cache()  # which holds a copy of the listing
    return [(path.rstrip("/")[len(inside) + 1 :], known_size(entry)) for path, entry in entries.items()]
