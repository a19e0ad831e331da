"""No flipped byte of a feature folder, a run, a checkpoint or an export changes a result unnoticed."""

from __future__ import annotations

import warnings

import pytest

from benchmarks import flips
from dissensus._core import digests
from dissensus._core.errors import DissensusWarning


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DissensusWarning)
        return flips.Subjects(tmp_path_factory.mktemp("flips"))


@pytest.mark.parametrize("kind", flips.KINDS)
def test_a_flip_is_noticed_or_changes_nothing(kind, subjects):
    done = list(flips.flips(subjects, kind, 2 * len(subjects.files(kind)), seed=1))
    assert [flip for flip in done if flip.outcome not in ("noticed", "the same")] == []
    assert {flip.file for flip in done if flip.outcome == "noticed"} >= {
        path.relative_to(subjects.root).as_posix() for path in subjects.files(kind) if path.suffix == ".json"
    }


def test_flips_change_results_where_nothing_is_verified(subjects):
    """So the test above can fail."""
    with digests.unverified():
        outcomes = [flip.outcome for kind in ("features", "run") for flip in flips.flips(subjects, kind, 30)]
    assert outcomes.count("changed") > 5
