"""Options: dataclasses whose fields carry their own help and rule.

The command line, YAML files, docstrings and the estimator are all generated from the fields, so that an option is
written once:

    @dataclass(frozen=True)
    class CookingOptions:
        minutes: int = option(10, "time on the stove", AT_LEAST_1)

        def __post_init__(self) -> None:
            check(self)
"""

from __future__ import annotations

import dataclasses
import math
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, TypeVar

from dissensus._core.errors import DissensusError, UnknownNameError, short

LARGEST = 2**53  # whole numbers above are more likely a damaged file than a wish

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Rule(NamedTuple):
    """What a value must be, in words and as a test."""

    text: str
    holds: Callable[[Any], bool]


AT_LEAST_0 = Rule("at least 0", lambda value: 0 <= value < math.inf)
AT_LEAST_1 = Rule("at least 1", lambda value: 1 <= value < math.inf)
ABOVE_0 = Rule("above 0", lambda value: 0 < value < math.inf)
SEED = Rule("within 0..2147483647", lambda value: 0 <= value < 2**31)


class Option(NamedTuple):
    """One field of an options class, as the command line and docstrings need it."""

    name: str
    type: Any  # the resolved annotation, such as `int | None`
    default: Any
    help: str
    group: str  # heading in --help; "" is the group of the class
    parse: Callable[[str], Any] | None  # from the text of a flag, where the annotation does not say how


def option(
    default: Any, help: str, rule: Rule | None = None, *, group: str = "", parse: Callable[[str], Any] | None = None
) -> Any:
    """A dataclass field with its help text, and the rule that values other than None must follow."""
    return dataclasses.field(default=default, metadata={"help": help, "rule": rule, "group": group, "parse": parse})


def listed(cls: type[Any]) -> Iterator[Option]:
    """The options of a class, in order."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        about = field.metadata
        yield Option(field.name, hints[field.name], field.default, about["help"], about["group"], about["parse"])


def combine(cls: type[T], options: T | None, keywords: Mapping[str, Any]) -> T:
    """The options with the keywords on top; None stands for the defaults.

    Raises:
        UnknownNameError: for a keyword that is not a field of `cls`; it suggests the nearest.
    """
    names = [each.name for each in listed(cls)]
    for keyword in keywords:
        if keyword not in names:
            raise UnknownNameError("option", keyword, names)
    return cls(**keywords) if options is None else dataclasses.replace(options, **keywords)  # type: ignore[type-var]


def given(options: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, by name."""
    values = {each.name: getattr(options, each.name) for each in listed(type(options))}
    return {each.name: values[each.name] for each in listed(type(options)) if values[each.name] != each.default}


def check(options: Any) -> None:
    """Raise unless every field has a value of its type that follows its rule. Call it in `__post_init__`.

    NumPy numbers become Python's, so that options can be written as JSON.
    """
    hints = typing.get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value = _typed(field.name, getattr(options, field.name), hints[field.name])
        rule = field.metadata.get("rule")
        if value is not None and rule is not None and not rule.holds(value):
            finite = "" if isinstance(value, int) or math.isfinite(value) else "finite and "
            raise DissensusError(f"{field.name} must be {finite}{rule.text}; got {value}")
        object.__setattr__(options, field.name, value)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """The value as its annotation has it: int, float, bool, str, a Literal, or one of these or None."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None and type(None) in kinds:
        return None
    kind = next(each for each in kinds if each is not type(None))
    if typing.get_origin(kind) is Literal:
        known = typing.get_args(kind)
        if value not in known:
            raise DissensusError(f"{name} must be one of {', '.join(known)}; got {short(value)}")
        return value
    number = isinstance(value, Real) and not isinstance(value, bool)
    huge = isinstance(value, Integral) and abs(int(value)) > LARGEST
    if kind is float and number and not huge:
        return float(value)
    if kind is int and number and isinstance(value, Integral) and not huge:
        return int(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    rule = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]
    raise DissensusError(f"{name} must be {rule}; got {short(value)}")


def documented(options: Iterable[Option]) -> Callable[[F], F]:
    """Put the options in the place of the line `{options}` of a docstring, as they stand under `Args:`."""
    texts = [
        f"{each.name}: {each.help}" + ("." if each.default is None else f" (default: {each.default!r}).")
        for each in options
    ]

    def fill(target: F) -> F:
        lines = (target.__doc__ or "").splitlines()
        place = next(number for number, line in enumerate(lines) if line.strip() == "{options}")
        indent = lines[place].partition("{")[0]
        lines[place : place + 1] = [
            line
            for text in texts
            for line in textwrap.wrap(text, 120, initial_indent=indent, subsequent_indent=indent + "    ")
        ]
        target.__doc__ = "\n".join(lines)
        return target

    return fill


def share(text: str) -> float:
    """A share such as 1% or 0.01, as a number within 0..1."""
    try:
        value = float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise DissensusError(f"must be a share such as 1% or 0.01; got {text}")
    return value
