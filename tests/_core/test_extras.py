"""Optional dependencies: the command that installs them fits how Dissensus itself was installed."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest

from dissensus._core import extras
from dissensus._core.errors import DissensusError


def test_a_clone_is_installed_from_its_folder(monkeypatch):
    assert extras.install("serve") == "pip install '.[serve]'"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DissensusError, match=r"\Ait needs onnx, onnxscript, onnxruntime: pip install '\.\[onnx\]'\Z"):
        extras.require("onnx", "it")


@pytest.mark.parametrize("project", [None, '[project]\nname = "another"\n'])
def test_a_package_is_installed_by_name(monkeypatch, tmp_path, project):
    module = tmp_path / "lib" / "dissensus" / "_core" / "extras.py"
    monkeypatch.setattr(extras, "__file__", str(module))
    if project is not None:
        (tmp_path / "pyproject.toml").write_text(project)
    assert extras.install("serve") == "pip install 'dissensus[serve]'"


def test_every_extra_is_declared():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert {*extras.EXTRAS, "dev", "docs"} == set(project["project"]["optional-dependencies"])
