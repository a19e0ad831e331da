"""The suite `folders`: a folder of class folders, or of folders that are named by their roles."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from dissensus._core.errors import DissensusError
from dissensus.suites._recipe import Recipe
from dissensus.suites._rules import make

NAME = "folders"
SUMMARY = "Your own images: class folders, or train/, id/, held-out/, shift/NAME/, ood/NAME/ under --root."
TESTS = ("id", "val", "test")  # names of the folder of the id set
NAMES = ("train", *TESTS, "held-out", "disagreement", "shift", "ood")
USES = {"held-out": "to calibrate on", "id": "to test on"}  # sets that can be taken from the training images


def recipe_of(root: Path) -> Recipe:
    """Return the recipe of the images under a folder.

    If none of the names in `NAMES` is there, the folder is one of class folders. Each of the sets `id` and `held-out`
    that has no folder takes a fifth of each class of the training images.

    Raises:
        DissensusError: If `root` is not a folder, or two sets have the same name.
    """
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is not: check the path")
    present = [name for name in NAMES if (root / name).exists()]
    train = "train" if present else "."
    places = {"id": next((name for name in TESTS if name in present), None)}
    places |= {name: name if name in present else None for name in ("held-out", "disagreement")}
    split = [role for role in USES if places[role] is None]
    cuts = [round(1 - 0.2 * (len(split) - i), 1) for i in range(len(split) + 1)]
    parts: dict[str, Any] = dict(zip(["train", *split], pairwise([0, *cuts]), strict=True)) if split else {}

    remedy = f"move the class folders into train/, or rename {present[0]}" if present else "add class folders"
    sets: dict[str, dict[str, Any]] = {"train": {"role": "train", "images": train, "get": remedy}}
    for role, place in places.items():
        if place is not None or role in split:
            sets[role] = {"role": role, "images": place or train, "get": f"add images, or a folder {role}/"}
    for role, part in parts.items():
        sets[role]["part"] = part
    for role in ("shift", "ood"):
        for path in sorted((root / role).glob("[!.]*")):
            name = path.name if path.is_dir() else path.stem
            if name in sets:
                raise DissensusError(f"sets must have different names; {root} has {name!r} twice: rename one")
            sets[name] = {"role": role, "images": f"{role}/{path.name}"}
    title = root.resolve().name
    values = {"name": NAME, "title": title, "summary": f"Images of {title}.", "sets": sets, "note": _note(split)}
    return make(values, str(root))


def _note(split: list[str]) -> str:
    if not split:
        return ""
    absent = " and ".join(f"no {role}/" for role in split)
    uses = " and ".join(f"a fifth {'' if i else 'of each class '}{USES[role]}" for i, role in enumerate(split))
    return f"there is {absent}, so it sets aside {uses}"
