"""ask: samples that members differ on, far from each other, the same each time."""

from __future__ import annotations

import pytest
import torch

from dissensus import FeatureSet, ask
from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus.adaptation._ask import WIDTH, spread
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from tests.conftest import blobs, linear


@pytest.fixture
def ensemble():
    return linear().eval()


def differing():
    """Two members that agree wherever the second feature is zero."""
    ensemble = Ensemble(tails.Linear(2, 2, "none"), members=2)
    with torch.no_grad():
        for m, row in enumerate([(2.0, 5.0), (2.0, -5.0)]):
            ensemble.stacked()["weight"][m] = torch.stack([-torch.tensor(row), torch.tensor(row)])
            ensemble.stacked()["bias"][m] = 0
    return ensemble.eval()


def test_it_asks_about_the_region_where_members_differ():
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(200, 2)
    x[:, 0] = 1 + torch.rand(200, generator=generator)
    x[180:, 1] = 2 + torch.rand(20, generator=generator)
    questions = ask(differing(), FeatureSet.from_arrays(x), 4, classes=("no", "yes"))
    assert (questions.rows >= 180).sum() >= 3
    assert questions.rows[0] >= 180
    first = questions.reasons[0]
    assert first == "1 say no, 1 say yes"
    assert questions.named_votes[0] == ["yes", "no"]
    assert questions.disagreement[0] > 0.5


def test_samples_lie_apart():
    x = torch.eye(4).repeat_interleave(25, 0) + 0.01 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    questions = ask(linear(width=4).eval(), FeatureSet.from_arrays(x), 4)
    assert sorted((questions.rows // 25).tolist()) == [0, 1, 2, 3]


def test_all_samples_if_the_pool_is_small(ensemble):
    questions = ask(ensemble, blobs(5), 16)
    assert sorted(questions.rows.tolist()) == [0, 1, 2, 3, 4]
    assert (questions.disagreement.diff() <= 0).all()
    assert questions.votes.shape == (5, 4)
    assert len(questions) == len(questions.reasons) == 5
    assert repr(questions).startswith("Questions(5 samples to label")


@pytest.mark.parametrize("count", [1, 7])
def test_as_many_different_samples_as_asked_for(ensemble, count):
    assert len(set(ask(ensemble, blobs(), count).rows.tolist())) == count


def test_duplicates_in_the_pool(ensemble):
    x = blobs(3).rows(slice(None)).repeat(10, 1)
    rows = ask(ensemble, FeatureSet.from_arrays(x), 8).rows.tolist()
    assert len(set(rows)) == 8
    assert {row % 3 for row in rows[:3]} == {0, 1, 2}  # each once, before any is repeated


def test_a_pool_of_one_sample_repeated(ensemble):
    same = FeatureSet.from_arrays(torch.ones(20, 6))
    assert len(set(ask(ensemble, same, 4).rows.tolist())) == 4


def test_it_is_deterministic_and_ignores_labels(ensemble):
    pool = blobs(100)
    bare = FeatureSet.from_arrays(pool.rows(slice(None)))
    assert torch.equal(ask(ensemble, pool, 9).rows, ask(ensemble, bare, 9).rows)


def test_members_that_agree_are_said_to(ensemble):
    alike = Ensemble(ensemble.member(0), members=3, init="template")
    questions = ask(alike, blobs(), 2, classes=("a", "b", "c"))
    assert "all 3 members say " in questions.reasons[0]
    assert questions.disagreement.abs().max() < 1e-6


def test_the_reason_names_three_classes_at_most():
    ensemble = linear(members=6, classes=6).eval()
    with torch.no_grad():
        ensemble.stacked()["weight"].zero_()
        ensemble.stacked()["bias"].copy_(5 * torch.eye(6))
    questions = ask(ensemble, blobs(3), 1, classes=("a", "b"))
    assert questions.reasons == ["1 say a, 1 say b, 1 say 2, 3 others"]


def test_maps_and_wide_features():
    maps = FeatureSet.from_arrays(torch.randn(30, 5, 2, 2, generator=torch.Generator().manual_seed(0)))
    assert len(ask(Ensemble(tails.Conv(5, 3, hidden=4), members=2).eval(), maps, 4)) == 4
    wide = FeatureSet.from_arrays(torch.randn(80, WIDTH + 20, generator=torch.Generator().manual_seed(0)))
    assert len(ask(linear(width=WIDTH + 20).eval(), wide, 4)) == 4


def test_what_cannot_be_asked(ensemble):
    with pytest.raises(DissensusError, match="this ensemble has one"):
        ask(linear(1), blobs(), 4)
    with pytest.raises(DissensusError, match="count must be at least 1; got 0"):
        ask(ensemble, blobs(), 0)
    with pytest.raises(ShapeError, match="the pool has rows of shape"):
        ask(ensemble, blobs(width=5), 4)
    with pytest.raises(DataError, match="2 augmented passes"):
        ask(ensemble, FeatureSet.from_arrays(torch.ones(4, 6), provenance={"passes": 2}), 2)
    with pytest.raises(DataError, match="at least one row"):
        ask(ensemble, FeatureSet.from_arrays(torch.ones(0, 6)), 2)


def test_rows_of_a_part_are_numbered_in_the_whole(ensemble):
    questions = ask(ensemble, blobs(4), 4)
    assert sorted(questions.at([10, 20, 30, 40]).rows.tolist()) == [10, 20, 30, 40]


def test_spread_takes_the_informative_of_equal_points():
    information = torch.tensor([0.0, 0.9, 0.0, 0.0])
    points = torch.tensor([[0.0, 0.0], [0.0, 0.0], [5.0, 5.0], [5.0, 5.0]])
    assert spread(information, points, 2)[0] == 1
