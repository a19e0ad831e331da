"""Shorthands for tests of suites of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from dissensus import suites
from dissensus._core.errors import DissensusError
from dissensus.evaluation.suite import Suite
from tests.trees import TINY

OWN = """
sets:
  train: {role: train, images: train, part: [0, 0.5]}
  val: {role: id, images: train, part: [0.5, 1]}
"""


def load(name, root, messages=None, **options) -> Suite:
    return suites.load(
        str(name), root=root, notify=(messages if messages is not None else []).append, **{**TINY, **options}
    )


def roles(suite: Suite) -> dict[str, str]:
    return {s.name: s.role for s in suite.sets}


def by_name(suite: Suite) -> dict:
    return {s.name: s for s in suite.sets}


def recipe_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(match: str):
    """DissensusError whose one line matches."""
    return pytest.raises(DissensusError, match=rf"\A[^\n]*{match}[^\n]*\Z")


def names_of(images) -> set[str]:
    return set(images.names)
