"""Read a recipe from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dissensus._core.errors import DissensusError
from dissensus._core.parsing import read_yaml
from dissensus.suites._recipe import Recipe
from dissensus.suites._rules import SEE, make


def read(path: Path) -> Recipe:
    """Return the recipe of a YAML file.

    Raises:
        DissensusError: If the file cannot be read, is not YAML, or breaks a rule; one line names file, set and key.
    """
    values = read_yaml(path, "a suite is a name or a YAML file")
    if not isinstance(values, dict):
        raise DissensusError(f"a suite is a mapping with the key `sets`; {path} is {_kind(values)}: {SEE}")
    defaults = {"name": path.stem, "summary": f"The sets of {path.name}."}
    return make({**defaults, **values}, str(path))


def _kind(value: Any) -> str:
    names = {list: "a list", str: f"the text {str(value)[:30]!r}", type(None): "empty"}
    return names.get(type(value), repr(value))
