"""Scores against the paper's formulas, their bounds, directions, known values, chunks and registry."""

from __future__ import annotations

import doctest
import inspect
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dissensus._core.errors import DataError, DissensusError, ShapeError, UnknownNameError
from dissensus.functional import scores
from tests import reference

BUILT_IN = [
    "pds",
    "bma",
    "a2d",
    "average_energy",
    "average_entropy",
    "average_max_prob",
    "single_max_prob",
    "average_max_logit",
    "ensemble_entropy",
    "gen",
    "mutual_information",
    "unique",
]
IN_LOGIT_UNITS = {"a2d", "average_energy", "average_max_logit"}

every_score = pytest.mark.parametrize("name", BUILT_IN)
thorough = settings(deadline=None, max_examples=50)


def logits_of(dtype: str) -> st.SearchStrategy[Tensor]:
    """Any (M, B, C), with mild, wide and extreme logits, many of them tied."""
    width = np.dtype(dtype).itemsize * 8
    elements = st.one_of(
        st.floats(-5, 5, width=width),
        st.floats(-1e4, 1e4, width=width),
        st.sampled_from([-1e4, -30.0, 0.0, 1.0, 30.0, 1e4]),
    )
    shapes = st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(2, 7))
    return shapes.flatmap(lambda shape: arrays(dtype, shape, elements=elements)).map(torch.from_numpy)


def log_probs(*members: list[float]) -> Tensor:
    """Logits of one sample from the members' probabilities: (M, 1, C)."""
    return torch.tensor(members, dtype=torch.float64).log()[:, None]


def random_logits(*shape: int, scale: float = 3.0, seed: int = 0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def registry() -> Iterator[dict[str, scores.Score]]:
    """The registry, put back afterwards."""
    before = dict(scores.SCORES)
    yield scores.SCORES
    scores.SCORES.clear()
    scores.SCORES.update(before)


# Numerics


@every_score
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_agrees_with_the_formula(name: str, dtype: str, tolerance: float) -> None:
    @thorough
    @given(logits_of(dtype))
    def check(logits: Tensor) -> None:
        result = scores.SCORES[name](logits)
        expected = getattr(reference, name)(logits.double().numpy())
        assert result.shape == logits.shape[1:2]
        assert result.dtype == (torch.int64 if name == "unique" else logits.dtype)
        # a mean of logits that cancel is right to the rounding of the logits
        scale = max(1.0, float(logits.abs().max())) if name in IN_LOGIT_UNITS and logits.numel() else 1.0
        np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance * scale)

    check()


@every_score
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    logits = random_logits(4, 6, 50).to(dtype)
    result = scores.SCORES[name](logits)
    assert result.dtype == (torch.int64 if name == "unique" else torch.float32)
    expected = getattr(reference, name)(logits.double().numpy())
    np.testing.assert_allclose(result.numpy(), expected, rtol=2e-6, atol=2e-6)


@thorough
@given(logits_of("float32"))
def test_normalized_pds_is_the_paper_s_formula(logits: Tensor) -> None:
    expected = reference.pds(logits.double().numpy(), normalize=True)
    np.testing.assert_allclose(scores.pds(logits, normalize=True).numpy(), expected, rtol=1e-6, atol=1e-6)


@thorough
@given(logits_of("float32"))
def test_bounds(logits: Tensor) -> None:
    M, _, C = logits.shape
    bounds = {
        "pds": (1, min(M, C)),
        "bma": (0, 1 - 1 / C),
        "a2d": (-math.inf, 0),
        "average_entropy": (0, math.log(C)),
        "average_max_prob": (0, 1 - 1 / C),
        "ensemble_entropy": (0, math.log(C)),
        "mutual_information": (0, math.log(min(M, C))),
        "unique": (1, min(M, C)),
    }
    for name, (low, high) in bounds.items():
        result = scores.SCORES[name](logits)
        assert (result >= low).all(), name  # exact: a score below its floor would break ranks and logarithms
        assert (result <= high + 1e-6).all(), name
    assert (scores.a2d(logits) <= 0).all()


