"""SUITES: named data sets with roles, made on demand.

    suite = suites.load("digits", seed=0)
    fit(ensemble, suite.train)
    evaluate(ensemble, suite.sets, held_out=suite.held_out)

Your own joins them with the decorator, and every command then takes it by name:

    @suites.register
    def leaves(seed: int = 0) -> Suite:
        '''Leaves of the garden, scanned in spring and in autumn.'''
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from dissensus.errors import DissensusError, UnknownNameError
from dissensus.evaluate import Suite, SuiteSet
from dissensus.suites import digits

__all__ = ["SUITES", "Factory", "Suite", "SuiteSet", "load", "register", "summary"]

Factory = Callable[..., Suite]
"""Makes a suite from options by keyword, `seed: int = 0` among them; the same options, the same suite."""

SUITES: dict[str, Factory] = {}
"""Every registered suite by its name."""

_SUMMARIES: dict[str, str] = {}
_F = TypeVar("_F", bound=Factory)


@overload
def register(factory: _F) -> _F: ...
@overload
def register(*, name: str | None = None, summary: str | None = None) -> Callable[[_F], _F]: ...
def register(
    factory: _F | None = None, *, name: str | None = None, summary: str | None = None
) -> _F | Callable[[_F], _F]:
    """Add a factory to `SUITES`, under its own name and its docstring's first line unless others are given.

    Underscores of the function's name become hyphens. Returns the factory as it was.
    """

    def add(made: _F) -> _F:
        key = name or made.__name__.replace("_", "-")
        if key in SUITES:
            raise DissensusError(f"a suite needs a name of its own; {key!r} is taken: give another with name=")
        if "seed" not in inspect.signature(made).parameters:
            raise DissensusError(f"a suite's factory takes seed: int = 0; {key!r} does not: add the parameter")
        SUITES[key] = made
        _SUMMARIES[key] = summary if summary is not None else (inspect.getdoc(made) or "").partition("\n")[0]
        return made

    return add if factory is None else add(factory)


def load(name: str, **options: Any) -> Suite:
    """Make the suite of that name; an unknown one is refused with the nearest known."""
    factory = _find(name)
    try:
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters)
        raise DissensusError(f"suite {name!r} takes {takes}; got {', '.join(options)}: {error}") from error
    return factory(**options)


def summary(name: str) -> str:
    """What the suite of that name holds, in one line."""
    _find(name)
    return _SUMMARIES[name]


def _find(name: str) -> Factory:
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return SUITES[name]


register(digits.digits)
register(digits.dominoes)
