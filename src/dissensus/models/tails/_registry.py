"""The registry of tails: kinds that can be built, described and built again by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from dissensus._core.errors import DissensusError
from dissensus._core.registry import Registry
from dissensus.models.norms import NORMS


@dataclass(frozen=True)
class TailType:
    """A registered kind of tail.

    Attributes:
        module: The class; its constructor takes `features` and `classes`, and its method `arguments()` returns what the
            constructor needs to build the same tail again.
        axes: How many axes a row of features may have -> which of them is `features` wide.
    """

    module: Callable[..., nn.Module]
    axes: Mapping[int, int]


TAILS: Registry[TailType] = Registry("tail")
"""Every registered kind of tail by name."""

_T = TypeVar("_T", bound=type[nn.Module])


def register(name: str, *, axes: Mapping[int, int]) -> Callable[[_T], _T]:
    """Add the decorated class to `TAILS`; see `TailType` for what it must provide."""

    def add(module: _T) -> _T:
        TAILS.add(name, TailType(module, axes))
        return module

    return add


def create(name: str, features: int, classes: int, norm: str | None = None) -> nn.Module:
    """Build the tail `name` for features of that width and that many classes; `norm` None: its own default."""
    check_norm(name, norm)
    return build({"name": name, "features": features, "classes": classes} | ({} if norm is None else {"norm": norm}))


def default_norm(name: str) -> str | None:
    """The norm of the tail `name` where none is given; None if it takes none."""
    parameter = inspect.signature(TAILS[name].module).parameters.get("norm")
    return None if parameter is None else str(parameter.default)


def check_norm(name: str, norm: str | None) -> None:
    """Raise if there is no such norm, or if the tail `name` takes none; None is always right."""
    if norm is not None:
        NORMS.check(norm)
        if default_norm(name) is None:
            raise DissensusError(
                f"tail {name} takes no norm; got norm {norm}: leave it out, or use linear, mlp or conv"
            )


def describe(tail: nn.Module) -> dict[str, Any] | None:
    """What `build` needs to build this tail again: its name and arguments; None if its class is not registered."""
    for name, kind in TAILS.items():
        if type(tail) is kind.module:
            return {"name": name, **tail.arguments()}  # type: ignore[operator]
    return None


def build(description: Mapping[str, Any]) -> nn.Module:
    """Build the tail that `describe` described.

    Raises:
        DissensusError: If there is no such tail, or it does not take these arguments.
    """
    arguments = dict(description)
    module = TAILS[arguments.pop("name")].module
    try:
        return module(**arguments)
    except DissensusError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # sizes below zero, or too large
        reason = str(error).partition("\n")[0][:160]  # PyTorch appends a stack trace
        raise DissensusError(f"tail {description['name']} cannot be built from {arguments}: {reason}") from error


def width(name: str, shape: Sequence[int]) -> int | None:
    """The width that the tail `name` needs for rows of that shape; None if it does not take such rows."""
    axis = TAILS[name].axes.get(len(shape))
    return None if axis is None else shape[axis]


def fits(description: Mapping[str, Any], shape: Sequence[int]) -> bool:
    """Whether the tail that `describe` described takes rows of features of that shape."""
    return bool(width(description["name"], shape) == description["features"])


def alike(description: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two tails differ in their weights only; `gamma` is a weight, of which a description has the first value.

    >>> alike({"name": "linear", "features": 64, "classes": 10}, {"name": "linear", "features": 64, "classes": 2})
    False
    """

    def layers(about: Mapping[str, Any]) -> dict[str, Any]:
        return {**about, "gamma": about.get("gamma") is not None}

    return layers(description) == layers(other)
