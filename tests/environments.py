"""A virtual environment with a wheel and what it requires, and without extras, quickly: nothing is downloaded.

The packages that the metadata of the wheel requires, and those that these require, are linked from the environment of
the tests. Whatever else is installed there cannot be imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

COMMANDS = Path(__file__).with_name("base_commands.py")
"""A script that runs each base command, and commands that need an extra, in one process."""

needs_links = pytest.mark.skipif(os.name != "posix", reason="links the packages, which needs privileges elsewhere")


def create(folder: Path, wheel: Path) -> Path:
    """Create an environment with the wheel and return its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel]
    subprocess.run([*map(str, pip)], check=True, timeout=120)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (metadata,) = importlib.metadata.distributions(name="dissensus", path=[str(packages)])
    for name in sorted(required(metadata.requires or [])):
        for source in top_level(importlib.metadata.distribution(name)):
            target = packages / source.name
            if not target.exists():  # several packages may share a folder
                target.symlink_to(source)
    return python


def required(requirements: list[str]) -> set[str]:
    """Names of the packages that requirements ask for, directly or not, on this platform."""
    names: set[str] = set()
    pending = [(Requirement(each), "") for each in requirements]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *requirement.extras):
            if (requirement.name, wanted) not in seen:
                seen.add((requirement.name, wanted))
                names.add(requirement.name)
                inner = importlib.metadata.distribution(requirement.name).requires or []
                pending += [(Requirement(each), wanted) for each in inner]
    return names


def top_level(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    """The files and folders of a package in site-packages."""
    names = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    yield from (Path(str(distribution.locate_file(name))) for name in sorted(names))
