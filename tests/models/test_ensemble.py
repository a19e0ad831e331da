"""Ensemble: stacked members equal to members run one by one, whatever the tail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dissensus._core.errors import DissensusError, RunError, ShapeError, UnknownNameError
from dissensus.models import stacked, tails
from dissensus.models.ensemble import Ensemble
from tests.damage import sealed


def general_tail() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


TAILS = {
    "linear": lambda: tails.Linear(6, 3),
    "linear-layer": lambda: tails.Linear(6, 3, norm="layer"),
    "linear-raw": lambda: tails.Linear(6, 3, norm="none"),
    "mlp": lambda: tails.MLP(6, 3),
    "mlp-without-scale": lambda: tails.MLP(6, 3, hidden=10, gamma=None, eps=1e-3),
    "mlp-l2": lambda: tails.MLP(6, 3, norm="l2"),
    "mlp-layer": lambda: tails.MLP(6, 3, norm="layer"),
    "conv": lambda: tails.Conv(6, 3, hidden=10, activation="silu"),
    "conv-l2": lambda: tails.Conv(6, 3, norm="l2"),
    "torch-linear": lambda: nn.Linear(6, 3, bias=False),
    "general": general_tail,
}


def one_by_one(ensemble: Ensemble, x: Tensor) -> Tensor:
    return torch.stack([ensemble.member(i)(x) for i in range(len(ensemble))])


@pytest.mark.parametrize("kind", TAILS)
def test_stacked_members_equal_members_one_by_one(kind):
    ensemble = Ensemble(TAILS[kind](), members=4, seed=1).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    logits = ensemble(x)
    assert logits.shape == (4, 5, 3)
    torch.testing.assert_close(logits, one_by_one(ensemble, x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ensemble(x, [2, 0]), logits[[2, 0]], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ensemble(x, torch.tensor([3])), logits[3:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", TAILS)
def test_every_member_may_have_a_batch_of_its_own(kind):
    ensemble = Ensemble(TAILS[kind](), members=3).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = torch.stack([ensemble.member(i)(x[i]) for i in range(3)])
    logits = ensemble.run(ensemble.stacked(), x, own_batch=True)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", TAILS)
@pytest.mark.parametrize("own_batch", [False, True])
def test_gradients_equal_autograds(kind, own_batch):
    """Weights and features alike."""
    torch.manual_seed(1)
    ensemble = Ensemble(TAILS[kind](), members=3).double()
    with torch.no_grad():  # away from the start, where norms are one and biases zero
        for value in ensemble.parameters():
            value.add_(0.3 * torch.randn_like(value))
    x = torch.randn(*((3,) if own_batch else ()), 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 5, 3, dtype=torch.float64)
    got = torch.autograd.grad(
        (ensemble.run(ensemble.stacked(), x, own_batch=own_batch) * weight).sum(), [*ensemble.parameters(), x]
    )
    members = [ensemble.member(i) for i in range(3)]
    plain = torch.stack([member(x[i] if own_batch else x) for i, member in enumerate(members)])
    leaves = [[*member.parameters()] for member in members]
    flat = torch.autograd.grad((plain * weight).sum(), [leaf for own in leaves for leaf in own] + [x])
    count = len(leaves[0])
    for n, value in enumerate(got[:-1]):
        expected = torch.stack([flat[i * count + n] for i in range(3)])
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got[-1], flat[-1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", [kind for kind in TAILS if kind.startswith(("linear", "mlp"))])
@pytest.mark.parametrize("own_batch", [False, True])
def test_closed_form_passes_equal_autograds(kind, own_batch):
    """Twice with the same scratch memory, the second time on other data and a shorter batch."""
    ensemble = Ensemble(TAILS[kind](), members=3).double()
    with torch.no_grad():
        for value in ensemble.parameters():
            value.add_(0.3 * torch.randn_like(value))
    scratch, params = stacked.Scratch(), ensemble.stacked()
    for batch in (5, 5, 4):
        x = torch.randn(*((3,) if own_batch else ()), batch, 6, dtype=torch.float64)
        weight = torch.randn(3, batch, 3, dtype=torch.float64)
        logits = ensemble.run(params, x, own_batch=own_batch)
        expected = torch.autograd.grad((logits * weight).sum(), list(params.values()))
        with torch.no_grad():
            got, saved = ensemble.tail.forward_stacked(params, x, scratch)
            grads = ensemble.tail.backward_stacked(params, saved, weight, scratch)
        torch.testing.assert_close(got, logits.detach(), rtol=1e-12, atol=1e-12)
        assert list(grads) == list(params)
        for grad, value in zip(grads.values(), expected, strict=True):
            torch.testing.assert_close(grad, value, rtol=1e-10, atol=1e-12)


def test_the_papers_tail_has_the_papers_size():
    assert sum(value.numel() for value in tails.MLP(768, 1000).parameters()) == 5_495_272


def test_mlp_begins_as_norm_and_linear():
    """Gamma of 1e-4 leaves the residual branch next to silent, which is why members' soup works."""
    tail = tails.MLP(6, 3)
    x = torch.randn(5, 6)
    torch.testing.assert_close(tail(x), tail.head(tail.norm2(x)), rtol=0, atol=1e-3)
    assert torch.equal(tail.gamma, torch.full((6,), 1e-4))


