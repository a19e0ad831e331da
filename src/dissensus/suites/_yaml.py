"""Read a recipe from a YAML file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from dissensus._core.errors import DissensusError
from dissensus.suites._recipe import Recipe
from dissensus.suites._rules import SEE, make


def read(path: Path) -> Recipe:
    """Return the recipe of a YAML file.

    Raises:
        DissensusError: If the file cannot be read, is not YAML, or breaks a rule; one line names file, set and key.
    """
    values = _load(path)
    if not isinstance(values, dict):
        raise DissensusError(f"a suite is a mapping with the key `sets`; {path} is {_kind(values)}: {SEE}")
    defaults = {"name": path.stem, "summary": f"The sets of {path.name}."}
    return make({**defaults, **values}, str(path))


class _Loader(yaml.SafeLoader):
    """YAML that refuses a repeated key, of which PyYAML would drop the first, and reads 1e-3 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping after checking its keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _load(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise DissensusError(f"a suite is a name or a YAML file; {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DissensusError(f"{path} must be YAML in UTF-8; it is not ({error.reason}): save it as UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DissensusError(f"{path} must be YAML; it is not ({line}{reason}): correct it") from error
    except ValueError as error:  # an impossible date, such as 2024-13-45
        raise DissensusError(f"{path} must be YAML; it is not ({error}): correct it") from error


def _kind(value: Any) -> str:
    names = {list: "a list", str: f"the text {str(value)[:30]!r}", type(None): "empty"}
    return names.get(type(value), repr(value))
