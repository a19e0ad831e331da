"""The API reference: a page per public module, with the names in the packages' `__all__`."""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from functools import cache
from pathlib import Path
from types import ModuleType

import griffe

import dissensus

LEFT_OUT = ("dissensus.cli",)  # has a page of its own


@cache
def public() -> dict[str, list[str]]:
    """The public names of every public module: packages with `__all__`, and the modules that these list."""
    modules: dict[str, list[str]] = {}
    waiting = [name for name in ["dissensus", *_packages()] if hasattr(importlib.import_module(name), "__all__")]
    for module in waiting:
        if module in modules or module in LEFT_OUT:
            continue
        loaded = importlib.import_module(module)
        listed = getattr(loaded, "__all__", None)
        names = _defined(module) if listed is None else sorted(listed)
        values = {name: getattr(loaded, name) for name in names}
        modules[module] = [name for name in names if not isinstance(values[name], ModuleType)]
        waiting += [value.__name__ for value in values.values() if isinstance(value, ModuleType)]
    return {module: modules[module] for module in sorted(modules) if modules[module]}


def undocumented() -> list[str]:
    """Public names without a docstring."""
    return [f"{m}.{name}" for m, names in public().items() for name in names if not _docstring(m, name)]


@cache
def homes() -> dict[tuple[str, str], tuple[str, str]]:
    """Where each public name is documented, as module and name: in the public module nearest to its definition."""
    nearest: dict[str, tuple[str, str]] = {}
    for module, names in public().items():
        for name in names:
            path = _object(module, name).canonical_path
            if path not in nearest or _shared(path, module) > _shared(path, nearest[path][0]):
                nearest[path] = (module, name)
    return {(m, name): nearest[_object(m, name).canonical_path] for m, names in public().items() for name in names}


def pages() -> dict[str, str]:
    """The text of every page by its path in the site."""
    return {_path(module): _page(module, names) for module, names in public().items()}


def _page(module: str, names: list[str]) -> str:
    """A module: its docstring, the names that are documented here, and where the others are."""
    places = {name: homes()[module, name] for name in names}
    root = module == "dissensus"
    heading = [f"# {module}", f"::: {module}\n    options: {{members: [], show_root_heading: false}}"]
    elsewhere = [
        f"| [`{name}`][{'.'.join(place)}] | {_first_line(*place)} |"
        for name, place in places.items()
        if place != (module, name)
    ]
    listed = ["## Names of `dissensus` itself" if root else "## Documented elsewhere", _table(elsewhere)]
    here = [f"::: {module}.{name}" for name, place in places.items() if place == (module, name)]
    modules = [f"| [`{each}`]({_path(each).removeprefix('reference/')}) | {_first_line(each)} |" for each in public()]
    if root:
        about = "## Modules\n\nWhatever is not named on these pages may change without notice."
        return "\n\n".join([*heading, *listed, about, _table(modules[1:]), *here]) + "\n"
    return "\n\n".join([*heading, *here, *(listed if elsewhere else [])]) + "\n"


def _table(rows: list[str]) -> str:
    return "\n".join(["| name | |", "|---|---|", *rows])


def absent(inventory: Path) -> list[str]:
    """Public names that the inventory of a built site, objects.inv, does not have."""
    content = inventory.read_bytes().split(b"\n", 4)[4]
    built = {line.split(" ", 1)[0] for line in zlib.decompress(content).decode().splitlines()}
    return [f"{module}.{name}" for module, name in dict.fromkeys(homes().values()) if f"{module}.{name}" not in built]


def _packages() -> list[str]:
    """Packages of Dissensus, and of these, without private ones."""
    found, waiting = [], [(dissensus.__path__, "dissensus")]
    for paths, parent in waiting:
        for each in pkgutil.iter_modules(paths):
            if each.ispkg and not each.name.startswith("_"):
                found.append(f"{parent}.{each.name}")
                waiting.append(([str(Path(path) / each.name) for path in paths], found[-1]))
    return found


def _defined(module: str) -> list[str]:
    """Of a module without `__all__`: its functions and classes, and its values that have a docstring."""
    members = _object(module).members.items()
    return sorted(
        name
        for name, member in members
        if not name.startswith("_") and not member.is_alias and (not member.is_attribute or member.docstring)
    )


@cache
def _package() -> griffe.Module:
    package = griffe.load("dissensus", resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    return package


def _object(module: str, name: str = "") -> griffe.Object | griffe.Alias:
    """What static analysis knows about a module, or a name in it."""
    path = ".".join(part for part in (module.partition(".")[2], name) if part)
    return _package()[path] if path else _package()


def _docstring(module: str, name: str = "") -> str:
    docstring = _object(module, name).docstring
    return docstring.value.strip() if docstring else ""


def _first_line(module: str, name: str = "") -> str:
    """The first line of a docstring, for a cell of a table."""
    return _docstring(module, name).partition("\n")[0].replace("|", "\\|")


def _shared(path: str, module: str) -> int:
    """How many leading parts two dotted paths have in common."""
    both = list(zip(path.split("."), module.split("."), strict=False))
    return next((i for i, (one, other) in enumerate(both) if one != other), len(both))


def _path(module: str) -> str:
    return f"reference/{module.removeprefix('dissensus.') if module != 'dissensus' else 'index'}.md"
