"""dissensus suite: which images a suite needs, and which of them are there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import command, say

if TYPE_CHECKING:
    from dissensus.suites._locate import Status


@command("suite", "dissensus suite check pacs --root data", reads=False)
def suite(action: Literal["check"], name: str, *, root: str = ".") -> None:
    """Look for the sets of a suite: what is there, what is missing and how to get it.

    Ends with exit code 2 if the suite cannot be run: the training set or the id set is missing, or a set is unusable.

    Args:
        action: check: list what is there, what is missing and how to get it.
        name: a suite of images (dissensus list suites), or a YAML file.
        root: the folder that holds the images.
    """
    from tabulate import tabulate

    from dissensus import suites
    from dissensus.suites import _locate

    found = suites.check(name, Path(root))
    rows = [(s.name, s.role, s.place, _count(s), str(s.classes or "-"), s.state) for s in found.statuses]
    heads = ("set", "role", "where", "images", "classes", "state")
    show(f"{found.name}: {found.summary}\n")
    show(tabulate(rows, heads, disable_numparse=True))
    notes: dict[tuple[str, str], list[str]] = {}  # sets that lack the same share a line
    for s in found.statuses:
        if s.text:
            notes.setdefault((s.state, s.text), []).append(s.name)
    for i, ((state, text), names) in enumerate(notes.items()):
        show(("" if i else "\n") + f"{', '.join(names)} {state}{', but ' if state == 'found' else ': '}{text}")
    missing = [s.name for s in found.statuses if s.state == "missing" and s.role in _locate.REQUIRED]
    unusable = [s.name for s in found.statuses if s.state == "unusable"]
    if missing or unusable:
        problems = [f"without {' and '.join(missing)}"] if missing else []
        problems += [f"with {' and '.join(unusable)} as is"] if unusable else []
        raise DissensusError(f"suite {found.name} cannot be run {', '.join(problems)}: see the list for how")
    if found.note:
        say(f"{found.name}: {found.note}")
    out = f"runs/{found.name.replace(':', '-')}"
    command = f"dissensus run --suite {shlex.quote(name)} --root {shlex.quote(root)} --out {out}"
    say(f"run it with: {command}")


def _count(s: Status) -> str:
    """How many images there are: of those that a list names, in each of several sets, or none."""
    if s.listed:
        return f"{s.images:,} of {s.listed:,}"
    return f"{s.images:,}" + (f" x {s.sets}" if s.sets > 1 else "") if s.images else "-"
