"""Every Python example in the documents runs, and every command that they name parses."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dissensus
from dissensus import suites
from dissensus.cli import COMMANDS, parser
from dissensus.export import EXPORTS
from dissensus.functional.aggregates import AGGREGATES
from dissensus.functional.losses import REGULARISERS
from dissensus.functional.metrics import METRICS
from dissensus.functional.scores import SCORES
from dissensus.models.tails import TAILS
from dissensus.training.methods import METHODS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REGISTRIES = (AGGREGATES, EXPORTS, METHODS, METRICS, REGULARISERS, SCORES, suites.SUITES, TAILS)


def blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


@pytest.fixture
def _registries():
    """Take out again what an example registers."""
    before = [(registry, dict(registry)) for registry in REGISTRIES]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("path", [path for path in DOCUMENTS[1:] if blocks(path)], ids=lambda path: path.name)
@pytest.mark.usefixtures("_registries")
def test_python_examples_run(path, monkeypatch, tmp_path):
    """But for those of the README, which need its images: see test_readme.py."""
    monkeypatch.chdir(tmp_path)
    for number, code in enumerate(blocks(path)):
        exec(compile(code, f"{path.name} example {number}", "exec"), {})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_contributing_names_files_and_packages_that_exist():
    text, source = (ROOT / "CONTRIBUTING.md").read_text(), ROOT / "src" / "dissensus"
    for name in re.findall(r"`([a-z_]+/(?:[a-z_]+\.py)?)`", text):
        assert (source / name).exists() or (ROOT / name).exists(), name
    layout = text.partition("| package in ")[2].partition("\n\n")[0]
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    assert packages == set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in layout.splitlines()[2:])))


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path, tmp_path):
    """As a user starts them, each in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 3


def commands() -> list[str]:
    found = []
    for path in DOCUMENTS:
        for line in path.read_text().splitlines():
            if match := re.match(r"^(?: {4})?(dissensus [^#]*)", line):
                found.append(match[1].strip())
            found += re.findall(rf"`(dissensus (?:{'|'.join(COMMANDS)})[^`]*)`", line)
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command):
    arguments = shlex.split(command)[1:]
    if "--help" not in arguments and len(arguments) > 1:  # a command alone is prose
        parser.parse(arguments)


def test_public_names_are_there_and_nothing_else():
    for name in dissensus.__all__:
        assert getattr(dissensus, name) is not None
    assert dir(dissensus) == sorted(dissensus.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        dissensus.nothing  # noqa: B018
