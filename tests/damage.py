"""Damaged JSON: every field of a document removed, of a wrong type, huge, or deeply nested."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

DEEP: Any = json.loads("[" * 400 + "]" * 400)
WRONG = (None, True, -1, 10**400, 1e300, "x" * 9999, [], [[1]], {}, {"x": 1}, DEEP)


def places(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every field within a document, by its path."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*place, key)
        yield from places(inner, (*place, key))


def without(document: Any, place: tuple[str | int, ...]) -> str:
    """The document as text, without one field."""
    damaged = copy.deepcopy(document)
    del _parent(damaged, place)[place[-1]]
    return json.dumps(damaged)


def replaced(document: Any, place: tuple[str | int, ...], value: Any) -> str:
    """The document as text, with another value in one field."""
    damaged = copy.deepcopy(document)
    _parent(damaged, place)[place[-1]] = value
    return json.dumps(damaged)


def _parent(document: Any, place: tuple[str | int, ...]) -> Any:
    for key in place[:-1]:
        document = document[key]
    return document
