"""Aggregates against naive code and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from dissensus._core.errors import DissensusError, ShapeError, UnknownNameError
from dissensus.functional import aggregates

INF = math.inf


def sure(*members: list[int], classes: int) -> Tensor:
    """Logits of members that name these classes: one list of B classes a member, to (M, B, C)."""
    return 5.0 * torch.nn.functional.one_hot(torch.tensor(members), classes).float()


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


logits_f64 = (
    st.tuples(st.integers(1, 5), st.integers(0, 4), st.integers(2, 6))
    .flatmap(lambda shape: arrays("float64", shape, elements=st.floats(-15, 15)))
    .map(torch.from_numpy)
)


@settings(deadline=None, max_examples=50)
@given(logits_f64)
def test_agrees_with_naive_code(logits: Tensor) -> None:
    M, B, C = logits.shape
    z = logits.numpy()
    np.testing.assert_allclose(aggregates.prediction(logits).exp().numpy(), softmax(z.mean(0)), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(aggregates.probability(logits).exp().numpy(), softmax(z).mean(0), rtol=1e-12, atol=1e-15)
    votes = np.zeros((B, C))
    for m in range(M):
        for b in range(B):
            votes[b, z[m, b].argmax()] += 1 / M
    np.testing.assert_allclose(aggregates.vote(logits).exp().numpy(), votes, rtol=1e-12, atol=1e-15)


def test_prediction_and_probability_differ_by_hand() -> None:
    """Members (.9, .1) and (.5, .5).

    The mean of the log odds is log(9) / 2 = log 3: probabilities (3/4, 1/4). Mean probability: (.7, .3).
    """
    logits = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]]]).log()
    torch.testing.assert_close(aggregates.prediction(logits), torch.tensor([[0.75, 0.25]]).log())
    torch.testing.assert_close(aggregates.probability(logits), torch.tensor([[0.7, 0.3]]).log())


@pytest.mark.parametrize("name", sorted(aggregates.of_kind("logits")))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_normalised_and_never_in_half_precision(name: str, dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(4, 5, 30, generator=torch.Generator().manual_seed(0))).to(dtype)
    log_probs = aggregates.AGGREGATES[name](logits)
    assert log_probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(log_probs.logsumexp(-1), torch.zeros(5, dtype=log_probs.dtype), atol=2e-6, rtol=0)


def test_extreme_logits_stay_finite() -> None:
    """Members dead sure of different classes: half each for two, and the third is e^-20000 less likely."""
    logits = torch.tensor([[[1e4, -1e4, -1e4]], [[-1e4, 1e4, -1e4]]])
    half = -math.log(2)
    assert aggregates.probability(logits)[0].tolist() == pytest.approx([half, half, -20000])
    assert aggregates.prediction(logits)[0].tolist() == pytest.approx([half, half, -10000 + half])


def test_vote_shares_and_ties() -> None:
    """Sample 0: two for class 1, one for class 0. Sample 1: one each for 2, 1 and 0; the lowest, 0, wins."""
    log_shares = aggregates.vote(sure([1, 2], [0, 1], [1, 0], classes=4))
    third = math.log(1 / 3)
    assert log_shares[0].tolist() == pytest.approx([third, math.log(2 / 3), -INF, -INF])
    assert log_shares[1].tolist() == pytest.approx([third, third, third, -INF])
    assert log_shares.argmax(-1).tolist() == [1, 0]


def test_a_member_s_tie_is_a_vote_for_its_lowest_class() -> None:
    assert aggregates.vote(torch.tensor([[[0.0, 1.0, 1.0]]])).tolist() == [[-INF, 0.0, -INF]]


@pytest.mark.parametrize("subset", [[3, 1], torch.tensor([3, 1])])
def test_restrict_then_vote_against_the_authors_vote(subset: list[int] | Tensor) -> None:
    """Four classes, the test set has classes 3 and 1.

    Sample 0: members name 0, 0 and 3. Votes for 0 are lost: (1/3, 0) left. Restricted first, the two who
    name 0 must choose between 3 and 1, whose logits tie, so the first listed, 3: all three votes.
    Sample 1: all name 2: nothing is left, and the argmax is position 0.
    """
    logits = sure([0, 2], [0, 2], [3, 2], classes=4)
    log_shares = aggregates.authors_vote(logits, subset)
    assert log_shares[0].tolist() == pytest.approx([math.log(1 / 3), -INF])
    assert log_shares[1].tolist() == [-INF, -INF]
    assert log_shares.argmax(-1).tolist() == [0, 0]
    assert aggregates.vote(aggregates.restrict(logits, subset))[0].tolist() == [0.0, -INF]


def test_restrict_keeps_the_given_order() -> None:
    logits = torch.arange(24.0).reshape(2, 3, 4)
    assert aggregates.restrict(logits, [2, 0]).tolist() == logits[:, :, [2, 0]].tolist()
    assert aggregates.restrict(logits[0], [2, 0]).tolist() == logits[0][:, [2, 0]].tolist()


def test_greedy_soup_by_hand() -> None:
    """Best first: 2, 0, 3, 1. {2} .70; with 0 .68 falls, skip; with 3 .70 does not, keep; with 1 .72."""
    accuracy = {(0,): 0.6, (1,): 0.3, (2,): 0.70, (3,): 0.5, (2, 0): 0.68, (2, 3): 0.70, (2, 3, 1): 0.72}
    tried: list[tuple[int, ...]] = []

    def held_out(members: list[int]) -> float:
        tried.append(tuple(members))
        return accuracy[tuple(members)]

    assert aggregates.greedy_soup(4, held_out) == [2, 3, 1]
    assert tried == [(0,), (1,), (2,), (3,), (2, 0), (2, 3), (2, 3, 1)]


def test_greedy_soup_raises_the_bar() -> None:
    """{0} .5; with 1: .6, keep; with 2: .55, above the start but below the soup so far, skip."""
    accuracy = {(0,): 0.5, (1,): 0.5, (2,): 0.4, (0, 1): 0.6, (0, 1, 2): 0.55}
    assert aggregates.greedy_soup(3, lambda members: accuracy[tuple(members)]) == [0, 1]


def test_the_uniform_soup_takes_all() -> None:
    assert aggregates.soup(3) == [0, 1, 2]


def test_single_members_and_the_best_of_them() -> None:
    assert float(aggregates.oracle(torch.tensor([0.3, 0.8, 0.5, 0.8]))) == pytest.approx(0.8)
    assert float(aggregates.members(torch.tensor([0.3, 0.8, 0.5, 0.8]))) == pytest.approx(0.6)


def test_every_aggregate_has_a_heading_and_a_summary_of_its_own() -> None:
    entries = aggregates.AGGREGATES.values()
    assert [entry.name for entry in entries] == list(aggregates.AGGREGATES)
    for field in ("heading", "summary"):
        values = [getattr(entry, field) for entry in entries]
        assert all(values)
        assert len(set(values)) == len(values)
    assert list(aggregates.of_kind("logits")) == ["prediction", "probability", "vote"]


def test_your_own_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregates, "AGGREGATES", aggregates.AGGREGATES.copy())

    @aggregates.register("first member", kind="logits")
    def the_first(logits: Tensor) -> Tensor:
        return logits[0].log_softmax(-1)

    assert aggregates.AGGREGATES["the-first"].function is the_first
    assert "the-first" in aggregates.of_kind("logits")
    with pytest.raises(DissensusError, match="every aggregate needs its own name; 'the-first' is taken"):
        aggregates.register("again", kind="logits")(the_first)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown aggregate 'greedy_soup': did you mean 'greedy-soup'"):
        aggregates.AGGREGATES["greedy_soup"]
    with pytest.raises(UnknownNameError, match="unknown aggregate 'soup': known: prediction, probability, vote"):
        aggregates.of_kind("logits").check("soup")


def test_misuse_is_refused() -> None:
    for name in aggregates.of_kind("logits"):
        with pytest.raises(ShapeError, match=r"\(M, B, C\); got \(5, 10\): for one sample"):
            aggregates.AGGREGATES[name](torch.zeros(5, 10))
    with pytest.raises(ShapeError, match=r"\(M,\) with M >= 1; got \(2, 2\)"):
        aggregates.oracle(torch.zeros(2, 2))
    with pytest.raises(DissensusError, match="at least one member; got 0"):
        aggregates.greedy_soup(0, lambda members: 1.0)
