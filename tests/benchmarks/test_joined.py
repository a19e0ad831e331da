"""The benchmark of backbones alone and joined, on clouds."""

from __future__ import annotations

import pytest

from benchmarks import joined
from dissensus._core.errors import DissensusError
from tests.conftest import blobs


@pytest.fixture
def folders(tmp_path):
    for name, width in (("a", 6), ("b", 9)):
        blobs(240, width).save(tmp_path / name / "in")
        blobs(60, width, seed=3, noise=8).save(tmp_path / name / "out")
    return [str(tmp_path / name) for name in ("a", "b")]


def test_there_is_a_row_for_every_backbone_and_all_of_them(folders, capsys):
    joined.main(["--on", *folders, "--id", "in", "--ood", "out", "--method", "deep-ensemble", "--epochs", "2"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[2:]] == [
        [name, score] for score in joined.SCORES for name in ("a", "b", "a + b")
    ]  # fmt: skip
    assert all(float(row[3].split()[0]) > 0.7 for row in rows[2:]), "far clouds are found"


def test_sets_that_are_missing_raise(folders):
    with pytest.raises(DissensusError, match="nowhere"):
        joined.main(["--on", *folders, "--id", "nowhere", "--ood", "out"])
