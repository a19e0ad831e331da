"""Scores are fitted at the end of training, kept with the run, and the same in every process."""

from __future__ import annotations

import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dissensus._core.errors import DataError, DissensusError, DissensusWarning, UnknownNameError
from dissensus.features import FeatureSet
from dissensus.functional import scores
from dissensus.functional.fitted import FittedScore, Rows
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import _fit, fit_scores, scoring
from dissensus.training._fit import fit
from tests.conftest import blobs, linear

QUICK = {"epochs": 2, "batch_size": 32, "progress": False}


def values(ensemble: Ensemble, features: FeatureSet) -> dict[str, torch.Tensor]:
    x = features.rows(slice(None))
    with torch.no_grad():
        return {name: scores.compute(name, ensemble(x), x, ensemble.fitted) for name in ensemble.fitted}


def test_fit_fits_all_of_them_and_keeps_them_with_the_run(tmp_path):
    ensemble = fit(linear(), blobs(), "deep-ensemble", out=tmp_path / "run", **QUICK)
    assert list(ensemble.fitted) == list(scores.of_features())
    assert Ensemble.load(tmp_path / "run" / "ensemble").score_digests == ensemble.score_digests
    labels = blobs().labels
    state = scores.of_features()["mahalanobis"].fit(Rows(blobs(), labels, 3), labels)
    found = ensemble.fitted["mahalanobis"].state_dict()
    assert all(torch.equal(found[name], value) for name, value in state.items())
    assert all(value.isfinite().all() for value in values(ensemble, blobs(50, seed=4)).values())


def test_a_finished_run_keeps_its_own(tmp_path, monkeypatch):
    fit(linear(), blobs(), "deep-ensemble", out=tmp_path, scores=["mahalanobis"], **QUICK)
    monkeypatch.setattr(_fit, "fit_scores", lambda *args, **options: pytest.fail("fitted again"))
    again = fit(linear(), blobs(), "deep-ensemble", out=tmp_path, **QUICK)
    assert list(again.fitted) == ["mahalanobis"]


