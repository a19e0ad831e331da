"""JSON documents with one thing wrong in each: a field removed, of a wrong type, huge, or deeply nested."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from dissensus._core import documents

DEEP = "[" * 100_000 + "]" * 100_000
HUGE = 10**400
WRONG = {"null": None, "number": 3.5, "text": "nonsense", "list": [[]], "object": {"no": 1}, "true": True}


def damages(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, what is wrong with it, the JSON text) for every field of a document, nested ones too."""
    for path in _paths(document, ()):
        name = ".".join(map(str, path))
        changed = copy.deepcopy(document)
        holder = _at(changed, path[:-1])
        original = holder[path[-1]]
        for kind, value in WRONG.items():
            if type(value) is not type(original) and not (kind == "number" and type(original) is int):
                holder[path[-1]] = value
                yield name, kind, json.dumps(changed)
        holder[path[-1]] = "MARK"
        text = json.dumps(changed)
        yield name, "deep", text.replace('"MARK"', DEEP)
        yield name, "huge", text.replace('"MARK"', str(HUGE))
        yield name, "unknown", text.replace('"MARK"', json.dumps("x" * 10_000))
        if isinstance(path[-1], str):
            del holder[path[-1]]
            yield name, "removed", json.dumps(changed)
    yield "", "extra", json.dumps({**document, "another": 1})
    yield "", "cut", json.dumps(document)[:-2]
    yield "", "list", "[]"
    yield "", "deep", DEEP


def sealed(document: dict[str, Any]) -> str:
    """The JSON text of a document whose values were changed, with the digest of the values that it has now."""
    return documents.sealed(json.dumps({name: value for name, value in document.items() if name != documents.SEAL}))


def _paths(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:1]
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
