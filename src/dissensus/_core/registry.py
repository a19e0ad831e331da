"""Registry: names to choose from, such as scores and methods; the one place to add another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from dissensus._core.errors import DissensusError, UnknownNameError

T = TypeVar("T")


class Registry(dict[str, T]):
    """A dictionary that suggests the nearest name where one is unknown.

    >>> SIZES = Registry("size", {"small": 1, "large": 2})
    >>> SIZES["smal"]
    Traceback (most recent call last):
    dissensus._core.errors.UnknownNameError: unknown size 'smal': did you mean 'small'? known: large, small

    Args:
        kind: What the names stand for, in the singular.
        entries: The first entries.
    """

    def __init__(self, kind: str, entries: Mapping[str, T] | None = None) -> None:
        super().__init__(entries or {})
        self.kind = kind
        self.prefixes: dict[str, Callable[[str], T]] = {}
        self.marks: dict[str, Callable[[str, str], T]] = {}

    def __missing__(self, name: str) -> T:
        for mark, find in self.marks.items():
            before, found, after = str(name).partition(mark)
            if before and found and after:
                return find(before, after)
        for prefix, resolve in self.prefixes.items():
            if str(name).startswith(prefix):
                return resolve(name.removeprefix(prefix))
        raise UnknownNameError(self.kind, str(name), self)

    def add(self, name: str, entry: T) -> None:
        """Add an entry.

        Raises:
            DissensusError: If the name is taken.
        """
        if name in self:
            raise DissensusError(f"every {self.kind} needs its own name; {name!r} is taken: choose another")
        self[name] = entry

    def add_prefix(self, prefix: str, resolve: Callable[[str], T]) -> None:
        """Let `resolve` find the entries whose names begin with `prefix`, given the rest; they are not listed."""
        self.prefixes[prefix] = resolve

    def add_mark(self, mark: str, find: Callable[[str, str], T]) -> None:
        """Let `find` resolve the names that hold `mark`, given what is before and after it; they are not listed."""
        self.marks[mark] = find

    def check(self, *names: str) -> None:
        """Raise `UnknownNameError` if one of these names is unknown."""
        for name in names:
            self[name]

    def copy(self) -> Registry[T]:
        """A shallow copy, as of a dictionary."""
        copied = Registry(self.kind, self)
        copied.prefixes.update(self.prefixes)
        copied.marks.update(self.marks)
        return copied
