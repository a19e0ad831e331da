"""Shards of tars, read from front to back; samples are grouped as WebDataset does."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple, Protocol

from PIL import Image

from dissensus._core.errors import DataError, DissensusError
from dissensus._core.places import is_url, storage_errors
from dissensus.images._files import check_size, opened, read_part, shared_folders, size_now, sizes_of
from dissensus.images._listing import listing_errors
from dissensus.images._tars import NOT_REGULAR, Header, is_hidden, parse_sidecar, sample_key, tar_errors
from dissensus.images.decoding import SUFFIXES, BadImage, decode, digest

END_BYTES = 2**16  # of either end of a tar, which its fingerprint covers
READS_AT_ONCE = 32
WANTED = (*SUFFIXES, ".cls", ".json")
DECOMPRESS: dict[tuple[str, ...], Callable[[BinaryIO], Any]] = {
    (".gz", ".tgz"): lambda file: gzip.GzipFile(fileobj=file),
    (".bz2", ".tbz2"): bz2.BZ2File,
    (".xz", ".txz"): lzma.LZMAFile,
}


class Streamed(NamedTuple):
    """A sample of a stream: an image, or the error why there is none."""

    name: str
    image: Image.Image | None  # RGB
    error: str | None
    label: str | None  # the name of the class, or its number as text
    digest: str  # of the encoded file, as `digest` has it; "" if it could not be fetched


class Shards(Protocol):
    """A source of shards; must be picklable."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the shards are called."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes, if known beforehand."""

    def fingerprint(self, *facts: object) -> str:
        """Return a sha256 of what the shards are, and of these facts."""

    def samples(self, shard: int) -> Iterator[Streamed]:
        """Yield the samples of a shard."""


@dataclass(frozen=True)
class TarShards:
    """Tars at paths or URLs."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]  # in bytes; -1 if unknown
    classes = None

    @classmethod
    def find(cls, paths: Sequence[str]) -> TarShards:
        """Look the tars up; raise if one is missing."""
        if not paths:
            raise DataError("a stream needs at least one shard; got none: check the pattern")
        names = tuple(path if is_url(path) else os.path.abspath(path) for path in paths)
        sizes = sizes_of(names).tolist()
        for i, name in enumerate(names):
            if sizes[i] < 0:  # missing, or in a folder that cannot be listed
                with listing_errors(name):
                    sizes[i] = size_now(name)
        return cls(names, tuple(sizes))

    def fingerprint(self, *facts: object) -> str:
        paths = [name.split("/") for name in self.names]
        shared = shared_folders([path[:-1] for path in paths])
        relative = ["/".join(path[shared:]) for path in paths]
        return hashlib.sha256(json.dumps([relative, self.sizes, self._ends, *facts]).encode()).hexdigest()

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        """A sha256 of the first and last bytes of each tar: sizes are multiples of 512 bytes or more and say little.

        A change in the middle of a large tar goes unnoticed. Dates and ETags would notice, but a copy has others.
        """
        with ThreadPoolExecutor(min(READS_AT_ONCE, len(self.names))) as pool:
            return tuple(pool.map(_digest_of_ends, self.names, self.sizes))

    def samples(self, shard: int) -> Iterator[Streamed]:
        from webdataset.tariterators import group_by_keys

        path = self.names[shard]
        prefix = f"{os.path.basename(path)}/" if len(self.names) > 1 else ""  # as in an `ImageSet` of several tars
        try:
            with ExitStack() as stack:
                # Errors of storage only, not of the code that uses the samples: a generator does not see those.
                stack.enter_context(storage_errors(path))
                file = stack.enter_context(opened(path))
                for suffixes, decompress in DECOMPRESS.items():
                    if path.lower().endswith(suffixes):
                        file = stack.enter_context(decompress(file))
                for sample in group_by_keys(_members(file, path), lcase=False):
                    for image in _images(sample):
                        yield image._replace(name=prefix + image.name)
        except DissensusError:
            raise
        except (tarfile.TarError, OSError, EOFError, ValueError, lzma.LZMAError) as error:
            raise DataError(
                f"a shard must be a whole tar; {path} is missing, damaged or truncated ({error}): "
                "copy or create it again"
            ) from error