@pytest.mark.parametrize(
    ("tail", "shape"),
    [
        (lambda: tails.MLP(6, 3), (7, 6)),
        (lambda: tails.MLP(6, 3, gamma=None), (7, 6)),
        (lambda: tails.MLP(6, 3, norm="l2"), (7, 6)),
        (lambda: tails.Conv(6, 3), (6, 2, 3)),
        (lambda: tails.Conv(6, 3, norm="layer"), (6, 2, 3)),
    ],
    ids=["tokens", "tokens-without-scale", "tokens-l2", "maps", "maps-layer"],
)
@pytest.mark.parametrize("own_batch", [False, True])
@pytest.mark.parametrize("learning", [False, True])
def test_tokens_and_maps_stacked_equal_members_one_by_one(tail, shape, own_batch, learning):
    """Features of more than one axis; also with five rows, as many as members, where axes could be mixed up."""
    ensemble = Ensemble(tail(), members=5).double()
    x = torch.randn(*((5,) if own_batch else ()), 5, *shape, dtype=torch.float64)
    with torch.set_grad_enabled(learning):
        logits = ensemble.run(ensemble.stacked(), x, own_batch=own_batch)
        expected = torch.stack([ensemble.member(i)(x[i] if own_batch else x) for i in range(5)])
    assert logits.shape == (5, 5, 3)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


