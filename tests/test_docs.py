"""Every Python example in the documents runs, and every command that they name parses."""

from __future__ import annotations

import re
import runpy
import shlex
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
from dissensus.training import options
from dissensus.training.methods import METHODS

ROOT = Path(__file__).parent.parent
SPARK = ROOT / "examples" / "spark_predictions.py"  # has a test of its own: it needs PySpark and Java
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
    """But for those of the README, which need its images: see test_readme.py. `tune` trains 16 times, so briefly."""
    if path.name == "tune.md":
        monkeypatch.setattr(options, "UPDATES", 50)
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


def test_the_spark_example_maps_batches_as_spark_calls_it(tmp_path):
    """`predict_batch_udf` calls what `make_predictor` returns with an array of bytes per batch; Spark is not needed."""
    import numpy as np

    from dissensus import Detector, ImageSet, backbones, extract, fit, new_ensemble
    from tests.trees import classes

    photos = classes(tmp_path / "photos", ("cat", "dog"), count=15)
    backbone = backbones.create("test_vit", "random", layers=2, size=32)
    features = extract(ImageSet.find(photos), backbone, tmp_path / "f", workers=0, progress=False)
    fit(new_ensemble(features, members=2, seed=0), features, epochs=1, out=tmp_path / "run", progress=False)
    Detector.load(tmp_path / "run").calibrate(features, 0.1).save(tmp_path / "run")
    namespace = runpy.run_path(str(SPARK), run_name="example")
    predict = namespace["make_predictor"](str(tmp_path / "run"))()
    content = np.array([path.read_bytes() for path in sorted(photos.rglob("*.*"))] + [b"no image"], object)
    answers = predict(content)
    assert set(answers) == {"label", "p_value", "verdict"}
    assert all(len(values) == len(content) for values in answers.values())
    assert set(answers["verdict"][:-1]) <= {"out", "nothing unusual"}
    assert np.isnan(answers["p_value"][-1])
