"""Plain tars with class folders, or with the samples of a WebDataset: `key.jpg` beside `key.cls` or `key.json`."""

from __future__ import annotations

import bisect
import os
import posixpath
import tarfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from dissensus._core.errors import DataError
from dissensus._core.parsing import JSON_BYTES, json_value
from dissensus._core.places import as_text, is_url
from dissensus.images._files import PathLike, check_size, opened, read_part
from dissensus.images._labels import Coder, branches, folder_labels, label_values
from dissensus.images._listing import Listing, PassedOver, listing_errors
from dissensus.images.decoding import SUFFIXES, BadImage, decode, digest, file_errors
from dissensus.images.names import Builder

CLS_BYTES = 100  # of an integer and its line break
HEADER_BYTES = 2**20
LONG = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
)  # fmt: skip
T = TypeVar("T")
NOT_REGULAR = "not a regular file of its tar but a link, a device or a sparse file"


@dataclass(frozen=True)
class Tars:
    """Images that are members of plain tars; a place counts bytes as if the tars were laid end to end."""

    paths: tuple[str, ...]
    starts: tuple[int, ...]  # the place of each tar's first byte
    unlabelled: Mapping[int, str]  # why an image has no label, by its place
    identity = ""

    def load(self, name: str, place: int, size: int) -> tuple[Image.Image, str]:
        at = bisect.bisect_right(self.starts, place) - 1
        with file_errors():
            if size < 0:
                raise BadImage(NOT_REGULAR)
            if place in self.unlabelled:
                raise BadImage(self.unlabelled[place])
            check_size(size)
            data = read_part(self.paths[at], place - self.starts[at], size)
        if len(data) < size:
            raise BadImage("truncated: its tar changed since it was listed")
        return decode(data), digest(data)


class Member(NamedTuple):
    """An image of a tar."""

    name: str
    offset: int
    size: int  # -1 if it is a link, a device or a sparse file


class Header(tarfile.TarInfo):
    """A header, of which those with long names and the like are bounded: tarfile reads them into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Header:
        """Read a header, and raise if its data cannot be right."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in LONG and header.size > HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header


@contextmanager
def tar_errors() -> Iterator[None]:
    """Turn whatever tarfile raises on a damaged or malicious tar into a TarError."""
    try:
        yield
    except (RecursionError, OverflowError) as error:  # a chain of headers; a size beyond that of any file
        raise tarfile.ReadError("headers that cannot be right") from error
    except DataError:
        raise
    except ValueError as error:  # of numbers in headers
        raise tarfile.ReadError(" ".join(str(error).split())[:100]) from error


class BadLabel(NamedTuple):
    """Why a sidecar holds no label; the image that it goes with is left out."""

    reason: str


class _Contents(NamedTuple):
    images: list[Member]
    sidecars: dict[str, int | str | BadLabel]  # the labels in .cls and .json members by name without suffix
    size: int  # of the tar

    def any_label(self) -> int | str:
        """Return a label that occurs, for images that are left out; raise DataError if none does."""
        for label in self.sidecars.values():
            if not isinstance(label, BadLabel):
                return label
        raise DataError(next(label.reason for label in self.sidecars.values() if isinstance(label, BadLabel)))


