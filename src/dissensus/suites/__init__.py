"""Suites: named data sets with roles, loaded by name.

    suite = suites.load("digits", seed=0)
    suite = suites.load("pacs", root="data", features="features")      # images; features are extracted once
    fit(ensemble, suite.train)
    evaluate(ensemble, suite.sets, held_out=suite.held_out)

A suite of your own is a YAML file (see docs/suites.md), or a function that every command then takes by its name:

    @suites.register
    def leaves(seed: int = 0) -> Suite:
        '''Leaves of the garden, scanned in spring and in autumn.'''
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from dissensus._core.errors import DissensusError
from dissensus._core.options import listed
from dissensus._core.registry import Registry
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.features.options import ExtractOptions
from dissensus.suites import _folders, _yaml, digits, tied
from dissensus.suites._recipe import Recipe
from dissensus.suites.tied import PAIRS

if TYPE_CHECKING:
    from dissensus.suites._locate import Checked

__all__ = [
    "PAIRS", "RECIPES", "SUITES", "Entry", "Factory", "Recipe", "Suite", "SuiteSet",
    "accepted_options", "check", "from_datamodule", "load", "needs_root", "recipe", "register", "summary", "training",
    "uses_backbone",
]  # fmt: skip

Factory = Callable[..., Suite]
"""A function that builds a suite from keyword options, `seed: int = 0` among them."""

_F = TypeVar("_F", bound=Factory)


class Entry(NamedTuple):
    """A registered suite."""

    factory: Factory
    summary: str
    training: Mapping[str, Any]  # options of `fit` that suit it


SUITES: Registry[Entry] = Registry("suite")
"""Every registered suite by its name."""

RECIPES: dict[str, Recipe] = {
    path.stem: _yaml.read(path) for path in sorted(Path(str(resources.files(__name__) / "recipes")).glob("*.yaml"))
}
"""The built-in suites of images that the user has on disk."""


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
    """Add a suite to `SUITES`; use it as a decorator.

    Args:
        factory: Builds the suite; takes `seed: int = 0`.
        name: By default the function's name, with hyphens for underscores.
        summary: By default the first line of the docstring.
        training: Options of `fit` that suit the suite.

    Returns:
        The factory itself.

    Raises:
        DissensusError: If the name is taken, or the factory has no parameter `seed`.
    """

    def add(factory: _F) -> _F:
        key = name or factory.__name__.replace("_", "-")
        if "seed" not in inspect.signature(factory).parameters:
            raise DissensusError(f"a suite's factory takes seed: int = 0; {key!r} does not: add the parameter")
        first_line = (inspect.getdoc(factory) or "").partition("\n")[0]
        SUITES.add(key, Entry(factory, first_line if summary is None else summary, dict(training or {})))
        return factory

    return add if factory is None else add(factory)


def load(name: str, **options: Any) -> Suite:
    """Build a suite.

    Args:
        name: A name in `SUITES`, `pacs-tied:` and a pair, or a YAML file.
        options: Those of the suite, see `accepted_options`; suites of images need `root`.

    Raises:
        UnknownNameError: For an unknown name; it suggests the nearest.
        DissensusError: For an option that the suite does not take, or images that cannot be used.
    """
    if needs_root(name) and not options.get("root"):
        raise DissensusError(f"suite {name!r} reads images from a folder: name it with --root DIR (in Python root=)")
    factory = _entry(name).factory
    if not needs_root(name) and "root" in options:
        raise DissensusError(f"suite {name!r} has its own data; got --root {options['root']}: leave it out")
    known = accepted_options(name)
    if known is not None and (unknown := [option for option in options if option not in known]):
        raise DissensusError(f"suite {name!r} takes {', '.join(known)}; got {', '.join(unknown)}: leave it out")
    return factory(**options)


def from_datamodule(datamodule: Any, **options: Any) -> Suite:
    """Build a suite from a Lightning data module, such as those of torch-uncertainty.

    Args:
        datamodule: Whose sets are train, val (held out), test (the id set), shift and ood.
        options: `encoder` for the module's own batches; or `backbone`, `features` and options of `extract` for images;
            `name`, `seed`: see docs/peers.md.

    Raises:
        DataError: If a set is missing, or its items cannot be used.
    """
    from dissensus.suites import _datamodules  # here: listing suites does not wait for timm

    return _datamodules.from_datamodule(datamodule, **options)


def accepted_options(name: str) -> tuple[str, ...] | None:
    """Return the names of the options of a suite; None for a registered one that takes any."""
    parameters = inspect.signature(_entry(name).factory).parameters.values()
    names = [p.name for p in parameters if p.kind != p.VAR_KEYWORD]
    if len(names) == len(parameters):
        return tuple(names)
    if name != "digits" and not needs_root(name):
        return None
    names += [*(option.name for option in listed(ExtractOptions)), "progress", "fabric"]
    if needs_root(name):
        from dissensus.suites._build import from_recipe

        names += inspect.signature(from_recipe).parameters
    # corruptions are part of the suite, views are for choosing, and the others are not options
    excluded = ("corruption", "severity", "view", "recipe", "options")
    return tuple(dict.fromkeys(n for n in names if n not in excluded))


def uses_backbone(name: str) -> bool:
    """Whether the suite is extracted through a backbone, and takes the options of that."""
    return "backbone" in (accepted_options(name) or ())


def training(name: str) -> dict[str, Any]:
    """Return the options of `fit` that suit a suite."""
    return dict(_entry(name).training)


def summary(name: str) -> str:
    """Return one line about a suite."""
    return _entry(name).summary


def recipe(name: str, root: Path) -> Recipe:
    """Return the recipe of a suite of images; that of `folders` depends on what is under `root`."""
    if name == _folders.NAME:
        return _folders.recipe_of(root)
    if _is_file(name):
        return _yaml.read(Path(name))
    SUITES.check(name)
    if name not in RECIPES:
        raise DissensusError(f"suite {name!r} has its own data: there is nothing to look for")
    return RECIPES[name]


def check(name: str, root: Path) -> Checked:
    """Look for the images of a suite under a root; nothing is extracted."""
    from dissensus.suites import _locate  # here: listing suites does not wait for timm

    pair = tied.pair_of(name)
    if pair is not None:
        return _locate.Checked(name, summary(name), "", tied.check(pair, root))
    found = recipe(name, root)
    return _locate.Checked(found.name, found.summary, found.note, _locate.check(found, root))


def needs_root(name: str) -> bool:
    """Whether the suite reads images from a folder of the user."""
    return name == _folders.NAME or name in RECIPES or _is_file(name) or name.partition(":")[0] == tied.NAME


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _entry(name: str) -> Entry:
    if not _is_file(name):
        return SUITES[name]
    recipe = _yaml.read(Path(name))
    return Entry(partial(_from_recipe, name), recipe.summary, recipe.training)


def _pair_entry(name: str) -> Entry:
    pair = tied.Pair.parse(name)
    return Entry(partial(_from_pair, f"{tied.NAME}:{pair.name}"), tied.SUMMARY, tied.TRAINING)


def _from_pair(name: str, *, root: str | os.PathLike[str], seed: int = 0, **options: Any) -> Suite:
    pair = tied.pair_of(name)
    assert pair is not None
    return tied.load(pair, name=name, root=root, seed=seed, **options)


def _from_recipe(name: str, *, root: str | os.PathLike[str], seed: int = 0, **options: Any) -> Suite:
    from dissensus.suites._build import from_recipe  # here: listing suites does not wait for timm

    return from_recipe(recipe(name, Path(root)), root=root, seed=seed, **options)


register(summary=digits.DIGITS, training=digits.TRAINING)(digits.digits)
register(summary=digits.DOMINOES, training=digits.DOMINOES_TRAINING)(digits.dominoes)
register(summary=digits.DOMINOES_95, training=digits.DOMINOES_TRAINING)(digits.dominoes_95)
for _name, _suite in RECIPES.items():
    register(name=_name, summary=_suite.summary, training=_suite.training)(partial(_from_recipe, _name))
register(name=tied.NAME, summary=tied.SUMMARY, training=tied.TRAINING)(partial(_from_pair, tied.NAME))
SUITES.add_prefix(f"{tied.NAME}:", _pair_entry)
register(name=_folders.NAME, summary=_folders.SUMMARY)(partial(_from_recipe, _folders.NAME))
