"""Hostile files through extract, predict and upload, as `python -m benchmarks.hostile` sends a thousand."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import hostile as benchmark
from tests import hostile

pytestmark = pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="needs the extra serve")


def test_each_file_has_a_row_or_a_reason_and_harms_no_other(tmp_path):
    stages = {outcome.stage: outcome for outcome in benchmark.attack(tmp_path, 80, workers=0)}
    assert list(stages) == ["read", "extract", "predict", "upload"]
    for stage in ("read", "extract", "predict"):
        assert stages[stage].files == 100
        assert stages[stage].rows + stages[stage].reasons.total() == 100
        assert stages[stage].rows == stages["read"].rows > 30
    assert stages["upload"].files == 93  # without pipes, devices, links to nowhere and what is too large


def test_the_files_are_those_of_the_seed(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        folder.mkdir()
        hostile.write(folder, 7, seed)
    first, second, other = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert first == second != other


def test_misuse_of_the_benchmark_is_one_line(capsys):
    assert benchmark.main(["--count", "0"]) == 2
    assert "--count must be at least 1" in capsys.readouterr().err
