"""dissensus suite: what a suite of images needs, and what of it is there."""

from __future__ import annotations

import shlex
from pathlib import Path

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say

EXAMPLE = "dissensus suite check pacs --root data"
PLAIN: Arguments = {
    "action": {"choices": ("check",), "help": "check: say what is there, what is missing and how to get it"},
    "name": {"help": "a suite of images (dissensus list suites), or a YAML file"},
}


def suite(action: str, name: str, root: str = ".") -> None:
    """Look for the sets of a suite: what is there, what is missing and how to get it.

    Ends with exit code 2 if the suite cannot be run: the training set or the id set is missing, or a set is unusable.

    Args:
        action: check.
        name: a suite of images, or a YAML file.
        root: the folder that holds the images.
    """
    from dissensus import suites
    from dissensus.suites import places

    recipe = suites.recipe(name, Path(root))
    found = places.check(recipe, Path(root))
    rows = [("set", "role", "where", "images", "classes", "")]
    for f in found:
        count = f"{f.images:,}" + (f" x {f.sets}" if f.sets > 1 else "") if f.images else "-"
        state = f.state if not f.text else f"{f.state}: {f.text}" if f.state != "there" else f"there, but {f.text}"
        rows.append((f.name, f.role, f.place, count, str(f.classes or "-"), state))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    print(f"{recipe.name}: {recipe.summary}\n")
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip())
    lacking = [f.name for f in found if f.state == "missing" and f.role in ("train", "id")]
    unusable = [f.name for f in found if f.state == "unusable"]
    if lacking or unusable:
        wrong = [f"without {' and '.join(lacking)}"] * bool(lacking) + [f"with {' and '.join(unusable)} as is"] * bool(
            unusable
        )
        raise DissensusError(f"suite {recipe.name} cannot be run {', '.join(wrong)}: see the list for how")
    command = f"dissensus run --suite {shlex.quote(name)} --root {shlex.quote(root)} --out runs/{recipe.name}"
    say(f"run it with: {command}")