def test_a_run_that_was_killed_while_fitting_scores_fits_them_again(tmp_path, monkeypatch):
    def killed(*args, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_fit, "fit_scores", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(linear(), blobs(), "sed-a2d", out=tmp_path / "killed", **QUICK)
    resumed = fit(linear(), blobs(), "sed-a2d", out=tmp_path / "killed", **QUICK)
    whole = fit(linear(), blobs(), "sed-a2d", out=tmp_path / "whole", **QUICK)
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.score_digests == whole.score_digests


def test_none_and_some_can_be_chosen():
    assert fit(linear(), blobs(), "deep-ensemble", scores=(), **QUICK).fitted == {}
    assert list(fit(linear(), blobs(), "deep-ensemble", scores=["knn"], **QUICK).fitted) == ["knn"]
    with pytest.raises(UnknownNameError, match="did you mean 'mahalanobis'"):
        fit(linear(), blobs(), "deep-ensemble", scores=["mahalanobi"], **QUICK)
    with pytest.raises(DissensusError, match="only scores of features are fitted; 'pds' is one of logits"):
        fit_scores(linear(), blobs(), ["pds"])
    with pytest.raises(DataError, match="scores are fitted to labelled features"):
        fit_scores(linear(), FeatureSet.from_arrays(torch.zeros(4, 6)))


def test_a_score_that_needs_a_linear_head_raises_before_training(monkeypatch):
    monkeypatch.setattr(_fit, "_train", lambda *args: pytest.fail("trained first"))
    with pytest.raises(DissensusError, match=r"'pytorch-ood:ViM' needs members that are linear in L2-normalised"):
        fit(Ensemble(tails.MLP(6, 3), members=2), blobs(), "deep-ensemble", scores=["pytorch-ood:ViM"], **QUICK)


def test_all_scores_are_all_that_the_tail_allows(monkeypatch):
    class Headed(FittedScore):
        name, needs_head = "headed", True

        @classmethod
        def fit(cls, features, labels):
            return {"weight": features.head.weight}

        def forward(self, features, logits):
            return features[:, 0]

    monkeypatch.setattr(scores, "SCORES", scores.SCORES.copy())
    scores.register(Headed)
    raw, scaled = Ensemble(tails.MLP(6, 3), members=2), Ensemble(tails.Linear(6, 3, norm="l2"), members=2)
    fit_scores(raw, blobs())
    fit_scores(scaled, blobs())
    assert set(scaled.fitted) == {*raw.fitted, "headed"}


class Rank:
    """One of several processes, each of which is a thread here: what Lightning Fabric offers to them."""

    def __init__(self, number: int, board: list, barrier: threading.Barrier) -> None:
        self.global_rank, self.world_size, self.is_global_zero = number, len(board), number == 0
        self.device, self.board, self.barrier = torch.device("cpu"), board, barrier

    def _exchange(self, value):
        self.board[self.global_rank] = value
        self.barrier.wait()
        values = list(self.board)
        self.barrier.wait()
        return values

    def broadcast(self, value, src=0):
        return self._exchange(value)[src]

    def all_reduce(self, value, reduce_op):
        assert reduce_op == "sum"
        return sum(self._exchange(value.clone()))


def in_ranks(world: int, run) -> list:
    """Call `run(fabric)` in every rank; return what each returned or raised."""
    board, barrier = [None] * world, threading.Barrier(world, timeout=20)

    def outcome(number):
        try:
            return run(Rank(number, board, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(outcome, range(world)))


def states(ensemble: Ensemble) -> dict[str, torch.Tensor]:
    return {f"{name}.{key}": v for name, score in ensemble.fitted.items() for key, v in score.state_dict().items()}


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("dtype", ["float16", "mixed"])
def test_ranks_sum_up_their_parts_to_what_one_process_finds(world, dtype):
    x, labels = blobs(121).rows(slice(None)), torch.arange(121) % 3
    x = torch.cat([x[:-10].half().float(), x[-10:].half().float() if dtype == "float16" else x[-10:]])
    features, read = FeatureSet.from_arrays(x.double(), labels), []
    template = linear(norm="l2")

    def run(fabric):
        ensemble = copy.deepcopy(template)  # creating one is not for threads: it draws from the global generator
        mine = Counting(features)
        fit_scores(ensemble, mine, fabric=fabric)
        read.append(mine.read)
        return ensemble

    alone = run(None)
    together = in_ranks(world, run)
    assert len({str(ensemble.score_digests) for ensemble in together}) == 1, "every rank has the same scores"
    assert max(read[1:]) <= 121 // world + 2  # the first row is read before, for its form
    queries = blobs(50, seed=4)
    for name, value in values(
        alone, queries
    ).items():  # eigenvectors are unique up to signs: compare scores, in float32
        torch.testing.assert_close(values(together[0], queries)[name], value, rtol=1e-4, atol=1e-5, msg=name)
    expected, found = states(alone), states(together[0])
    assert {name: value.dtype for name, value in found.items()} == {name: v.dtype for name, v in expected.items()}
    assert torch.equal(found["knn.bank"], expected["knn.bank"])
    assert torch.equal(found["knn.labels"], expected["knn.labels"])


class Counting:
    """A set that counts the rows that are read from it."""

    def __init__(self, features: FeatureSet) -> None:
        self.features, self.read = features, 0

    def __len__(self):
        return len(self.features)

    def __getattr__(self, name):
        return getattr(self.features, name)

    def rows(self, index):
        x = self.features.rows(index)
        self.read += len(x)
        return x


def test_sums_of_ranks_are_those_of_one_process_to_1e_minus_9():
    features = FeatureSet.from_arrays(blobs(500, width=16).rows(slice(None)) + 7, torch.arange(500) % 3)

    ensemble = linear(width=16)

    def run(fabric):
        rows = scoring._rows(ensemble, features, False, None if fabric is None else scoring.Ranks(fabric))
        return rows.moments, rows.sample

    one, alone = run(None)
    for several, sample in in_ranks(4, run):
        assert torch.equal(several.counts, one.counts)
        for found, expected in ((several.sums, one.sums), (several.products, one.products)):
            assert found.dtype == torch.float64
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert several.lengths.n == one.lengths.n
        assert several.lengths.mean == pytest.approx(one.lengths.mean, rel=1e-12)
        assert several.lengths.deviation == pytest.approx(one.lengths.deviation, rel=1e-12)
        torch.testing.assert_close(several.lengths.products, one.lengths.products, rtol=1e-12, atol=1e-12)
        assert torch.equal(sample.features, alone.features)
        torch.testing.assert_close(sample.peaks, alone.peaks)


@pytest.mark.parametrize("error", [DataError("labels are odd"), torch.linalg.LinAlgError("singular"), MemoryError()])
def test_an_error_of_the_first_process_is_raised_in_all(error, monkeypatch):
    def fails(*args):
        raise error

    monkeypatch.setattr("dissensus.training.scoring._fit", fails)
    first, second = in_ranks(2, lambda fabric: fit_scores(linear(), blobs(), fabric=fabric))
    assert first is error
    expected = DataError if isinstance(error, DissensusError) else RuntimeError
    assert type(second) is expected
    assert (str(error) or "MemoryError") in str(second)


def test_an_error_of_another_process_is_raised_in_all():
    class Broken(Counting):
        def rows(self, index):
            if index.start >= 60:
                raise OSError("the disk is gone")
            return super().rows(index)

    first, second = in_ranks(2, lambda fabric: fit_scores(linear(), Broken(blobs()), fabric=fabric))
    assert type(second) is OSError
    assert type(first) is RuntimeError
    assert str(first) == "process 1 failed: the disk is gone"


def test_features_of_one_rank_that_no_score_takes_leave_all_out_in_all():
    x = blobs().rows(slice(None))

    class Infinite(Counting):
        def rows(self, index):
            return torch.where(torch.arange(index.start, index.stop)[:, None] == 100, torch.inf, super().rows(index))

    def run(fabric):
        ensemble = linear()
        fit_scores(ensemble, Infinite(FeatureSet.from_arrays(x, torch.arange(120) % 3)), fabric=fabric)
        return ensemble.fitted

    with pytest.warns(DissensusWarning, match="is left out, these features do not allow it: .* must be finite"):
        assert in_ranks(2, run) == [{}, {}]


def test_more_ranks_than_rows():
    features, template = blobs(6), linear()

    def run(fabric):
        ensemble = copy.deepcopy(template)
        fit_scores(ensemble, features, ["knn"], fabric=fabric)
        return ensemble.score_digests

    assert in_ranks(8, run) == [run(None)] * 8


def test_labels_of_a_large_set_are_read_when_they_are_needed(monkeypatch):
    monkeypatch.setattr(scoring, "LABELS", 10)

    class Lazy(Counting):
        @property
        def labels(self):
            pytest.fail("all labels were read")

    one, two = linear(), linear()
    fit_scores(one, blobs())
    fit_scores(two, Lazy(blobs()))
    assert one.score_digests == two.score_digests


def test_the_first_stage_has_none(tmp_path):
    ensemble = fit(linear(), blobs(), "two-stage", confidence=0.9, lr=0.05, out=tmp_path, **(QUICK | {"epochs": 10}))
    assert list(ensemble.fitted) == list(scores.of_features())
    assert not (tmp_path / "first-stage" / "ensemble" / "scores.safetensors").exists()
    # all training samples count, not only those that the first stage is sure of
    assert len(ensemble.fitted["knn"].state_dict()["bank"]) == len(blobs())


def test_samples_of_weight_zero_are_left_out():
    weight = torch.ones(120)
    weight[:30] = 0
    weighted = fit(linear(), blobs(), "deep-ensemble", sample_weight=weight, **QUICK)
    rest = fit(linear(), blobs().subset(range(30, 120)), "deep-ensemble", **QUICK)
    assert weighted.score_digests["knn"] == rest.score_digests["knn"]


def test_of_augmented_passes_the_first_counts():
    rows, labels = blobs().rows(slice(None)), blobs().labels
    twice = FeatureSet.from_arrays(torch.cat([rows, rows + 1]), labels.repeat(2), provenance={"passes": 2})
    one, two = linear(), linear()
    fit_scores(one, blobs())
    fit_scores(two, twice)
    assert one.score_digests == two.score_digests


def test_a_score_that_the_features_do_not_allow_is_left_out_with_a_line():
    x, y = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.arange(3)
    ensemble = linear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_scores(ensemble, FeatureSet.from_arrays(x, y))
    assert {warning.category for warning in caught} == {DissensusWarning}
    said = [str(warning.message) for warning in caught]
    assert any(line.startswith("the score mahalanobis is left out, these features do not allow it: ") for line in said)
    assert all("\n" not in line for line in said)
    assert "mahalanobis" not in ensemble.fitted
    assert len(said) + len(ensemble.fitted) == len(scores.of_features())


def test_features_of_a_form_that_no_score_takes_leave_all_out():
    class Cube(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 3)

        def forward(self, x):
            return self.layer(x.flatten(1))

    features = FeatureSet.from_arrays(torch.randn(30, 2, 2, 2, 2), torch.arange(30) % 3)
    ensemble = Ensemble(Cube, members=2)
    with pytest.warns(UserWarning, match="features must be"):
        fit(ensemble, features, "deep-ensemble", **QUICK)
    assert ensemble.fitted == {}


@pytest.mark.parametrize("kind", ["conv", "mlp", "tokens", "custom", "single"])
def test_every_kind_of_tail_has_them(kind, tmp_path):
    generator = torch.Generator().manual_seed(0)
    shape = {"conv": (6, 2, 2), "tokens": (4, 6)}.get(kind, (6,))
    labels = torch.arange(90) % 3
    x = torch.randn(90, *shape, generator=generator) + labels.view(-1, *[1] * len(shape))
    features = FeatureSet.from_arrays(x, labels)
    tail = {"conv": tails.Conv(6, 3), "mlp": tails.MLP(6, 3), "tokens": tails.MLP(6, 3), "single": tails.Linear(6, 3)}
    custom = tail.get(kind) or (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    ensemble = Ensemble(custom, members=1 if kind == "single" else 3)
    fit(ensemble, features, "single" if kind == "single" else "deep-ensemble", out=tmp_path, **QUICK)
    assert list(ensemble.fitted) == list(scores.of_features())
    loaded = Ensemble.load(tmp_path / "ensemble", custom if kind == "custom" else None).eval()
    for name, value in values(loaded, features).items():
        assert value.shape == (90,), name
        assert value.isfinite().all(), name


def test_fitting_leaves_mode_and_random_numbers_as_they_were():
    ensemble = linear().train()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fit_scores(ensemble, blobs())
    assert ensemble.training
    assert torch.equal(torch.get_rng_state(), before)