def test_mlp_averages_tokens_before_the_last_norm():
    """Every token has its own residual; where all are the same, so are the logits of one."""
    tail = tails.MLP(6, 3, gamma=None).double()
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    after = x + tail.fc2(nn.functional.gelu(tail.fc1(tail.norm1(x))))
    expected = tail.head(tail.norm2(sum(after[:, t] for t in range(5)) / 5))
    torch.testing.assert_close(tail(x), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tail(x[:, :1].expand(4, 5, 6)), tail(x[:, 0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", tails.ACTIVATIONS)
def test_conv_is_a_1x1_convolution_an_average_and_a_linear_layer(activation):
    functions = {"relu": nn.ReLU, "relu6": nn.ReLU6, "silu": nn.SiLU, "hardswish": nn.Hardswish, "gelu": nn.GELU}
    tail = tails.Conv(6, 3, hidden=10, activation=activation)
    plain = nn.Sequential(
        nn.Conv2d(6, 10, 1), functions[activation](), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 3)
    )
    with torch.no_grad():
        nn.init.normal_(tail.conv.bias)
        plain[0].weight.copy_(tail.conv.weight[:, :, None, None])
        plain[0].bias.copy_(tail.conv.bias)
        plain[4].load_state_dict(tail.head.state_dict())
    x = 3 * torch.randn(5, 6, 4, 3)
    torch.testing.assert_close(tail(x), plain(x))
    torch.testing.assert_close(tail(x[:, :, 0, 0]), plain(x[:, :, :1, :1]))


def test_an_unknown_activation_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown activation 'relu7': did you mean 'relu'"):
        tails.Conv(6, 3, activation="relu7")


@pytest.mark.parametrize(
    "tail",
    [
        tails.Linear(6, 3),
        tails.Linear(6, 3, norm="layer"),
        tails.MLP(6, 3),
        tails.MLP(6, 3, norm="l2"),
        tails.MLP(6, 3, hidden=10, gamma=None),
        tails.MLP(6, 3, hidden=10, gamma=0.1, eps=1e-5),
        tails.Conv(6, 3),
        tails.Conv(6, 3, hidden=10, activation="hardswish", norm="l2"),
    ],
)
def test_built_in_tails_can_be_built_again_from_their_description(tail):
    about = json.loads(json.dumps(tails.describe(tail)))
    built = tails.build(about)
    assert type(built) is type(tail)
    assert tails.describe(built) == tails.describe(tail)
    built.load_state_dict(tail.state_dict())
    x = torch.randn(4, 6)
    assert torch.equal(built(x), tail(x))


def test_a_tail_that_is_not_built_in_has_no_description():
    class Mine(tails.MLP):
        pass

    assert tails.describe(Mine(6, 3)) is None
    assert tails.describe(nn.Linear(6, 3)) is None
    with pytest.raises(UnknownNameError, match="unknown tail 'mpl': did you mean 'mlp'"):
        tails.build({"name": "mpl", "features": 6, "classes": 3})


@pytest.mark.parametrize(
    ("tail", "shape", "fitting"),
    [
        (tails.Linear(6, 3), (6,), True),
        (tails.Linear(6, 3), (7,), False),
        (tails.Linear(6, 3), (6, 2, 2), False),
        (tails.MLP(6, 3), (9, 6), True),
        (tails.MLP(6, 3), (6, 9), False),
        (tails.Conv(6, 3), (6, 2, 2), True),
        (tails.Conv(6, 3), (6,), True),
        (tails.Conv(6, 3), (2, 2, 6), False),
        (nn.Linear(6, 3), (99,), True),  # not built in: nothing is known about it
    ],
)
def test_which_features_fit_a_tail(tail, shape, fitting):
    ensemble = Ensemble(tail, members=2)
    if fitting:
        ensemble.check_features(shape, "it")
    else:
        with pytest.raises(ShapeError, match=r"takes features of width 6; it has rows of shape .*: use the backbone"):
            ensemble.check_features(shape, "it")


def test_members_can_start_from_what_fits_of_another_tail():
    ensemble, other = Ensemble(tails.MLP(6, 3), members=3, seed=1), tails.MLP(6, 5)
    before = {name: value.clone() for name, value in ensemble.stacked().items()}
    with torch.no_grad():
        for value in other.parameters():
            value.normal_()
    copied = ensemble.start_from(other)
    assert set(copied) == set(before) - {"head.weight", "head.bias"}
    own, given = ensemble.stacked(), dict(other.named_parameters())
    for name, value in before.items():
        assert torch.equal(own[name], given[name].expand_as(own[name]) if name in copied else value)
    assert ensemble.start_from(tails.Linear(9, 9)) == []
    with torch.no_grad():
        given["fc1.weight"].zero_()
    assert own["fc1.weight"].any(), "a copy"


def test_members_start_apart_and_the_same_seed_starts_the_same():
    first, again, other = (Ensemble(tails.Linear(6, 3), members=3, seed=s) for s in (0, 0, 1))
    weight = first.stacked()["weight"]
    assert all(not torch.equal(weight[i], weight[j]) for i in range(3) for j in range(i))
    assert torch.equal(weight, again.stacked()["weight"])
    assert not torch.equal(weight, other.stacked()["weight"])


def test_a_members_start_does_not_depend_on_how_many_there_are():
    small, large = (Ensemble(general_tail, members=m, seed=5) for m in (2, 6))
    for name, value in small.stacked().items():
        assert torch.equal(value, large.stacked()[name][:2])


def test_making_an_ensemble_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    Ensemble(general_tail, members=3)
    assert torch.equal(torch.rand(1), expected)


def test_template_weights_can_be_copied():
    tail = tails.Linear(6, 3)
    ensemble = Ensemble(tail, members=2, init="template")
    assert torch.equal(ensemble.stacked()["weight"], tail.weight.expand(2, 3, 6))
    x = torch.randn(4, 6)
    torch.testing.assert_close(ensemble(x)[1], tail(x))


def test_soup_averages_weights_and_of_one_member_is_that_member():
    ensemble = Ensemble(tails.MLP(6, 3), members=3)
    soup = ensemble.soup()
    torch.testing.assert_close(soup.head.weight, ensemble.stacked()["head.weight"].mean(0))
    assert torch.equal(ensemble.soup([2]).head.weight, ensemble.member(2).head.weight)
    with pytest.raises(DissensusError, match="at least one member"):
        ensemble.soup([])


@pytest.mark.parametrize("kind", TAILS)
def test_a_soup_by_weights_is_the_weighted_mean(kind):
    ensemble = Ensemble(TAILS[kind](), members=3, seed=1).double()
    weights, other = [0.2, 0.5, 0.3], Ensemble(TAILS[kind](), members=1, seed=9).double().member(0)
    members = [dict(ensemble.member(i).named_parameters()) for i in range(3)]
    for name, value in ensemble.soup(weights=weights).named_parameters():
        torch.testing.assert_close(value, sum(w * member[name] for w, member in zip(weights, members, strict=True)))
    for name, value in ensemble.soup(weights=[0.1, 0.2, 0.3, 0.4], pretrained=other).named_parameters():
        expected = 0.1 * members[0][name] + 0.2 * members[1][name] + 0.3 * members[2][name]
        torch.testing.assert_close(value, expected + 0.4 * other.get_parameter(name))
    for pair in (
        (ensemble.soup(weights=[1 / 3] * 3), ensemble.soup()),
        (
            ensemble.soup(weights=[0, 1, 0]),
            ensemble.member(1),
        ),
    ):
        torch.testing.assert_close(pair[0].state_dict(), pair[1].state_dict())


def test_a_mixture_is_differentiable_in_its_weights():
    ensemble = Ensemble(TAILS["mlp"](), members=3).double()
    x = torch.randn(4, 6, dtype=torch.float64)

    def logits(weights: Tensor) -> Tensor:
        return ensemble.run({name: value[None] for name, value in ensemble.mix(weights).items()}, x)

    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(logits, weights)
    assert all(parameter.grad is None for parameter in ensemble.parameters())


def test_whole_numbers_in_a_soup_are_those_of_the_largest_share():
    class Counted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 3)
            self.register_buffer("steps", torch.tensor([0]))

    ensemble = Ensemble(Counted, members=3)
    ensemble.tail.steps.copy_(torch.tensor([[1], [2], [3]]))
    assert int(ensemble.soup(weights=[0.3, 0.3, 0.4]).steps) == 3
    assert int(ensemble.soup(weights=[0.2, 0.1, 0.1, 0.6], pretrained=Counted()).steps) == 1


def test_weights_that_are_no_shares_and_tails_that_differ_are_refused():
    ensemble = Ensemble(tails.Linear(6, 3), members=2)
    for weights in ([0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0]):
        with pytest.raises(DissensusError, match=r"at least 0 and sum to 1; got .*: divide them by their sum"):
            ensemble.soup(weights=weights)
    with pytest.raises(ShapeError, match=r"soup weights must be \(2,\); got \(3,\)"):
        ensemble.soup(weights=[0.2, 0.3, 0.5])
    with pytest.raises(DissensusError, match="members or weights; got both"):
        ensemble.soup([0], weights=[1.0, 0.0])
    with pytest.raises(DissensusError, match="a pretrained tail needs weights"):
        ensemble.soup(pretrained=tails.Linear(6, 3))
    for other in (tails.Linear(6, 3, "none"), tails.Linear(6, 4), tails.MLP(6, 3), nn.Linear(6, 3)):
        assert not ensemble.matches(other)
        with pytest.raises(ShapeError, match="must have the members' layers, norm and classes; got"):
            ensemble.soup(weights=[0.2, 0.3, 0.5], pretrained=other)
    scaled = Ensemble(tails.MLP(6, 3, gamma=1e-4), members=2)
    assert scaled.matches(tails.MLP(6, 3, gamma=1.0))
    assert not scaled.matches(tails.MLP(6, 3, gamma=None))


def test_member_is_a_copy():
    ensemble = Ensemble(tails.Linear(6, 3), members=2)
    before = ensemble.stacked()["weight"].clone()
    with torch.no_grad():
        ensemble.member(1).weight.zero_()
    assert torch.equal(ensemble.stacked()["weight"], before)
    with pytest.raises(DissensusError, match=r"within 0\.\.1; got 2"):
        ensemble.member(2)


def test_dropout_draws_a_mask_for_every_member_and_none_in_eval():
    ensemble = Ensemble(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2)), members=2, init="template")
    x = torch.ones(3, 64)
    a, b = ensemble(x)
    assert not torch.equal(a, b)
    a, b = ensemble.eval()(x)
    assert torch.equal(a, b)


