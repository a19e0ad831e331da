"""What is published: wheel and sdist, and the files that describe the project to others."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import dissensus

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.*") if path.suffix != ".pyc"}
LOWEST = runpy.run_path(str(ROOT / ".github" / "lowest.py"))["lowest"](ROOT / "pyproject.toml")


def call(*command: object, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.mark.slow
def test_wheel_and_sdist_hold_every_file_of_the_package(dist):
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name == f"dissensus-{dissensus.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == SOURCES
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "pyproject.toml", "CITATION.cff", *(f"src/{name}" for name in SOURCES)} <= inside


@pytest.mark.slow
def test_the_wheel_works_from_another_folder(dist, tmp_path):
    """Imported from where it was installed, not from this clone."""
    (wheel,) = dist.glob("*.whl")
    target = tmp_path / "target"
    call(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", target, wheel)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    where = call(sys.executable, "-c", "import dissensus; print(dissensus.__file__)", cwd=tmp_path, env=environment)
    assert Path(where.strip()).is_relative_to(target)
    command = [sys.executable, target / "bin" / "dissensus"]
    assert "calibrate" in call(*command, "--help", cwd=tmp_path, env=environment)
    assert "sed-a2d" in call(*command, "list", "methods", cwd=tmp_path, env=environment)
    assert "pacs" in call(*command, "list", "suites", cwd=tmp_path, env=environment)  # reads files of the package


def test_pythons_are_the_same_in_classifiers_and_workflow():
    classified = {c.rpartition(" :: ")[2] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.", c)}
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]
    assert set(jobs["matrix"]["strategy"]["matrix"]["python"]) == classified
    assert PROJECT["requires-python"] == f">={min(classified, key=lambda each: int(each[2:]))}"


def test_lowest_versions_are_those_of_pyproject():
    assert {"numpy==2.0", "timm==1.0.20", "gradio==6.29", "jsonargparse==4.40"} <= set(LOWEST)
    bounded = [each for each in PROJECT["dependencies"] if ">=" in each]
    assert len(bounded) == sum(each.partition("==")[0] in {b.partition(">=")[0] for b in bounded} for each in LOWEST)


def test_the_conda_recipe_requires_the_same():
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    conda = {
        each.replace(" ", "").replace("pytorch>", "torch>").replace("_", "-") for each in recipe["requirements"]["run"]
    }
    ours = {each.replace("_", "-") for each in PROJECT["dependencies"] if ">=" in each}
    assert conda == ours | {f"python{PROJECT['requires-python']}"}
    assert recipe["context"]["version"] == dissensus.__version__


def test_each_dependency_is_in_the_table():
    """With the packages that are required, in their extras."""
    table = (ROOT / "docs" / "dependencies.md").read_text()
    names = set(re.findall(r"[\w.-]+", table))
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]:
        name = re.match(r"[\w.-]+", requirement)[0]
        assert name in names | {"dissensus"}, name
    for extra in extras:
        assert f"| {extra} |" in table or f"| {extra}," in table or f", {extra} |" in table, extra


def test_the_citation_is_that_of_the_readme():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == dissensus.__version__
    bibtex = (ROOT / "README.md").read_text().partition("```bibtex")[2].replace("{", "").replace("}", "")
    cited = citation["preferred-citation"]
    assert cited["title"] in bibtex
    assert " and ".join(f"{a['family-names']}, {a['given-names']}" for a in cited["authors"]) in bibtex
    assert cited["journal"] in bibtex