def list_tars(paths: Sequence[PathLike], unlabelled: bool) -> Listing:
    """List the images of all tars, in the order of their members; with several tars, names start with the tar's."""
    texts = [as_text(path) for path in paths]
    tars = [text if is_url(text) else os.path.abspath(text) for text in texts]
    names, folders, sidecars = Builder(), Coder(), Coder()
    places, sizes = array("q"), array("q")
    starts, bad = [0], dict[int, str]()
    for path in tars:
        contents = _read(path, unlabelled)
        prefix = f"{os.path.basename(path)}/" if len(tars) > 1 else ""
        for member in contents.images:
            names.add(prefix + member.name)
            folders.add(posixpath.dirname(member.name))
            sidecar = sidecar_of(member.name, contents.sidecars)
            if isinstance(sidecar, BadLabel):
                bad[starts[-1] + member.offset] = sidecar.reason
                sidecar = contents.any_label()
            sidecars.add(sidecar)
            places.append(starts[-1] + member.offset)
            sizes.append(member.size)
        starts.append(starts[-1] + contents.size)
    first = tars[0] if tars else "an empty list"
    if not len(names):
        raise DataError(f"a tar of images holds files ending in {' '.join(SUFFIXES)}; {first} holds none: check it")
    listed = names.names()
    codes, classes = None, None
    if not unlabelled and set(sidecars.values) != {None}:
        codes, classes = label_values(sidecars, listed, "a .cls or .json with its label")
    elif not unlabelled:
        codes, classes = folder_labels(branches(folders), listed, first)
    return Listing(
        names=listed,
        reader=Tars(tuple(tars), tuple(starts[:-1]), bad),
        sizes=np.frombuffer(sizes, np.int64),
        places=np.frombuffer(places, np.int64),
        labels=codes,
        classes=classes,
    )


def sidecar_of(name: str, sidecars: Mapping[str, T]) -> T | None:
    """Return the label that goes with an image, by the names of sidecars without suffix."""
    return sidecars.get(posixpath.splitext(name)[0], sidecars.get(sample_key(name)))


def sample_key(name: str) -> str:
    """Return what the members of a sample have in common: 7.left.jpg and 7.right.jpg may share 7.cls."""
    folder, file = posixpath.split(name)
    return posixpath.join(folder, file.split(".")[0])


def is_hidden(name: str) -> bool:
    """Whether a file, or a folder above it, begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def _read(path: str, unlabelled: bool) -> _Contents:
    images: list[Member] = []
    sidecars: dict[str, int | str | BadLabel] = {}
    others = PassedOver()
    with listing_errors(path), opened(path, seeks=True) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        try:
            with tar_errors(), tarfile.open(fileobj=file, mode="r:", tarinfo=Header) as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # else a million of them stay in memory
                    name = posixpath.normpath(member.name.lstrip("/"))
                    stem, suffix = posixpath.splitext(name)
                    if member.isdir() or is_hidden(name):
                        continue
                    plain = member.isreg() and not member.issparse()
                    if suffix.lower() in SUFFIXES:
                        images.append(Member(name, member.offset_data, member.size if plain else -1))
                    elif suffix not in (".cls", ".json"):
                        others.add(name)
                    elif plain and not unlabelled and (extracted := tar.extractfile(member)) is not None:
                        data = extracted.read(JSON_BYTES + 1)
                        try:
                            label: int | str | BadLabel | None = parse_sidecar(f"{name} in {path}", suffix, data)
                        except DataError as error:
                            label = BadLabel(str(error))
                        if label is not None:
                            sidecars[stem] = label
                end = tar.offset
            _check_end(file, end)
        except tarfile.TarError as error:
            whole = sum(member.offset + member.size <= size for member in images)
            raise DataError(
                f"a tar must be plain and whole; {path} is damaged, compressed or truncated after {whole} images "
                f"({error}): copy or create it again"
            ) from error
    if images:
        others.report(path)
    return _Contents(images, sidecars, size)


def _check_end(file: BinaryIO, end: int) -> None:
    """Raise on a damaged header or missing end mark, which tarfile takes for the end of the archive."""
    file.seek(end)
    mark = file.read(2**20)
    if len(mark) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("no end mark")
    if any(mark):
        raise tarfile.ReadError("a bad header, or a second tar after the first")


def parse_sidecar(name: str, suffix: str, data: bytes) -> int | str | None:
    """Return the label in a .cls or .json that goes with an image; raise DataError if it is none."""
    try:
        if suffix == ".cls":
            if len(data) > CLS_BYTES:
                raise ValueError(f"more than {CLS_BYTES} bytes")
            return int(data)
        value = json_value(data)
        label = value.get("label", value.get("cls")) if isinstance(value, dict) else None
        if label is not None and not isinstance(label, int | str):
            raise ValueError(f"a {type(label).__name__}")
    except ValueError as error:
        raise DataError(
            f"a label is an integer in a .cls, an integer or text in a .json; {name} has none, {error}: correct it"
        ) from error
    return label