def test_rounding_stays_within_the_bounds() -> None:
    """Sums of 100 rounded probabilities miss 1 by a few 1e-7 either way; members that agree add nothing."""
    one = random_logits(1, 2000, 100)
    assert (scores.pds(one) == 1).all()
    assert (scores.pds(one.expand(3, -1, -1)) >= 1).all()
    assert (scores.mutual_information(one.expand(3, -1, -1)) >= 0).all()


@every_score
def test_finite_at_extreme_logits(name: str) -> None:
    """Members dead sure and agreeing, dead sure and disagreeing, all classes tied; all at +-1e4."""
    logits = torch.full((2, 3, 4), -1e4)
    logits[:, 0, 1] = 1e4
    logits[0, 1, 0] = logits[1, 1, 3] = 1e4
    assert scores.SCORES[name](logits).isfinite().all()
    assert scores.SCORES[name](logits[:1]).isfinite().all()


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "single_max_prob"])  # which is of the first
@given(logits=logits_of("float64"), random=st.randoms(use_true_random=False))
@thorough
def test_member_order_does_not_matter(name: str, logits: Tensor, random: Any) -> None:
    order = list(range(len(logits)))
    random.shuffle(order)
    score = scores.SCORES[name]
    torch.testing.assert_close(score(logits[order]), score(logits), rtol=1e-11, atol=1e-9)


@every_score
def test_samples_do_not_meet(name: str) -> None:
    """In particular mutual information takes the sample's own member entropy, not the batch mean."""
    logits = random_logits(4, 8, 5)
    one_by_one = torch.cat([scores.SCORES[name](logits[:, b : b + 1]) for b in range(8)])
    torch.testing.assert_close(scores.SCORES[name](logits), one_by_one)


def test_gradients_are_finite_and_right() -> None:
    logits = random_logits(3, 2, 4).double().requires_grad_()
    for name in sorted(set(BUILT_IN) - {"unique"}):
        assert torch.autograd.gradcheck(scores.SCORES[name], logits), name
    sure = torch.tensor([[[1e4, 0.0]], [[1e4, -1e4]]], requires_grad=True)
    scores.a2d(sure).sum().backward()
    assert sure.grad is not None
    assert sure.grad.isfinite().all()


# Known values


def test_two_members_by_hand() -> None:
    """p^1 = (.9, .1), p^2 = (.2, .8); mean (.55, .45).

    PDS: .9 + .8 = 1.7; over C = 2: .85. BMA: 1 - .55. Average max prob: 1 - (.9 + .8) / 2.
    A2D: (m=1, l=2), y=0: .9 * .8 + .2 * .1 = .74; (m=2, l=1), y=1: .8 * .9 + .1 * .2 = .74.
    Entropies: H(.9, .1) = .325083, H(.2, .8) = .500402, mean .412743; H(.55, .45) = .688139.
    Mutual information: .688139 - .412743. Logits are log p + 2, so logsumexp is 2 and the largest logits
    are 2 + log .9 and 2 + log .8.
    """
    logits = log_probs([0.9, 0.1], [0.2, 0.8]) + 2
    expected = {
        "pds": 1.7,
        "bma": 0.45,
        "a2d": math.log(0.74),
        "average_energy": -2.0,
        "average_entropy": 0.412743,
        "average_max_prob": 0.15,
        "single_max_prob": 0.1,
        "average_max_logit": -2 - (math.log(0.9) + math.log(0.8)) / 2,
        "ensemble_entropy": 0.688139,
        "gen": 2 * (0.55 * 0.45) ** 0.1,
        "mutual_information": 0.275396,
        "unique": 2,
    }
    assert {name: scores.SCORES[name](logits).item() for name in BUILT_IN} == pytest.approx(expected, abs=1e-6)
    assert scores.pds(logits, normalize=True).item() == pytest.approx(0.85)


def test_a2d_takes_pairs_in_both_orders() -> None:
    """p^1 = (.6, .3, .1), p^2 = (.1, .2, .7).

    (1, 2), y=0: .6 * .9 + .1 * .4 = .58. (2, 1), y=2: .7 * .9 + .1 * .3 = .66.
    """
    logits = log_probs([0.6, 0.3, 0.1], [0.1, 0.2, 0.7])
    assert scores.a2d(logits).item() == pytest.approx((math.log(0.58) + math.log(0.66)) / 2)


