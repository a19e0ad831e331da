"""Plain tars with class folders, or with the samples of a WebDataset: `key.jpg` beside `key.cls` or `key.json`."""

from __future__ import annotations

import bisect
import json
import os
import posixpath
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from dissensus._core.errors import DataError
from dissensus.images._listing import Listing, PathLike, folder_labels, label_values, listing_errors
from dissensus.images.decoding import SUFFIXES, BadImage, decode, file_errors


@dataclass(frozen=True)
class Tars:
    """Images that are members of plain tars; a place counts bytes as if the tars were laid end to end."""

    paths: tuple[str, ...]
    starts: tuple[int, ...]  # the place of each tar's first byte
    identity = ""

    def read(self, name: str, place: int, size: int) -> Image.Image:
        at = bisect.bisect_right(self.starts, place) - 1
        with file_errors(), open(self.paths[at], "rb") as file:
            file.seek(place - self.starts[at])
            data = file.read(size)
        if len(data) < size:
            raise BadImage("truncated: its tar changed since it was listed")
        return decode(data)


class Member(NamedTuple):
    """An image of a tar."""

    name: str
    offset: int
    size: int


def list_tars(paths: Sequence[PathLike], unlabelled: bool) -> Listing:
    """List the images of all tars, in the order of their members; with several tars, names start with the tar's."""
    tars = [os.path.abspath(path) for path in paths]
    names: list[str] = []
    members: list[Member] = []
    sidecars: list[int | str | None] = []
    places: list[int] = []
    starts = [0]
    for path in tars:
        images, by_stem = _read(path)
        prefix = f"{os.path.basename(path)}/" if len(tars) > 1 else ""
        names += [prefix + member.name for member in images]
        members += images
        sidecars += [_label(member.name, by_stem) for member in images]
        places += [starts[-1] + member.offset for member in images]
        starts.append(starts[-1] + os.path.getsize(path))
    first = tars[0] if tars else "an empty list"
    if not names:
        raise DataError(f"a tar of images holds files ending in {' '.join(SUFFIXES)}; {first} holds none: check it")
    labels: list[int] | list[str] | None = None
    if not unlabelled and set(sidecars) != {None}:
        labels = label_values(sidecars, names, "a .cls or .json with its label")
    elif not unlabelled:
        labels = folder_labels(_branches([member.name for member in members]), first)
    return Listing(
        names=names,
        reader=Tars(tuple(tars), tuple(starts[:-1])),
        sizes=[member.size for member in members],
        places=places,
        labels=labels,
    )


def _branches(names: Sequence[str]) -> list[list[str]]:
    """Split paths into parts, without the folders that all of them share."""
    trees = [name.split("/") for name in names]
    while len({tree[0] for tree in trees}) == 1 and all(len(tree) > 1 for tree in trees):
        trees = [tree[1:] for tree in trees]
    return trees


def _label(name: str, sidecars: dict[str, int | str]) -> int | str | None:
    folder, file = posixpath.split(name)
    key = posixpath.join(folder, file.split(".")[0])  # 7.left.jpg and 7.right.jpg may share 7.cls
    return sidecars.get(posixpath.splitext(name)[0], sidecars.get(key))


def _read(path: str) -> tuple[list[Member], dict[str, int | str]]:
    """Return the images of a tar, and the labels in its .cls and .json members by name without suffix."""
    images: list[Member] = []
    sidecars: dict[str, int | str] = {}
    with listing_errors(path):
        try:
            with tarfile.open(path, "r:") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # else a million of them stay in memory
                    name = posixpath.normpath(member.name.lstrip("/"))
                    stem, suffix = posixpath.splitext(name)
                    if not member.isreg() or member.issparse() or any(s.startswith(".") for s in name.split("/")):
                        continue
                    if suffix.lower() in SUFFIXES:
                        images.append(Member(name, member.offset_data, member.size))
                    elif suffix in (".cls", ".json") and (file := tar.extractfile(member)) is not None:
                        label = _sidecar(f"{name} in {path}", suffix, file.read())
                        if label is not None:
                            sidecars[stem] = label
                end = tar.offset
            _check_end(path, end)
        except tarfile.TarError as error:
            whole = sum(member.offset + member.size <= os.path.getsize(path) for member in images)
            raise DataError(
                f"a tar must be plain and whole; {path} is damaged, compressed or truncated after {whole} images "
                f"({error}): copy or create it again"
            ) from error
    return images, sidecars


def _check_end(path: str, end: int) -> None:
    """Raise on a damaged header or missing end mark, which tarfile takes for the end of the archive."""
    with open(path, "rb") as raw:
        raw.seek(end)
        mark = raw.read(2**20)
    if len(mark) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("no end mark")
    if any(mark):
        raise tarfile.ReadError("a bad header, or a second tar after the first")


def _sidecar(name: str, suffix: str, data: bytes) -> int | str | None:
    """Return the label in a .cls or .json that goes with an image."""
    try:
        if suffix == ".cls":
            return int(data)
        value = json.loads(data)
        label = value.get("label", value.get("cls")) if isinstance(value, dict) else None
        if label is not None and not isinstance(label, int | str):
            raise ValueError(f"a {type(label).__name__}")
    except ValueError as error:
        raise DataError(
            f"a label is an integer in a .cls, an integer or text in a .json; {name} has none, {error}: correct it"
        ) from error
    return label
