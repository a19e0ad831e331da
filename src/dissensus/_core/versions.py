"""Versions of Python and of every dependency, for bug reports. Nothing is imported, so that it takes no time."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, requires, version

from dissensus._core.extras import EXTRAS, missing


def versions() -> dict[str, str]:
    """Return the versions of Python and of the required packages, the platform, and the extras that are installed."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True) + " " + platform.machine()}
    for name in _required():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    extras = [extra for extra in EXTRAS if not missing(extra)]
    return {**found, "extras": ", ".join(extras) or "none"}


def _required() -> list[str]:
    """Names of the packages that the base install requires, sorted."""
    try:
        requirements = requires("dissensus") or []
    except PackageNotFoundError:  # imported from a folder that is not installed
        return []
    names = [re.match(r"[\w.-]+", each) for each in requirements if "extra ==" not in each]
    return sorted(name[0] for name in names if name)
