"""Scores of features against naive references and pytorch-ood, their invariances, awkward data, memory."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_ood import detector as peer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus.functional import distances, fitted, neighbours, scores, vim
from dissensus.functional.fitted import FittedScore, Head, Rows
from tests import reference

FITTED = ["mahalanobis", "relative_mahalanobis", "feature_norm", "gaussian", "knn", "vim"]
DIRECTIONAL = [name for name in FITTED if name not in ("feature_norm", "gaussian")]
every_score = pytest.mark.parametrize("name", FITTED)
C, D = 4, 12


class Features:
    """Features in memory that count the rows read from them."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.read = x, 0

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        for start in range(0, len(self.x), batch_size):
            at = slice(start, min(start + batch_size, len(self.x)))
            self.read += at.stop - at.start
            yield self.x[at], at


def data(n: int = 120, d: int = D, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Training features, labels, and other samples."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % C
    mix, means = torch.randn(d, d, generator=g).double(), 2 * torch.randn(C, d, generator=g).double()
    x = torch.randn(n, d, generator=g).double() @ mix + means[labels] + 3
    return x.to(dtype), labels, (3 * torch.randn(40, d, generator=g).double() + 1).to(dtype)


def head(d: int = D) -> Head:
    g = torch.Generator().manual_seed(9)
    return Head(torch.randn(C, d, generator=g).double(), torch.randn(C, generator=g).double())


def logits_of(x: Tensor, linear: Head) -> Tensor:
    u = fitted.unit(fitted.vectors(x)) * x.shape[1] ** 0.5
    return (u @ linear.weight.to(u).T + linear.bias.to(u))[None]


def fit(name: str, x: Tensor, labels: Tensor, **options: object) -> FittedScore:
    linear = head(fitted.vectors(x[:1]).shape[1])
    options = {"logits": lambda q: logits_of(fitted.vectors(q), linear), "head": linear, **options}
    rows = Rows(Features(x), labels, C, **options)
    score = scores.of_features()[name]
    return score(score.fit(rows, labels))


def scored(name: str, x: Tensor, labels: Tensor, q: Tensor, **options: object) -> Tensor:
    return fit(name, x, labels, **options)(q, logits_of(fitted.vectors(q), head(fitted.vectors(q).shape[1])))


def close(a: Tensor, b: object, rtol: float = 1e-6, atol: float = 1e-9) -> None:
    torch.testing.assert_close(a.double(), torch.as_tensor(b, dtype=torch.float64), rtol=rtol, atol=atol)


def expected(name: str, x: Tensor, labels: Tensor, q: Tensor) -> object:
    train, others = x.double().numpy(), q.double().numpy()
    if name == "vim":
        linear = head(x.shape[1])
        return reference.vim(train, others, linear.weight.numpy(), linear.bias.numpy(), x.shape[1] // 2)
    return getattr(reference, name)(train, labels.numpy(), others)


# Against the formulas


@every_score
@pytest.mark.parametrize("n", [120, 17])
def test_equals_the_formula(name: str, n: int) -> None:
    x, labels, q = data(n)
    close(scored(name, x, labels, q), expected(name, x, labels, q))


@every_score
def test_float32_stays_float32_and_is_near_float64(name: str) -> None:
    x, labels, q = data(dtype=torch.float32)
    score = fit(name, x, labels)
    assert {value.dtype for value in score.state_dict().values()} <= {torch.float32, torch.int64}
    result = score(q, logits_of(q, head()))
    assert result.dtype == torch.float32
    close(result, expected(name, x, labels, q), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x, labels, q = data(dtype=dtype)
    for name in FITTED:
        result = scored(name, x, labels, q)
        assert result.dtype == torch.float32
        close(result, expected(name, x.float(), labels, q.float()), rtol=1e-4, atol=1e-4)


def test_vim_without_a_head_is_centred_at_the_mean() -> None:
    x, labels, q = data()
    linear = head()
    naive = reference.vim(x.numpy(), q.numpy(), linear.weight.numpy(), linear.bias.numpy(), D // 2, centred=True)
    close(scored("vim", x, labels, q, head=None), naive)


def test_vim_needs_logits() -> None:
    x, labels, _ = data()
    with pytest.raises(DissensusError, match="fitted to logits too"):
        fit("vim", x, labels, logits=None)


@pytest.mark.parametrize(("width", "most"), [(2048, 1000), (1280, 512), (768, 384), (64, 32), (1, 0)])
def test_principal_directions_of_vim(width: int, most: int) -> None:
    assert vim._principal(torch.ones(width, dtype=torch.float64)) == most


def test_means_of_large_classes_do_not_cancel() -> None:
    """Classes far apart, and features that hardly vary about a large mean."""
    x, labels, q = data()
    x, q = x + 300 * labels[:, None], q + 300 * (torch.arange(len(q)) % C)[:, None]
    for name in ("mahalanobis", "relative_mahalanobis"):
        close(scored(name, x, labels, q), expected(name, x, labels, q), rtol=1e-6, atol=1e-6)


# Against pytorch-ood, whose tensors are float32 unless told otherwise


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double")
def test_distances_equal_those_of_pytorch_ood(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not divide the scatter by N, halves one distance, and adds 1e-6, which large features make negligible."""
    monkeypatch.setattr(distances, "shrink", lambda covariance, freedom: (covariance, 1.0))
    x, labels, q = data()
    big, asked = 1e5 * fitted.unit(x), 1e5 * fitted.unit(q)
    theirs = peer.Mahalanobis(None).fit_features(big, labels).predict_features(asked)
    close(scored("mahalanobis", x, labels, q), 2 * len(x) * theirs)
    theirs = peer.RMD(None).fit_features(big, labels).predict_features(asked)
    close(scored("relative_mahalanobis", x, labels, q), len(x) * theirs, atol=1e-6)


@pytest.mark.usefixtures("double")
def test_knn_equals_that_of_pytorch_ood() -> None:
    x, labels, q = data()
    theirs = peer.KNN(None, k=neighbours.KNN.k).fit_features(x, labels).predict_features(q)
    close((2 * scored("knn", x, labels, q)).sqrt(), theirs)


@pytest.mark.usefixtures("double")
def test_vim_equals_that_of_pytorch_ood() -> None:
    x, labels, q = data()
    linear, root = head(), D**0.5
    theirs = peer.ViM(None, d=D // 2, w=linear.weight, b=linear.bias).fit_features(root * fitted.unit(x), labels)
    close(scored("vim", x, labels, q), theirs.predict_features(root * fitted.unit(q)))


@pytest.mark.parametrize("top", [100, 3])
def test_gen_equals_that_of_pytorch_ood(top: int) -> None:
    logits = torch.randn(1, 30, 7, generator=torch.Generator().manual_seed(0)).double()
    close(scores.gen(logits, top=top), min(top, 7) * peer.GEN(None, M=min(top, 7)).predict_logits(logits[0]))


# Invariances


@pytest.mark.parametrize("name", DIRECTIONAL)
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-30, 0.01, 2.0, 100.0, 1e30]))
def test_the_length_of_a_row_does_not_matter(name: str, seed: int, scale: float) -> None:
    x, labels, q = data(40, 6, seed)
    factors = torch.rand(len(x), 1, generator=torch.Generator().manual_seed(seed)).double() + 0.1
    close(scored(name, factors * x, labels, scale * q), scored(name, x, labels, q), atol=1e-7)


@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis", "knn", "feature_norm", "gaussian"])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000))
def test_rotations_orders_and_names_of_classes_do_not_matter(name: str, seed: int) -> None:
    x, labels, q = data(40, 6, seed)
    g = torch.Generator().manual_seed(seed)
    before = scored(name, x, labels, q)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=g).double())[0]
    close(scored(name, x @ rotation, labels, q @ rotation), before, atol=1e-7)
    order = torch.randperm(len(x), generator=g)
    close(scored(name, x[order], labels[order], q), before, atol=1e-7)
    close(scored(name, x, torch.randperm(C, generator=g)[labels], q), before, atol=1e-7)


@every_score
def test_samples_are_scored_independently_in_any_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels, q = data()
    whole, order = scored(name, x, labels, q), torch.randperm(len(q), generator=torch.Generator().manual_seed(1))
    close(scored(name, x, labels, q[order]), whole[order])
    monkeypatch.setattr(fitted, "CHUNK_VALUES", 7 * D)
    monkeypatch.setattr(fitted, "BATCH", 5)
    monkeypatch.setattr(neighbours, "BLOCK", 13)
    monkeypatch.setattr(neighbours, "CACHED_VALUES", 0)
    close(scored(name, x, labels, q), whole)
    assert scored(name, x, labels, q[:0]).shape == (0,)


@every_score
def test_maps_and_tokens_are_averaged(name: str) -> None:
    x, labels, q = data()
    noise = torch.randn(len(q), D, 2, 2, generator=torch.Generator().manual_seed(2)).double()
    maps = q[:, :, None, None] + noise - noise.mean((2, 3), keepdim=True)
    close(scored(name, x, labels, maps), scored(name, x, labels, q))
    close(scored(name, x, labels, maps.flatten(2).mT), scored(name, x, labels, q))
    close(scored(name, x[:, None].expand(-1, 3, -1), labels, q), scored(name, x, labels, q))


@every_score
def test_classes_may_be_missing(name: str) -> None:
    x, labels, q = data()
    kept = (labels != 1).nonzero().flatten()
    result = scored(name, x[kept], labels[kept], q)
    close(result, expected(name, x[kept], labels[kept], q))


# Far away


def test_far_inputs_score_above_all_training_rows() -> None:
    x, labels, _ = data(400)
    far = torch.cat([torch.full((1, D), -5.0), torch.eye(D)[:1] * 50])
    training = scored("mahalanobis", x, labels, x)
    assert (scored("mahalanobis", x, labels, far) > training.max()).all()
    for factor in (0.1, 5, 100):
        lengths = scored("feature_norm", x, labels, factor * x)
        assert lengths.median() > scored("feature_norm", x, labels, x).quantile(0.95)


def test_gaussian_sees_directions_and_lengths() -> None:
    x, labels, _ = data(400)
    training = scored("gaussian", x, labels, x)
    for factor in (0.1, 10, 100):
        assert scored("gaussian", x, labels, factor * x).median() > training.quantile(0.95)
    assert scored("gaussian", x, labels, -x).median() > training.quantile(0.95)
    # in units of a held-out sample's deviation, however few the training samples
    others = data(4000, 30)[0][1000:]
    few, y = others[:60], torch.arange(1000, 1060) % C
    of_direction = scored("gaussian", few, y, others[60:]) - scored("feature_norm", few, y, others[60:]) / 6
    assert 0.6 < of_direction.std() < 1.6
    assert scored("mahalanobis", few, y, others[60:]).std() > 1.5 * scored("mahalanobis", few, y, few).std()


def test_the_length_zero_is_finite_and_far() -> None:
    x, labels, _ = data()
    zeros = torch.zeros(2, D, dtype=torch.float64)
    for name in FITTED:
        assert scored(name, x, labels, zeros).isfinite().all(), name
    assert (scored("feature_norm", x, labels, zeros) > 100 * scored("feature_norm", x, labels, x).max()).all()
    with_zeros = torch.cat([x, zeros])
    close(scored("feature_norm", with_zeros, torch.cat([labels, labels[:2]]), x), scored("feature_norm", x, labels, x))
    for value in fit("feature_norm", torch.zeros(8, D), torch.arange(8) % C).state_dict().values():
        assert value.isfinite().all()


# Awkward data


AWKWARD = {
    "fewer samples than dimensions": (lambda x: x[:9], lambda y: y[:9]),
    "one class with two samples": (lambda x: x[:5], lambda y: y[:5]),
    "constant features": (lambda x: x * (torch.arange(D) > 3) + 1.0 * (torch.arange(D) == 0), lambda y: y),
    "duplicate rows": (lambda x: x[:8].repeat(5, 1), lambda y: y[:8].repeat(5)),
    "identical samples in each class": (lambda x: x[:C].repeat(5, 1), lambda y: y[:C].repeat(5)),
    "all rows the same": (lambda x: x[:1].repeat(20, 1), lambda y: y[:20]),
}


@every_score
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", AWKWARD)
def test_degenerate_training_features_give_finite_scores(name: str, case: str, dtype: torch.dtype) -> None:
    x, labels, q = data(dtype=dtype)
    features, classes = AWKWARD[case]
    x, labels = features(x).to(dtype), classes(labels)
    state = fit(name, x, labels)
    assert all(value.isfinite().all() for value in state.state_dict().values())
    near, far = scored(name, x, labels, x), scored(name, x, labels, q)
    assert near.isfinite().all()
    assert far.isfinite().all()
    if name in ("mahalanobis", "knn"):
        assert far.median() > near.median()


def test_one_dimension_is_enough() -> None:
    x, labels, q = data(d=1)
    for name in FITTED:
        assert scored(name, x, labels, q).isfinite().all(), name


@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis", "gaussian"])
def test_one_sample_per_class_is_refused_in_one_line(name: str) -> None:
    x, labels, _ = data()
    with pytest.raises(DataError, match="at least two samples") as error:
        fit(name, x[:C], labels[:C])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", DIRECTIONAL)
def test_another_width_is_refused_with_both(name: str) -> None:
    x, labels, _ = data()
    score = fit(name, x, labels)
    with pytest.raises(ShapeError, match=f"width {D}; got width 7"):
        score(torch.zeros(3, 7), torch.zeros(1, 3, C))


def test_other_samples_and_other_forms_are_refused() -> None:
    x, labels, q = data()
    score = fit("knn", x, labels)
    with pytest.raises(ShapeError, match="same samples"):
        score(q, torch.zeros(1, 3, C))
    with pytest.raises(ShapeError, match="features must be"):
        score(q[0], torch.zeros(1, 3, C))
    with pytest.raises(ShapeError, match="every row needs a label"):
        Rows(Features(x), labels[:3], C)
    with pytest.raises(DataError, match="got none"):
        Rows(Features(x[:0]), labels[:0], C)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_training_features_must_be_finite(bad: float) -> None:
    x, labels, _ = data()
    x[3, 2] = bad
    with pytest.raises(DataError, match="finite"):
        fit("mahalanobis", x, labels)


# Neighbours


def test_nearest_gives_cosines_and_rows_of_the_training_set(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels, q = data()
    score = fit("knn", x, labels, keep=50 * D)
    assert isinstance(score, neighbours.KNN)
    assert score.bank.shape == (50, D)
    assert torch.equal(score.bank.double(), x[score.rows])
    assert torch.equal(score.labels, labels[score.rows])
    cosines, rows = score.nearest(q, 6)
    naive = torch.from_numpy(reference.unit(q.numpy()) @ reference.unit(x[score.rows].numpy()).T).topk(6)
    close(cosines, naive.values)
    assert torch.equal(rows, score.rows[naive.indices])
    monkeypatch.setattr(neighbours, "BLOCK", 4)
    assert torch.equal(score.nearest(q, 6)[1], rows)
    assert score.nearest(q, 500)[0].shape == (len(q), 50)


def test_a_bank_is_float16_where_that_loses_nothing() -> None:
    x, labels, q = data(dtype=torch.float16)
    half, full = fit("knn", x, labels), fit("knn", x.float(), labels)
    assert half.bank.dtype == full.bank.dtype == torch.float16
    late = x.float()
    late[-1, 0] = 1 + 2**-20
    assert fit("knn", late, labels).bank.dtype == torch.float32
    close(scored("knn", x.double(), labels, q.double()), expected("knn", x.double(), labels, q.double()))


# Tracing


class Traced(torch.nn.Module):
    """A score without chunks, as exports call it."""

    def __init__(self, score: FittedScore) -> None:
        super().__init__()
        self.score = score

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        return self.score.forward(fitted.vectors(features), logits)


@every_score
def test_exportable_scores_can_be_traced_for_any_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", 50)
    x, labels, q = data(dtype=torch.float32)
    score, logits, batch = fit(name, x, labels), logits_of(q, head()), torch.export.Dim("batch")
    assert score.exportable
    program = torch.export.export(Traced(score), (q, logits), dynamic_shapes=({0: batch}, {1: batch}))
    for rows in (2, 7):
        asked = q[:rows], logits[:, :rows]
        close(program.module()(*asked), score(*asked), rtol=1e-5, atol=1e-5)


# Memory


class Generated(Features):
    """Rows made when they are read, so that only readers need memory."""

    def __init__(self, n: int, d: int) -> None:
        self.n, self.d, self.read = n, d, 0

    def __len__(self) -> int:
        return self.n

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        for start in range(0, self.n, batch_size):
            at = slice(start, min(start + batch_size, self.n))
            self.read += at.stop - at.start
            g = np.random.default_rng(start)
            yield torch.from_numpy(g.standard_normal((at.stop - at.start, self.d), dtype=np.float32)), at


class Peak(TorchDispatchMode):
    """The most bytes that the results of operations take up at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, list[int]] = {}  # storage -> tensors that use it, bytes
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self.alive.setdefault(storage.data_ptr(), [0, storage.nbytes()])[0] += 1
                weakref.finalize(tensor, self._release, storage.data_ptr())
        self.bytes = max(self.bytes, sum(size for _, size in self.alive.values()))
        return result

    def _release(self, pointer: int) -> None:
        self.alive[pointer][0] -= 1
        if not self.alive[pointer][0]:
            del self.alive[pointer]


def test_all_scores_are_fitted_in_one_pass_within_bounded_memory() -> None:
    n, d, keep = 60_000, 64, 2_000 * 64
    source, labels, linear = Generated(n, d), torch.arange(n) % C, head(d)
    rows = Rows(source, labels, C, logits=lambda x: logits_of(x, linear), head=linear, keep=keep)
    tracemalloc.start()  # for the batches, which NumPy makes
    try:
        with Peak() as peak:
            states = {name: scores.of_features()[name].fit(rows, labels) for name in FITTED}
        batches = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert source.read == n + 1  # the first row is read before, for its form
    batch = 4 * fitted.BATCH * d
    assert peak.bytes < 10 * batch + 4 * keep + 24 * n  # a few batches in float64, the sample, labels and lengths
    assert batches < 3 * batch
    assert 10 * batch + 4 * keep + 24 * n < 4 * n * d  # all rows would not fit
    assert states["knn"]["bank"].shape == (2_000, d)
    assert rows.moments.counts.sum() == n


@every_score
def test_scoring_many_samples_needs_bounded_temporaries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels, _ = data(600, dtype=torch.float32)  # many rows for knn, which compares with every one of them
    score, many = fit(name, x, labels), torch.randn(10_000, D)
    monkeypatch.setattr(fitted, "CHUNK_VALUES", 500 * D)
    with Peak() as peak:
        score(many, torch.zeros(1, 1, C).expand(1, len(many), C))
    own = many.untyped_storage().nbytes()  # slices of the input share its memory
    assert peak.bytes - own < 12 * 4 * 500 * D + 3 * 4 * len(many)
    assert 12 * 4 * 500 * D + 3 * 4 * len(many) < own
