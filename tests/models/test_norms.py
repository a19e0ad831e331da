"""Norms: against float64 references, at any scale, and in every way that members are run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dissensus._core.errors import DissensusError, RunError, UnknownNameError
from dissensus.models import stacked, tails
from dissensus.models.ensemble import Ensemble
from dissensus.models.norms import NORMS
from tests.damage import sealed


def naive_l2(row: np.ndarray) -> np.ndarray:
    length = np.sqrt(sum(value**2 for value in row))
    return row if length == 0 else row / length * np.sqrt(len(row))


def naive_layer(row: np.ndarray) -> np.ndarray:
    mean = sum(row) / len(row)
    variance = sum((value - mean) ** 2 for value in row) / len(row)
    return (row - mean) / np.sqrt(variance + 1e-5)


NAIVE = {"l2": naive_l2, "layer": naive_layer, "none": lambda row: row}
TAILS = {"linear": tails.Linear, "mlp": tails.MLP, "conv": tails.Conv}


def reference(norm: str, x: Tensor) -> Tensor:
    """Row by row in NumPy's float64."""
    rows = x.reshape(-1, x.shape[-1]).double().numpy()
    return torch.from_numpy(np.stack([NAIVE[norm](row) for row in rows])).view(x.shape)


def test_the_references_are_all_there():
    assert set(NAIVE) == set(NORMS)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(5, 1), (5, 7), (2, 3, 640)])
