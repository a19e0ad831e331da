"""Examples to click: images of a folder, or small copies that an evaluation saved with the run."""

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
from dissensus.evaluation.examples import Example as Saved
from dissensus.images import BadImage, decode, walk
from dissensus.images.thumbnails import PIXELS

COUNT = 12
OF_ROLE = {"id": ("least", 4), "ood": ("most", 3), "shift": ("most", 1)}


@dataclass(frozen=True)
class Example:
    """An image to try."""

    name: str
    caption: str
    data: bytes  # the file's content
    picture: Image.Image  # a small copy


def of_folder(folder: str) -> list[Example]:
    """Return the first readable images of a folder."""
    if not Path(folder).is_dir():
        raise DataError(f"--examples must name a folder of images; there is none at {folder}: check the path")
    examples = list(islice(_readable(walk([folder])), COUNT))
    if not examples:
        raise DataError(f"--examples must hold images; {folder} has none that can be read: give another folder")
    return examples


def of_run(run: Path) -> list[Example]:
    """Return some images that the run was evaluated on, ID first, then OOD and shifted; none if it was not."""
    if not saved.is_saved(run):
        return []
    sets = saved.load(run).about.sets
    order = {role: place for place, role in enumerate(OF_ROLE)}
    examples: list[Example] = []
    for entry in sorted((s for s in sets if s.role in order), key=lambda s: order[s.role]):
        heading, count = OF_ROLE[entry.role]
        shown = [e for e in entry.examples.get(heading, ()) if e.picture]
        examples += [_of_evaluation(example, entry.name) for example in shown[:count]]
    return examples[:COUNT]


def _readable(paths: Iterator[str]) -> Iterator[Example]:
    for path in paths:
        try:
            data = Path(path).read_bytes()
            picture = decode(data)
        except (BadImage, OSError):
            continue
        picture.thumbnail((PIXELS * 2, PIXELS * 2))
        yield Example(Path(path).name, Path(path).stem, data, picture)


def _of_evaluation(example: Saved, caption: str) -> Example:
    picture = decode(base64.b64decode(example.picture.partition(",")[2]))
    file = io.BytesIO()
    _native(picture).save(file, "PNG")
    return Example(f"{caption} {Path(example.place).name}", caption, file.getvalue(), picture)


def _native(picture: Image.Image) -> Image.Image:
    """Undo the enlargement of a tiny image by `thumbnail`: to the trunk the edges of its pixels would be lines."""
    for width in range(1, picture.width // 2):
        height = max(1, round(picture.height * width / picture.width))
        small = picture.resize((width, height), Image.Resampling.NEAREST)
        again = small.resize(picture.size, Image.Resampling.NEAREST)
        if ImageChops.difference(again, picture).getbbox() is None:
            return small
    return picture