def test_constant_buffers_travel_with_members():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("scale", torch.tensor([2.0]))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    ensemble = Ensemble(Scaled, members=2)
    x = torch.randn(4, 6)
    torch.testing.assert_close(ensemble(x, [1]), one_by_one(ensemble, x)[1:])
    assert ensemble.member(0).scale.shape == (1,)


def test_running_statistics_are_refused_by_name():
    with pytest.raises(DissensusError, match="BatchNorm1d at '1': use LayerNorm"):
        Ensemble(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), members=2)


def test_parameters_that_cannot_be_redrawn_are_refused():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 6))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight.T

    with pytest.raises(DissensusError, match=r"Bare has parameters but no reset_parameters\(\).*factory"):
        Ensemble(Bare(), members=2)
    assert len(Ensemble(Bare, members=2)) == 2


@pytest.mark.parametrize("kind", [kind for kind in TAILS if kind.startswith(("linear", "mlp", "conv"))])
def test_save_and_load_round_trip(kind, tmp_path):
    ensemble = Ensemble(TAILS[kind](), members=3, seed=9)
    ensemble.save(tmp_path / "e")
    loaded = Ensemble.load(tmp_path / "e")
    assert loaded.seed == 9
    assert loaded.about == ensemble.about
    for name, value in ensemble.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    x = torch.randn(4, 6)
    assert torch.equal(loaded(x), ensemble(x))
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["ensemble.json", "ensemble.safetensors"]