def test_a_norm_is_its_formula(norm, shape):
    x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1
    x.view(-1, shape[-1])[1] = 0
    torch.testing.assert_close(NORMS[norm](x), reference(norm, x), rtol=1e-12, atol=1e-12)
    single = NORMS[norm](x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), reference(norm, x.float()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", [-38, -30, -12, 0, 12, 30, 37])
def test_l2_does_not_depend_on_the_scale_of_a_row(dtype, power):
    """Neither where squares vanish in single precision nor where they overflow."""
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(0), dtype=dtype)
    scaled = NORMS["l2"](x * 10.0**power)
    torch.testing.assert_close(scaled, NORMS["l2"](x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(scaled.norm(dim=-1), torch.full((6,), 50**0.5, dtype=dtype))


@pytest.mark.parametrize("norm", ["l2", "layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_zeros_stay_zeros(norm, dtype):
    assert torch.equal(NORMS[norm](torch.zeros(3, 8, dtype=dtype)), torch.zeros(3, 8, dtype=dtype))


@pytest.mark.parametrize("value", [1e-3, 0.1, 1000 / 3, 1e6])
@pytest.mark.parametrize("width", [3, 7, 1280])
def test_constant_rows_become_zeros_by_layer_and_ones_by_l2(value, width):
    x = torch.full((4, width), value)
    assert torch.equal(NORMS["layer"](x), torch.zeros(4, width)), "rounding of the mean must not show"
    torch.testing.assert_close(NORMS["l2"](x), torch.ones(4, width))


def test_layer_does_not_depend_on_an_offset():
    x = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(NORMS["layer"](x + 20), NORMS["layer"](x), rtol=1e-10, atol=1e-10)


def test_values_that_are_not_finite_stay_visible():
    x = torch.ones(3, 4)
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    for norm in NORMS:
        finite = NORMS[norm](x).isfinite().all(-1)
        assert finite.tolist() == [False, False, True]


def test_the_defaults_are_l2_for_linear_and_none_for_the_others():
    assert {name: tails.default_norm(name) for name in TAILS} == {"linear": "l2", "mlp": "none", "conv": "none"}
    for name in TAILS:
        assert tails.create(name, 6, 3).arguments()["norm"] == tails.default_norm(name)
        assert tails.create(name, 6, 3, norm="layer").arguments()["norm"] == "layer"


@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("norm", NORMS)
def test_a_tail_with_a_norm_is_the_raw_tail_on_normalised_features(kind, norm):
    tail, raw = TAILS[kind](6, 3, norm=norm).double(), TAILS[kind](6, 3, norm="none").double()
    raw.load_state_dict(tail.state_dict())
    x = 5 * torch.randn(4, 6, dtype=torch.float64)
    x[2] = 0
    torch.testing.assert_close(tail(x), raw(reference(norm, x)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", NORMS)
def test_tokens_and_maps_are_normalised_at_each_position(norm):
    x = 5 * torch.randn(4, 6, 2, 3, dtype=torch.float64)
    positions = x.flatten(2).transpose(1, 2)  # (B, T, D)
    normalised = reference(norm, positions)
    for kind, given, expected in (
        ("mlp", positions, normalised),
        ("conv", x, normalised.transpose(1, 2).reshape(x.shape)),
    ):
        tail, raw = TAILS[kind](6, 3, norm=norm).double(), TAILS[kind](6, 3, norm="none").double()
        raw.load_state_dict(tail.state_dict())
        torch.testing.assert_close(tail(given), raw(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("own_batch", [False, True])
def test_every_way_to_run_members_normalises_alike(kind, norm, own_batch):
    """Closed form, vmap with a graph, torch.func by hand, member by member; with rows of zeros."""
    ensemble = Ensemble(TAILS[kind](6, 3, norm=norm), members=3).double()
    params = ensemble.stacked()
    x = 7 * torch.randn(*((3,) if own_batch else ()), 5, 6, dtype=torch.float64)
    x[..., 1, :] = 0
    mapped = ensemble.run(params, x, own_batch=own_batch)
    with torch.no_grad():
        closed = ensemble.run(params, x, own_batch=own_batch)
    batches = [x[i] if own_batch else x for i in range(3)]
    by_hand = [functional_call(ensemble.tail, {k: v[i] for k, v in params.items()}, (batches[i],)) for i in range(3)]
    alone = [ensemble.member(i)(batches[i]) for i in range(3)]
    for other in (closed, torch.stack(by_hand), torch.stack(alone)):
        torch.testing.assert_close(other, mapped, rtol=1e-12, atol=1e-12)
    assert mapped.isfinite().all()
    grads = torch.autograd.grad(mapped.square().sum(), list(params.values()))
    assert all(grad.isfinite().all() for grad in grads)


def test_linear_keeps_its_closed_form_and_a_subclass_with_another_forward_does_not():
    class Mine(tails.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert stacked.in_closed_form(tails.Linear(6, 3))
    assert not stacked.in_closed_form(Mine(6, 3))


@pytest.mark.parametrize("kind", TAILS)
def test_an_unknown_norm_suggests_the_nearest(kind):
    with pytest.raises(UnknownNameError, match="unknown norm 'layers': did you mean 'layer'"):
        TAILS[kind](6, 3, norm="layers")
    with pytest.raises(UnknownNameError, match="unknown norm 'l3': did you mean 'l2'"):
        tails.create(kind, 6, 3, norm="l3")


def test_an_unknown_norm_in_a_file_is_refused(tmp_path):
    Ensemble(tails.Linear(6, 3), members=2).save(tmp_path)
    path = tmp_path / "ensemble.json"
    info = json.loads(path.read_text())
    assert info["tail"] == {"name": "linear", "features": 6, "classes": 3, "norm": "l2"}
    path.write_text(sealed({**info, "tail": {**info["tail"], "norm": "l1"}}))
    with pytest.raises(RunError, match=r"ensemble.json is damaged, tail: unknown norm 'l1': did you mean 'l2'"):
        Ensemble.load(tmp_path)


def test_a_file_from_before_norms_is_refused_and_not_read_as_normalised(tmp_path):
    Ensemble(tails.Linear(6, 3), members=2).save(tmp_path)
    path = tmp_path / "ensemble.json"
    info = json.loads(path.read_text())
    del info["tail"]["norm"]
    path.write_text(sealed(info))
    with pytest.raises(RunError, match=r"ensemble.json is damaged .*norm is missing"):
        Ensemble.load(tmp_path)


def test_a_tail_of_yours_needs_no_norm_and_takes_none(monkeypatch):
    class Plain(nn.Linear):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__(features, classes)

    monkeypatch.setitem(tails.TAILS, "plain", tails.TailType(Plain, {1: 0}))
    assert tails.default_norm("plain") is None
    assert isinstance(tails.create("plain", 6, 3), Plain)
    with pytest.raises(DissensusError, match="tail plain takes no norm; got norm l2: leave it out"):
        tails.create("plain", 6, 3, norm="l2")
