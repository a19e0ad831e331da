"""Files by path or URL: reading whole files and parts of them, sizes, and joining of paths.

Nothing here keeps a file system or an open file: connections do not survive a fork, and worker processes are forked.
"""

from __future__ import annotations

import io
import itertools
import os
import posixpath
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from dissensus._core.errors import DataError
from dissensus._core.places import as_text, filesystem, is_url, place, storage_problem

PathLike = str | os.PathLike[str]
LISTINGS_AT_ONCE = 16
LINE = 2**16  # characters
CHUNK = 2**20  # bytes that are read from the web at a time
MAX_BYTES = 2**28  # of one image file; a larger one is not read


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


def open_file(path: str) -> BinaryIO:
    """Open a local file for reading; raise OSError for a pipe, a device or a socket, which may never end."""
    _check_kind(os.stat(path).st_mode)  # before it is opened, to which a device may react
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it
    try:
        _check_kind(os.fstat(file.fileno()).st_mode)  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def _check_kind(mode: int) -> None:
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder raises an error that says so
        raise OSError("not a regular file")


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe is not waited for


def check_size(size: int) -> None:
    """Raise OSError if an image file of so many bytes is not read."""
    if size > MAX_BYTES:
        raise OSError(f"{size / 1e6:,.0f} MB, more than the limit of {MAX_BYTES / 1e6:.0f} MB")


def read_bytes(path: str) -> bytes:
    """Return the contents of an image file; raise OSError if it is not a regular file, or larger than `MAX_BYTES`."""
    if is_url(path):
        try:
            data = read_part(path, 0, MAX_BYTES + 1)
        except Exception as error:  # each library has its own
            if "range not satisfiable" not in str(error).lower().replace("is ", ""):
                raise
            data = b""  # an empty file has no range of bytes
    else:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            check_size(size)
            data = file.read(size + 1) or b""  # not to the end: those of /proc have none, and None is no data yet
    check_size(len(data))
    return data


def read_part(path: str, start: int, size: int) -> bytes:
    """Return up to `size` bytes of a file from `start` on, at a URL by one request."""
    if is_url(path) and size:
        fs, inside = storage(path)
        if "http" in fs.protocol:
            return _read_web(fs, inside, start, size)
        return cast(bytes, fs.cat_file(inside, start=start, end=start + size))
    if is_url(path):
        return b""
    with open_file(path) as file:
        file.seek(start)
        return file.read(size)


def _read_web(fs: Any, url: str, start: int, size: int) -> bytes:
    """Read as `read_part`, and no more if the server sends more; fsspec reads the whole answer."""
    headers = {**fs.kwargs.get("headers", {}), "Range": f"bytes={start}-{start + size - 1}"}
    with fs.open(url, "rb", block_size=0, size=size, headers=headers) as file:  # a stream; no request for its size
        if start and file.r.status != 206:
            raise OSError("the server sends whole files only")
        data = bytearray()
        while len(data) < size and (chunk := file.read(min(CHUNK, size - len(data)))):
            data += chunk
    return bytes(data)


@contextmanager
def opened(path: str, *, seeks: bool = False) -> Iterator[BinaryIO]:
    """Open a file for reading; raise OSError if it must be able to seek and is on a web server that states no size."""
    if is_url(path):
        fs, inside = storage(path)
        with fs.open(inside, "rb") as file:
            if seeks and "http" in fs.protocol and file.size is None:
                raise OSError("the server does not say how large it is")
            yield file
    else:
        with open_file(path) as file:
            yield file


def lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8; raise as `lines_of` does."""
    with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        yield from lines_of(text, path)


def lines_of(text: TextIO, name: str) -> Iterator[str]:
    """Yield the lines of a text; raise DataError for a line that is too long to hold a path, or never ends."""
    for number in itertools.count(1):
        line = text.readline(LINE)
        if len(line) == LINE:
            raise DataError(f"lines have fewer than {LINE:,} characters; line {number} of {name} has more: check it")
        if not line:
            return
        yield line


def sizes_of(paths: Iterable[str]) -> NDArray[np.int64]:
    """Return the bytes of files; -1 where a file cannot be examined, for reading it will say why.

    The folders of URLs are listed, each by one request, for a request per file takes too long.
    """
    sizes = []
    remote: dict[str, list[int]] = {}  # the positions of the files in each folder
    urls: dict[int, str] = {}
    for i, path in enumerate(paths):
        if path.startswith(("http://", "https://")):  # pages that list files do not state their sizes
            sizes.append(-1)
        elif is_url(path):
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
