"""Examples to click: images of a folder, or the small copies that an evaluation left in the run."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from PIL import Image, ImageChops

from dissensus._core.errors import DataError
from dissensus.evaluation import saved
from dissensus.images import BadImage, decode, walk
from dissensus.images.thumbnails import PIXELS

COUNT = 12
OF_ROLE = {"id": ("least", 4), "ood": ("most", 3), "shift": ("most", 1)}


@dataclass(frozen=True)
class Example:
    """A file to try, what it is of, and a small picture of it."""

    name: str
    caption: str
    data: bytes
    picture: Image.Image


def of_folder(folder: str) -> list[Example]:
    """The first readable images of a folder."""
    if not Path(folder).is_dir():
        raise DataError(f"--examples must name a folder of images; there is none at {folder}: check the path")
    found = list(islice(_readable(walk([folder])), COUNT))
    if not found:
        raise DataError(f"--examples must hold images; {folder} has none that can be read: give another folder")
    return found


def of_run(run: Path) -> list[Example]:
    """Some that the run was evaluated on: in distribution first, then OOD and shifted ones; none if it was not."""
    if not saved.is_saved(run):
        return []
    sets = saved.load(run).about.sets
    order = {role: place for place, role in enumerate(OF_ROLE)}
    found: list[Example] = []
    for entry in sorted((s for s in sets if s.role in order), key=lambda s: order[s.role]):
        heading, count = OF_ROLE[entry.role]
        shown = [e for e in entry.examples.get(heading, ()) if e.picture]
        found += [_of_evaluation(example, entry.name) for example in shown[:count]]
    return found[:COUNT]


def _readable(paths: Iterator[str]) -> Iterator[Example]:
    for path in paths:
        try:
            data = Path(path).read_bytes()
            picture = decode(data)
        except (BadImage, OSError):
            continue
        picture.thumbnail((PIXELS * 2, PIXELS * 2))
        yield Example(Path(path).name, Path(path).stem, data, picture)


def _of_evaluation(example: saved.Example, caption: str) -> Example:
    picture = decode(base64.b64decode(example.picture.partition(",")[2]))
    file = io.BytesIO()
    _native(picture).save(file, "PNG")
    return Example(f"{caption} {Path(example.name).name}", caption, file.getvalue(), picture)


def _native(picture: Image.Image) -> Image.Image:
    """A tiny image as it was before `thumbnail` enlarged it: the trunk would take the edges of its pixels for lines."""
    for width in range(1, picture.width // 2):
        height = max(1, round(picture.height * width / picture.width))
        small = picture.resize((width, height), Image.Resampling.NEAREST)
        again = small.resize(picture.size, Image.Resampling.NEAREST)
        if ImageChops.difference(again, picture).getbbox() is None:
            return small
    return picture
