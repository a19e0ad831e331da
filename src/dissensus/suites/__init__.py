"""SUITES: named data sets with roles, made on demand.

    suite = suites.load("digits", seed=0)
    suite = suites.load("pacs", root="data", features="features")      # images, extracted where they are not yet
    fit(ensemble, suite.train)
    evaluate(ensemble, suite.sets, held_out=suite.held_out)

Your own is a YAML file (see docs/suites.md), or joins these with the decorator; every command then takes it by name:

    @suites.register
    def leaves(seed: int = 0) -> Suite:
        '''Leaves of the garden, scanned in spring and in autumn.'''
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from dissensus._core.errors import DissensusError
from dissensus._core.options import listed
from dissensus._core.registry import Registry
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.features.options import ExtractOptions
from dissensus.suites import digits as scans
from dissensus.suites import reading
from dissensus.suites import recipe as recipes

if TYPE_CHECKING:
    from dissensus.backbones import Backbone

__all__ = [
    "SUITES", "Factory", "Suite", "SuiteSet",
    "is_of_images", "load", "needs_root", "recipe", "register", "summary", "takes", "training",
]  # fmt: skip

Factory = Callable[..., Suite]
"""Makes a suite from options by keyword, `seed: int = 0` among them; the same options, the same suite."""

SUITES: Registry[Factory] = Registry("suite")
"""Every registered suite by its name."""

_SUMMARIES: dict[str, str] = {}
_TRAINING: dict[str, Mapping[str, Any]] = {}
_F = TypeVar("_F", bound=Factory)


@overload
def register(factory: _F) -> _F: ...
@overload
def register(
    *, name: str | None = None, summary: str | None = None, training: Mapping[str, Any] | None = None
) -> Callable[[_F], _F]: ...
def register(
    factory: _F | None = None,
    *,
    name: str | None = None,
    summary: str | None = None,
    training: Mapping[str, Any] | None = None,
) -> _F | Callable[[_F], _F]:
    """Add a factory to `SUITES`, under its own name and its docstring's first line unless others are given.

    Underscores of the function's name become hyphens. `training` is what `fit` should be given for this suite.
    Returns the factory as it was.
    """

    def add(made: _F) -> _F:
        key = name or made.__name__.replace("_", "-")
        if "seed" not in inspect.signature(made).parameters:
            raise DissensusError(f"a suite's factory takes seed: int = 0; {key!r} does not: add the parameter")
        SUITES.add(key, made)
        _TRAINING[key] = dict(training or {})
        _SUMMARIES[key] = summary if summary is not None else (inspect.getdoc(made) or "").partition("\n")[0]
        return made

    return add if factory is None else add(factory)


def load(name: str, **options: Any) -> Suite:
    """Make the suite of that name, or of that YAML file; an unknown one is refused with the nearest known."""
    factory = _find(name)
    if needs_root(name) and not options.get("root"):
        raise DissensusError(f"suite {name!r} is of images: say where they are, with --root DIR (in Python root=)")
    if not needs_root(name) and "root" in options:
        raise DissensusError(f"suite {name!r} brings its own images; got --root {options['root']}: leave it out")
    known = takes(name)
    if known is not None and (strangers := [option for option in options if option not in known]):
        raise DissensusError(f"suite {name!r} takes {', '.join(known)}; got {', '.join(strangers)}: leave it out")
    return factory(**options)


def takes(name: str) -> tuple[str, ...] | None:
    """The options of that suite; None for one of the user's that takes any."""
    parameters = inspect.signature(_find(name)).parameters.values()
    own = tuple(p.name for p in parameters if p.kind != p.VAR_KEYWORD)
    if len(own) == len(parameters):
        return own
    if name != "digits" and not needs_root(name):
        return None
    names = [*own, *(each.name for each in listed(ExtractOptions)), "progress", "fabric"]
    if needs_root(name):
        from dissensus.suites.build import from_recipe

        names += inspect.signature(from_recipe).parameters
    # corruptions are the suite's own, and the others are no options
    return tuple(dict.fromkeys(n for n in names if n not in ("corruption", "severity", "recipe", "options")))


def is_of_images(name: str) -> bool:
    """Whether the suite goes through a backbone, embedded or not, and takes the options of that."""
    return "backbone" in (takes(name) or ())


def training(name: str) -> dict[str, Any]:
    """How to train on that suite: what it says of `fit`'s options, or nothing."""
    _find(name)
    return dict(_TRAINING[name] if name in _TRAINING else reading.read(Path(name)).training)


def summary(name: str) -> str:
    """What the suite of that name holds, in one line."""
    _find(name)
    return _SUMMARIES[name] if name in _SUMMARIES else reading.read(Path(name)).summary


def recipe(name: str, root: Path) -> recipes.Recipe:
    """What a suite of images says it holds; `folders` says so by what is under `root`."""
    if name == FOLDERS:
        return recipes.from_folders(root)
    if _is_file(name):
        return reading.read(Path(name))
    if name not in RECIPES:
        _find(name)
        raise DissensusError(f"suite {name!r} comes with the package: there is nothing to look for")
    return RECIPES[name]


def needs_root(name: str) -> bool:
    """Whether the suite is of images that the user has somewhere."""
    return name == FOLDERS or name in RECIPES or _is_file(name)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _find(name: str) -> Factory:
    if _is_file(name):
        return partial(_from_recipe, name)
    return SUITES[name]


def _from_recipe(name: str, *, root: str | os.PathLike[str], seed: int = 0, **options: Any) -> Suite:
    from dissensus.suites.build import from_recipe  # here: what lists suites need not wait for timm

    return from_recipe(recipe(name, Path(root)), root=root, seed=seed, **options)


def digits(
    seed: int = 0,
    severities: Sequence[int] = (1, 5),
    *,
    backbone: str | Backbone = "lite0",
    weights: str | os.PathLike[str] | None = None,
    size: int = 64,
    crop: float = 1.0,
    layers: int = 1,
    features: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Suite:
    """Eight handwritten digits; other digits and patches of photographs are out of distribution.

    Scans of 8x8 pixels, enlarged and put through the backbone; `backbone="pixels"` leaves them as they are. What is
    in it: see `digits.digits`. Features are kept in the user's cache, or in `features`.
    """
    pixels = scans.digits(seed, severities)
    if backbone == "pixels":
        return pixels
    from dissensus import backbones
    from dissensus.suites.build import from_pixels

    if isinstance(backbone, str):
        backbone = backbones.create(backbone, weights, layers, size=size, crop=crop)
    return from_pixels(pixels, 8, backbone, features, seed=seed, **options)


FOLDERS = "folders"
RECIPES = {
    made.name: made
    for made in (
        reading.read(Path(str(file)))
        for file in sorted((resources.files(__name__) / "recipes").iterdir(), key=lambda file: file.name)
        if file.name.endswith(".yaml")
    )
}
register(training=scans.TRAINING)(digits)
register(training=scans.DOMINOES_TRAINING)(scans.dominoes)
for _name, _recipe in RECIPES.items():
    register(name=_name, summary=_recipe.summary, training=_recipe.training)(partial(_from_recipe, _name))
register(name=FOLDERS, summary="Your own images: train/, id/, held-out/, shift/NAME/, ood/NAME/ under --root.")(
    partial(_from_recipe, FOLDERS)
)