def test_a_buffer_that_is_not_saved_does_not_keep_an_ensemble_from_loading(tmp_path):
    def tail():
        module = nn.Linear(6, 3)
        module.register_buffer("note", torch.ones(1), persistent=False)
        return module

    ensemble = Ensemble(tail, members=2)
    ensemble.save(tmp_path)
    assert torch.equal(Ensemble.load(tmp_path, tail).stacked()["weight"], ensemble.stacked()["weight"])


def test_a_custom_tail_must_be_given_again(tmp_path):
    ensemble = Ensemble(general_tail, members=2)
    ensemble.save(tmp_path)
    with pytest.raises(RunError, match=r"custom module.*tail="):
        Ensemble.load(tmp_path)
    loaded = Ensemble.load(tmp_path, general_tail)
    x = torch.randn(4, 6)
    assert torch.equal(loaded(x), ensemble(x))


def test_damaged_and_unrelated_folders_are_refused(tmp_path):
    with pytest.raises(
        RunError, match=r"there is no file .*nowhere/ensemble.json: give a folder that Ensemble.save wrote"
    ):
        Ensemble.load(tmp_path / "nowhere")
    ensemble = Ensemble(tails.Linear(6, 3), members=2)
    ensemble.save(tmp_path)
    whole = (tmp_path / "ensemble.safetensors").read_bytes()
    (tmp_path / "ensemble.safetensors").write_bytes(whole[:-10])
    with pytest.raises(RunError, match=r"ensemble.safetensors is damaged .*: train the ensemble again"):
        Ensemble.load(tmp_path)
    (tmp_path / "ensemble.safetensors").write_bytes(whole)
    info = json.loads((tmp_path / "ensemble.json").read_text())
    info["tail"]["classes"] = 4
    (tmp_path / "ensemble.json").write_text(sealed(info))
    with pytest.raises(RunError, match=r"do not fit the tail: weight must be \(2, 4, 6\); got \(2, 3, 6\): train"):
        Ensemble.load(tmp_path)
    with pytest.raises(RunError, match=r"do not fit the tail: weight must be \(2, 5, 6\); got \(2, 3, 6\): train"):
        Ensemble.load(tmp_path, tails.Linear(6, 5))