def _digest_of_ends(path: str, size: int) -> str:
    with listing_errors(path):
        if size <= 2 * END_BYTES:
            data = read_part(path, 0, size if size >= 0 else END_BYTES)
        else:
            data = read_part(path, 0, END_BYTES) + read_part(path, size - END_BYTES, END_BYTES)
    return hashlib.sha256(data).hexdigest()


def _members(file: BinaryIO, path: str) -> Iterator[dict[str, Any]]:
    """Yield the images and labels of a tar as WebDataset does, but raise where it ends without an end mark.

    WebDataset's own reader takes a truncated tar for a whole one.
    """
    blocks, key, read = _Blocks(file), "", 0  # bytes of the members with this key, which are in memory together
    with (
        tar_errors(),
        tarfile.open(fileobj=blocks, mode="r|", bufsize=tarfile.RECORDSIZE, tarinfo=Header) as tar,  # type: ignore[call-overload]
    ):
        while (member := tar.next()) is not None:
            tar.members.clear()
            name = posixpath.normpath(member.name.lstrip("/"))
            if member.isdir() or is_hidden(name) or posixpath.splitext(name)[1].lower() not in WANTED:
                continue
            if (now := sample_key(name)) != key:
                key, read = now, 0
            data = _content(tar, member, read)
            read += len(data) if isinstance(data, bytes) else 0
            yield {"fname": name, "data": data, "__url__": path}
        blocks.check_end(tar.offset)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, read: int) -> bytes | BadImage:
    """Return the content of a member, or why it is not read; `read` bytes of its sample are in memory."""
    file = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if file is None:
        return BadImage(NOT_REGULAR)
    try:
        check_size(read + member.size)
    except OSError as error:
        return BadImage(str(error))
    return file.read()


class _Blocks:
    """A file that remembers the last blocks it gave to tarfile, which reads ahead."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.window, self.position = file, b"", 0

    def read(self, size: int) -> bytes:
        data = self.file.read(size)
        self.position += len(data)
        self.window = (self.window + data)[-2 * tarfile.RECORDSIZE :]
        return data

    def check_end(self, end: int) -> None:
        """Raise unless everything from byte `end` on is the end mark."""
        mark = self.window[len(self.window) - (self.position - end) :]
        if len(mark) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("no end mark")
        if any(mark) or any(self.file.read(2**20)):  # not to the end, which may be far
            raise tarfile.ReadError("a bad header, or a second tar after the first")


def _images(sample: dict[str, Any]) -> Iterator[Streamed]:
    """Yield the images of a group of members with one key."""
    key = sample["__key__"]
    for suffix, data in sample.items():
        if not f".{suffix}".lower().endswith(SUFFIXES) or suffix.startswith("__"):
            continue
        name, image, error, label = f"{key}.{suffix}", None, None, None
        try:
            label = _label(key, suffix, sample)
            if isinstance(data, BadImage):
                raise data
            image = decode(data)
        except (BadImage, DataError) as problem:
            error = str(problem)
        yield Streamed(name, image, error, label, digest(data) if isinstance(data, bytes) else "")


def _label(key: str, suffix: str, sample: dict[str, Any]) -> str | None:
    stem = suffix.rpartition(".")[0]
    for kind in (".cls", ".json"):
        for sidecar in (f"{stem}{kind}" if stem else kind[1:], kind[1:]):  # 7.left.jpg may have 7.left.cls or 7.cls
            if isinstance(data := sample.get(sidecar), bytes):
                label = parse_sidecar(f"{key}.{sidecar}", kind, data)
                if label is not None:
                    return None if label == -1 else str(label)
    return posixpath.basename(posixpath.dirname(key)) or None
