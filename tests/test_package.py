"""What is published: wheel and sdist, and the files that describe the project to others."""

from __future__ import annotations

import email
import json
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
from dissensus.cli import COMMANDS
from tests import environments
from tests.trees import classes

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.*") if path.suffix != ".pyc"}
LOWEST = runpy.run_path(str(ROOT / ".github" / "lowest.py"))["lowest"](ROOT / "pyproject.toml")
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # else src of this clone is found


def call(*command: object, timeout: float = 120, **options: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, env=OUTSIDE, **options)
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


@pytest.fixture(scope="module")
def clean(dist, tmp_path_factory):
    """Python in an environment that has the wheel and what it requires, without any extra."""
    (wheel,) = dist.glob("*.whl")
    return environments.create(tmp_path_factory.mktemp("clean") / "venv", wheel)


@pytest.mark.slow
@environments.needs_links
def test_a_clean_environment_has_nothing_but_the_base_install(clean, tmp_path):
    where = call(clean, "-I", "-c", "import dissensus; print(dissensus.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(clean.parents[1])
    lines = call(clean.with_name("dissensus"), "--version", cwd=tmp_path).splitlines()
    assert (lines[0], lines[-1].split()) == (f"dissensus {dissensus.__version__}", ["extras", "none"])
    assert "not installed" not in "".join(lines)


@pytest.mark.slow
@environments.needs_links
def test_each_base_command_works_in_a_clean_environment(clean, tmp_path):
    """From another folder, on images made there; each missing extra is one line.

    `demo`, `join` and `tune` have tests of their own, on the same modules.
    """
    classes(tmp_path / "photos", count=35, side=40)
    classes(tmp_path / "stones", ["grey"], count=12, side=40)
    done = json.loads(call(clean, "-I", environments.COMMANDS, cwd=tmp_path, timeout=300).splitlines()[-1])
    assert {verb: answer for verb, *answer in done["work"] if answer[0] != 0} == {}
    assert {verb for verb, *_ in done["work"]} == set(COMMANDS) - {"demo", "join", "serve", "tune"}
    assert "pacs" in done["work"][1][2], "recipes are files of the package"
    for extra, code, out, err in done["need"]:
        assert (code, out) == (2, ""), (extra, err)
        assert err.endswith(f"pip install 'dissensus[{extra}]'\n"), err
        assert err.count("dissensus: error: ") == 1, err
        assert "Traceback" not in err
    assert {extra for extra, *_ in done["need"]} == {"corruptions", "lite", "onnx", "ood", "ray", "serve"}


@pytest.mark.slow
def test_links_of_the_readme_are_absolute_on_the_page_of_the_package(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    page = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())) > 10
    blob = f"{PROJECT['urls']['Source']}/blob/v{dissensus.__version__}/"
    for link in links:
        assert link.startswith("https://"), link
        if link.startswith(blob):
            assert (ROOT / link.removeprefix(blob)).exists(), link
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    raw = blob.replace("//github.com", "//raw.githubusercontent.com").replace("/blob", "")
    assert (ROOT / picture.removeprefix(raw)).is_file(), picture
    assert {each.partition(",")[0] for each in metadata.get_all("Project-URL")} == {
        "Homepage", "Documentation", "Source", "Changelog", "Issues"
    }  # fmt: skip


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
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Dependencies\n")[2]
    names = set(re.findall(r"[\w.-]+", table))
    extras = PROJECT["optional-dependencies"]
    for requirement in [*PROJECT["dependencies"], *(each for extra in extras.values() for each in extra)]:
        name = re.match(r"[\w.-]+", requirement)[0]
        assert name in names | {"dissensus"}, name
    for extra in extras:
        assert f"| {extra} |" in table or f"| {extra}," in table or f", {extra} |" in table, extra


def test_the_citation_is_that_of_the_readme():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation), "what the format requires"
    assert (citation["version"], citation["license"]) == (dissensus.__version__, PROJECT["license"])
    assert citation["repository-code"] == PROJECT["urls"]["Source"]
    bibtex = (ROOT / "README.md").read_text().partition("```bibtex")[2].replace("{", "").replace("}", "")
    cited = citation["preferred-citation"]
    assert cited["title"] in bibtex
    assert " and ".join(f"{a['family-names']}, {a['given-names']}" for a in cited["authors"]) in bibtex
    assert cited["journal"] in bibtex
