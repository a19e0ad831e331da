"""What a user did wrong, in one line: the rule, what was given, the remedy.

The command line prints these and exits with code 2; any other exception is a defect of Dissensus.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class DissensusError(ValueError):
    """A user's mistake. The message gives the rule, what was given and the remedy."""


class ShapeError(DissensusError):
    """A tensor whose shape breaks the rule, such as logits that are not (M, B, C)."""


class DataError(DissensusError):
    """Features or labels that cannot be used: out of range, not finite, empty, damaged."""


class RunError(DissensusError):
    """A run folder that is missing, not a run, damaged, or in use by another run."""


class DissensusWarning(UserWarning):
    """What a user should know about a result: what is wrong with it, and the remedy, in one line."""


class UnknownNameError(DissensusError):
    """A name that no registry knows; the message suggests the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, see: str | None = None) -> None:
        names = sorted(known)
        name = name if len(name) <= 80 else name[:77] + "..."
        near = _nearest(name, names)
        hint = f"did you mean {near!r}? " if near else ""
        listed = f"known: {', '.join(names)}" if see is None else f"see: {see}"
        super().__init__(f"unknown {kind} {name!r}: {hint}{listed}")


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """The known name most like an unknown one, if it is close. Flags are compared without the dashes that all share."""
    words = {each.lstrip("-"): each for each in names}
    word, cutoff = name.lower().lstrip("-"), 0.65 if any(each.startswith("--") for each in names) else 0.5
    for spelling in (word.replace("_", "-"), word.replace("-", "_")):
        if near := difflib.get_close_matches(spelling, words, n=1, cutoff=cutoff):
            return words[near[0]]
    return None


def short(value: object) -> str:
    """A value in at most 40 characters, for a message."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deep nesting; an integer of too many digits
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."


def some(values: Sequence[object], most: int = 4) -> str:
    """The first few values, for a message."""
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")