def test_a2d_of_a_lone_member() -> None:
    """Paired with itself: log(2 * .9 * .1) = log .18, what two copies of it score."""
    logits = log_probs([0.9, 0.1])
    assert scores.a2d(logits).item() == pytest.approx(math.log(0.18))
    assert scores.a2d(logits.expand(2, -1, -1)).item() == pytest.approx(math.log(0.18))


def test_a2d_is_exact_where_members_are_sure() -> None:
    """Two members with logits (1e4, -1e4): p = 1 - exp(-2e4), so log(2 p (1 - p)) = log 2 - 20000.

    With (20, -20) and (-20, 20) they disagree: p^1 (1 - p^2) is (1 - e)^2 with e = exp(-40), so 0.
    """
    agree = torch.tensor([[[1e4, -1e4]], [[1e4, -1e4]]])
    assert scores.a2d(agree).item() == pytest.approx(math.log(2) - 20000, rel=1e-7)
    disagree = torch.tensor([[[20.0, -20.0]], [[-20.0, 20.0]]])
    assert scores.a2d(disagree).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["bma", "average_max_prob"])
def test_sure_samples_keep_their_rank_in_float32(name: str) -> None:
    """Logits (0, -30) and (0, -40): 1 - p is exp(-30) and exp(-40), though p rounds to 1 in float32."""
    logits = torch.tensor([[[0.0, -30.0], [0.0, -40.0]]])
    assert scores.SCORES[name](logits).tolist() == pytest.approx([math.exp(-30), math.exp(-40)], rel=1e-5, abs=0)


def test_pds_counts_the_classes_of_certain_members() -> None:
    """One-hot members naming classes 0 0 2, 1 1 1 and 2 0 1: 2, 1 and 3 classes."""
    named = torch.tensor([[0, 0, 2], [1, 1, 1], [2, 0, 1]])
    logits = 1e4 * torch.nn.functional.one_hot(named.T, 4).float()
    assert scores.unique(logits).tolist() == [2, 1, 3]
    assert scores.pds(logits).tolist() == [2.0, 1.0, 3.0]


# Direction