FIELDS = ("format", "members", "seed", "method", "tail", "module", "weights", "scores")
OPTIONS = ("name", "features", "classes", "hidden", "gamma", "eps", "activation", "norm")
DEEP = "@DEEP@"  # stands for what json.dumps cannot nest as deep
DAMAGE = [[], {}, "x", -1, 0.5, True, 10**30, "@HUGE@", DEEP]


def damaged(info: dict, path: Path) -> str:
    """Write it; load it, and give the one line that refuses it, or "" where it is as good as the original."""
    text = json.dumps(info).replace(f'"{DEEP}"', "[" * 5000 + "]" * 5000).replace('"@HUGE@"', "9" * 5000)
    (path / "ensemble.json").write_text(text)
    line = ""
    try:
        Ensemble.load(path)(torch.zeros(2, 6))
    except RunError as error:
        line = str(error)
    assert not line or str(path) in line
    assert "\n" not in line
    assert len(line) < 600
    return line


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_every_field_of_the_json_is_checked(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    Ensemble(TAILS[kind](), members=2).save(tmp_path)
    whole = json.loads((tmp_path / "ensemble.json").read_text())
    assert tuple(whole) == (*FIELDS, "sha256")
    del whole["sha256"]
    for field in FIELDS:
        line = damaged({key: value for key, value in whole.items() if key != field}, tmp_path)
        assert field in line
        for value in DAMAGE:
            line = damaged({**whole, field: value}, tmp_path)
            fine = (field in ("module", "method") and value == "x") or (field == "scores" and value == {})
            assert fine or field in line or "do not fit the tail" in line or "JSON" in line
    for option in OPTIONS:
        for value in DAMAGE:
            line = damaged({**whole, "tail": {**whole["tail"], option: value}}, tmp_path)
            fine = option in whole["tail"] and option in ("gamma", "eps") and type(value) in (int, float)
            assert fine or "tail" in line or "JSON" in line, (option, value)
    assert damaged({**whole, "extra": 1}, tmp_path)
    assert not damaged(whole, tmp_path)


def test_bad_arguments():
    with pytest.raises(DissensusError, match="at least one member; got members=0"):
        Ensemble(tails.Linear(6, 3), members=0)
    with pytest.raises(DissensusError, match=r"seed must be within 0\.\.2147483647; got -1"):
        Ensemble(tails.Linear(6, 3), seed=-1)
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        tails.create("liner", 6, 3)


def test_a_person_can_read_what_it_is():
    ensemble = Ensemble(tails.Linear(64, 10), members=5)
    assert repr(ensemble) == "Ensemble(5 members, linear tail, 64 features -> 10 classes, 3,250 parameters)"
    ensemble.method = "sed-a2d"
    assert repr(ensemble).endswith("parameters, trained by sed-a2d)")
    assert repr(Ensemble(general_tail, members=2)) == "Ensemble(2 members, Sequential tail, 198 parameters)"


def test_a_registered_tail_of_yours_is_saved_and_loaded_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(tails.TAILS, "scaled", tails.TAILS["linear"])  # to be removed again after the test
    del tails.TAILS["scaled"]

    @tails.register("scaled", axes={1: 0})
    class Scaled(nn.Linear):
        """A linear layer of scaled features."""

        def __init__(self, features: int, classes: int, factor: float = 1.0) -> None:
            super().__init__(features, classes)
            self.register_buffer("factor", torch.tensor(factor), persistent=False)

        def arguments(self) -> dict:
            factor = float(self.factor.flatten()[0])
            return {"features": self.in_features, "classes": self.out_features, "factor": factor}

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.factor * x)

    ensemble = Ensemble(Scaled(6, 3, factor=0.5), members=2)
    assert tails.fits(ensemble.about, (6,))
    assert not tails.fits(ensemble.about, (6, 2))
    ensemble.save(tmp_path)
    x = torch.randn(4, 6)
    assert torch.equal(Ensemble.load(tmp_path)(x), ensemble(x))
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"ensemble.json is damaged .*unknown tail 'scaled': known: conv, linear, mlp"):
        Ensemble.load(tmp_path)
