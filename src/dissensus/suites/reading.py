"""Reading a recipe: from YAML to checked values. Every mistake is one line with the file, the set and the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.images import corruptions
from dissensus.suites.recipe import Recipe, SetRecipe, check
from dissensus.training.options import TUNABLE, TrainOptions

SEE = "see docs/suites.md"


def read(path: Path) -> Recipe:
    """The recipe in a YAML file, every key and value checked."""
    found = _load(path)
    if not isinstance(found, dict):
        raise DissensusError(f"a suite is a mapping with the key `sets`; {path} is {_kind(found)}: {SEE}")
    sets = found.pop("sets", None)
    if not isinstance(sets, dict) or not sets:
        raise DissensusError(f"`sets` maps names to sets; {path} has {_kind(sets)} there: {SEE}")
    given = _values(found, SUITE, f"key of {path}", str(path))
    made = []
    for name, value in sets.items():
        mine = f"set {str(name)!r} of {path}"
        if not isinstance(value, dict):
            raise DissensusError(f"a set is a mapping with `role` and `images`; {mine} is {_kind(value)}: {SEE}")
        values = _values(value, SET, f"key of {mine}", mine)
        if "role" not in values:
            raise DissensusError(f"a set has a `role`; {mine} has none: give one")
        if "corruption" in values:
            values = {"severities": (1, 5), **values}
        made.append(SetRecipe(name=str(name), **values))
    recipe = Recipe(**{"name": path.stem, "summary": f"The sets of {path.name}.", **given, "sets": tuple(made)})
    check(recipe, str(path))
    return recipe


class _Loader(yaml.SafeLoader):
    """YAML in which no key stands twice, since the first would be lost in silence, and 1e-3 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As usual, after a look at the keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
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
        raise DissensusError(f"{path} must be YAML in UTF-8; it is not ({error.reason}): save it as such") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DissensusError(f"{path} must be YAML; it is not ({line}{reason}): correct it") from error
    except ValueError as error:  # a date that is none, such as 2024-13-45
        raise DissensusError(f"{path} must be YAML; it is not ({error}): correct it") from error


def _values(given: Mapping[Any, Any], forms: Mapping[str, Form], kind: str, where: str) -> dict[str, Any]:
    """Every value in the form its key asks for."""
    made = {}
    for key, value in given.items():
        if key not in forms:
            raise UnknownNameError(kind, str(key), forms)
        made[key] = forms[key](value, f"`{key}`", where)
    return made


Form = Callable[[Any, str, str], Any]
"""(value, key, where) -> the value as it is kept, or one line about what it must be."""


def _refuse(key: str, rule: str, where: str, value: Any) -> DissensusError:
    return DissensusError(f"{key} must be {rule}; {where} has {value!r}: correct it")


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refuse(key, "a text", where, value)
    return value


def _texts(value: Any, key: str, where: str) -> tuple[str, ...]:
    many = value if isinstance(value, list) else [value]
    if not many or not all(isinstance(each, str) and each.strip() for each in many):
        raise _refuse(key, "a text or a list of texts", where, value)
    return tuple(many)


def _whole(value: Any, key: str, where: str) -> int:
    if type(value) is not int or value < 1:  # True is an int to isinstance
        raise _refuse(key, "a whole number of at least 1", where, value)
    return value


def _wholes(value: Any, key: str, where: str) -> tuple[int, ...]:
    many = value if isinstance(value, list) else [value]
    if not many:
        raise _refuse(key, "a list of whole numbers", where, value)
    return tuple(_whole(each, key, where) for each in many)


def _number(value: Any, key: str, where: str) -> float:
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = None
    if number is None:
        raise _refuse(key, "a number", where, value)
    return number


def _share(value: Any, key: str, where: str) -> float:
    number = _number(value, key, where)
    if not 0 < number <= 1:
        raise _refuse(key, "a share within (0, 1]", where, value)
    return number


def _part(value: Any, key: str, where: str) -> tuple[float, float]:
    rule = "[from, to] within 0..1"
    if not isinstance(value, list) or len(value) != 2:
        raise _refuse(key, rule, where, value)
    low, high = (_number(each, key, where) for each in value)
    if not 0 <= low < high <= 1:
        raise _refuse(key, rule, where, value)
    return low, high


def _layers(value: Any, key: str, where: str) -> int:
    if type(value) is not int or value not in (1, 2):
        raise _refuse(key, "1, the classifier, or 2, the layer before it too", where, value)
    return value


def _corruption(value: Any, key: str, where: str) -> tuple[str, ...]:
    names = _texts(value, key, where)
    return corruptions.CORRUPTIONS if names == ("all",) else names


def _rows(value: Any, key: str, where: str) -> tuple[tuple[str, str], ...]:
    plain = str | int | float
    if not isinstance(value, dict) or not value or not all(isinstance(each, plain) for each in value.values()):
        raise _refuse(key, "a mapping of columns to values", where, value)
    return tuple((str(column), str(each)) for column, each in value.items())


def _training(value: Any, key: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(key, "a mapping, such as {member_epochs: 20, lr: 0.001}", where, value)
    for name in value:
        if name not in TUNABLE:
            raise UnknownNameError(f"key of {key} of {where}", str(name), TUNABLE)
    try:
        TrainOptions(**value)
    except DissensusError as error:
        raise DissensusError(f"{key} of {where}: {error}") from error
    return value


SUITE: dict[str, Form] = {
    "name": _text,
    "summary": _text,
    "get": _text,
    "backbone": _text,
    "size": _whole,
    "crop": _share,
    "layers": _layers,
    "training": _training,
}
SET: dict[str, Form] = {
    "role": _text,
    "images": _texts,
    "of": _text,
    "part": _part,
    "base": _text,
    "image_column": _text,
    "label_column": _text,
    "group_columns": _texts,
    "only": _rows,
    "shrink": _whole,
    "corruption": _corruption,
    "severities": _wholes,
    "family": _text,
    "subset": _text,
    "get": _text,
}


def _kind(value: Any) -> str:
    names = {dict: "an empty mapping", list: "a list", str: f"the text {str(value)[:30]!r}", type(None): "nothing"}
    return names.get(type(value), repr(value))