AGREEING = torch.tensor([[[6.0, 0.0, 0.0]], [[6.0, 0.0, 0.0]], [[6.0, 0.0, 0.0]]])
DISAGREEING = torch.tensor([[[6.0, 0.0, 0.0]], [[0.0, 6.0, 0.0]], [[0.0, 0.0, 6.0]]])
UNSURE = torch.tensor([[[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]])
TO_DISAGREEMENT = {"pds", "bma", "a2d", "ensemble_entropy", "gen", "mutual_information", "unique"}
TO_DOUBT = set(BUILT_IN) - {"pds", "mutual_information", "unique"}


@every_score
def test_disagreement_raises_the_score(name: str) -> None:
    agreeing, disagreeing = (scores.SCORES[name](logits).item() for logits in (AGREEING, DISAGREEING))
    if name in TO_DISAGREEMENT:
        assert disagreeing > agreeing + 0.1
    else:
        assert disagreeing == pytest.approx(agreeing, abs=1e-6)


@every_score
def test_doubt_raises_the_score(name: str) -> None:
    agreeing, unsure = (scores.SCORES[name](logits).item() for logits in (AGREEING, UNSURE))
    if name in TO_DOUBT:
        assert unsure > agreeing + 0.1
    else:
        assert unsure == pytest.approx(agreeing, abs=1e-6)


# Chunks


@every_score
@pytest.mark.parametrize("elements", [1, 70, 10**9])
def test_chunks_change_nothing(name: str, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(3, 11, 7)
    expected = scores.SCORES[name](logits)
    monkeypatch.setattr(scores, "CHUNK_ELEMENTS", elements)
    torch.testing.assert_close(scores.SCORES[name](logits), expected, rtol=1e-6, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
        tensors = [t for t in (out if isinstance(out, list | tuple) else [out]) if isinstance(t, Tensor)]
        tensors = [t for t in tensors if t.untyped_storage().data_ptr() not in given]  # views take no memory
        self.elements = max([self.elements, *(t.numel() for t in tensors)])
        return out


@every_score
@pytest.mark.parametrize("shape", [(1, 400, 20), (4, 400, 20), (30, 400, 2)])
def test_no_temporary_outgrows_a_chunk(name: str, shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """(30, 400, 2) has more member pairs than logits."""
    monkeypatch.setattr(scores, "CHUNK_ELEMENTS", 2000)
    logits = random_logits(*shape).half()
    with LargestTensor() as largest:
        scores.SCORES[name](logits)
    assert 0 < largest.elements <= 2000


def test_a_memory_mapped_file_is_read_in_chunks(
    tmp_path: Any, registry: dict[str, scores.Score], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Size] = []

    @scores.register
    def probe(logits: Tensor) -> Tensor:
        seen.append(logits.shape)
        assert logits.dtype == torch.float32
        return logits[0, :, 0]

    mapped = np.memmap(tmp_path / "logits", dtype=np.float16, mode="w+", shape=(4, 300, 10))
    mapped[0, :, 0] = np.arange(300)
    monkeypatch.setattr(scores, "CHUNK_ELEMENTS", 1000)
    assert probe(torch.from_numpy(mapped)).tolist() == list(range(300))
    assert max(shape.numel() for shape in seen) == 1000
    assert sum(shape[1] for shape in seen) == 300


# Registry and misuse


def test_registry_holds_every_score() -> None:
    assert list(scores.of_logits()) == BUILT_IN
    assert scores.SCORES["pds"] is scores.pds
    for name in BUILT_IN:
        assert scores.SCORES[name].__name__ == name
        assert "(M, B, C) -> (B,)" in (inspect.getdoc(scores.SCORES[name]) or "")
    assert "normalize" in inspect.signature(scores.pds).parameters


def test_a_user_s_own_score(registry: dict[str, scores.Score]) -> None:
    @scores.register
    def disagreement_with_first(logits: Tensor, *, scale: float = 1.0) -> Tensor:
        """Mine."""
        return scale * (logits.argmax(-1) != logits[0].argmax(-1)).float().mean(0)

    assert scores.SCORES["disagreement_with_first"] is disagreement_with_first
    assert disagreement_with_first.__doc__ == "Mine."
    assert disagreement_with_first(DISAGREEING, scale=3.0).tolist() == pytest.approx([2.0])


def test_the_examples_run(registry: dict[str, scores.Score]) -> None:
    assert doctest.testmod(scores) == doctest.TestResults(failed=0, attempted=2)


def test_a_name_in_use_is_refused(registry: dict[str, scores.Score]) -> None:
    def pds(logits: Tensor) -> Tensor:
        return logits[0, :, 0]

    with pytest.raises(DissensusError, match="'pds' is taken: choose another"):
        scores.register(pds)
    assert scores.SCORES["pds"] is scores.pds


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown score 'average-entrpy': did you mean 'average_entropy'"):
        scores.SCORES.check("average-entrpy")


def test_a_score_that_keeps_classes_is_refused(registry: dict[str, scores.Score]) -> None:
    @scores.register
    def per_class(logits: Tensor) -> Tensor:
        return logits.mean(0)

    with pytest.raises(ShapeError, match=r"'per_class' must return \(B,\); got \(1, 3\)"):
        per_class(AGREEING)


@every_score
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 10), r"\(M, B, C\); got \(5, 10\): for one sample use logits\[:, None\]"),
        ((5, 10, 3, 2), r"\(M, B, C\); got \(5, 10, 3, 2\): members come first"),
        ((0, 10, 3), r"M >= 1 members .* got \(0, 10, 3\)"),
        ((5, 10, 1), r"C >= 2 classes; got \(5, 10, 1\)"),
    ],
)
def test_wrong_shapes_are_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        scores.SCORES[name](torch.zeros(shape))


def test_integer_logits_are_refused() -> None:
    with pytest.raises(DataError, match=r"floating point; got torch.int64: use logits.float\(\)"):
        scores.unique(torch.zeros(2, 3, 4, dtype=torch.int64))
