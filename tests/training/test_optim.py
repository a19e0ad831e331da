"""Stacked optimisers against PyTorch's own, one per member."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.training import TrainOptions, optim
from dissensus.training.options import Task

STEPS = [[0, 2], [1, 2], [2, 0], [2], [0, 1, 2]]


def torch_optimiser(name: str, member: list[nn.Parameter], lr: float, decay: float) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(member, lr=lr, weight_decay=decay)
    return torch.optim.SGD(member, lr=lr, weight_decay=decay, momentum=0.9)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("vectors", [False, True])
def test_active_members_step_as_with_an_optimiser_of_their_own(name, vectors):
    generator = torch.Generator().manual_seed(0)
    params = {n: torch.randn(3, *shape, generator=generator) for n, shape in (("w", (4, 2)), ("b", (4,)))}
    lr = torch.tensor([0.1, 0.01, 0.03]) if vectors else 0.1
    decay = torch.tensor([0.0, 0.5, 0.1]) if vectors else 0.2
    members = [[nn.Parameter(params[n][i].clone()) for n in params] for i in range(3)]
    each = lambda value, i: float(value[i]) if isinstance(value, Tensor) else value  # noqa: E731
    theirs = [torch_optimiser(name, member, each(lr, i), each(decay, i)) for i, member in enumerate(members)]
    ours = optim.create(name, params, lr, decay)
    for active in STEPS:
        grads = {n: torch.randn(len(active), *params[n].shape[1:], generator=generator) for n in params}
        for k, i in enumerate(active):
            for n, leaf in zip(params, members[i], strict=True):
                leaf.grad = grads[n][k].clone()
            theirs[i].step()
        ours.step(active, grads)
    for i, member in enumerate(members):
        for n, leaf in zip(params, member, strict=True):
            torch.testing.assert_close(params[n][i], leaf.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["adamw", "adam-mini", "sgd"])
def test_a_step_touches_nothing_of_the_others(name):
    params = {"w": torch.randn(4, 3)}
    optimiser = optim.create(name, params, 0.1, 0.1)
    optimiser.step([0, 1, 2, 3], {"w": torch.randn(4, 3)})
    before = {key: value.clone() for key, value in {**params, **optimiser.state()}.items()}
    optimiser.step([2], {"w": torch.randn(1, 3)})
    for key, value in {**params, **optimiser.state()}.items():
        others = [0, 1, 3]
        assert torch.equal(value[others], before[key][others]), key
        assert not torch.equal(value[2], before[key][2]), key


@pytest.mark.parametrize("name", ["adamw", "adam-mini", "sgd"])
def test_gradients_may_lie_in_any_memory_order(name):
    """vmap makes transposed gradients; PyTorch's fused kernels would read them in memory order."""
    grad = torch.arange(6.0).view(1, 2, 3) + 1
    straight, sideways = ({"w": torch.zeros(1, 2, 3)} for _ in range(2))
    optim.create(name, straight, 0.1, 0.0).step([0], {"w": grad})
    optim.create(name, sideways, 0.1, 0.0).step([0], {"w": grad.transpose(1, 2).contiguous().transpose(1, 2)})
    assert torch.equal(straight["w"], sideways["w"])
    with pytest.raises(DissensusError, match="must be contiguous; w is not"):
        optim.create(name, {"w": torch.zeros(1, 3, 2).transpose(1, 2)}, 0.1, 0.0)


def test_adam_mini_shares_the_second_moment_of_a_row():
    """Written out, for one active member of two; entries of a bias are rows of one, as with AdamW."""
    generator = torch.Generator().manual_seed(0)
    params = {
        n: torch.randn(2, *shape, generator=generator) for n, shape in (("w", (4, 3)), ("k", (4, 2, 5)), ("b", (4,)))
    }
    expected = {n: value[1].double().clone() for n, value in params.items()}
    mean, square = {n: 0.0 * v for n, v in expected.items()}, {n: torch.zeros(4).double() for n in expected}
    bias = nn.Parameter(params["b"][1].clone())
    theirs = torch.optim.AdamW([bias], lr=0.1, weight_decay=0.3)
    ours = optim.create("adam-mini", params, 0.1, 0.3)
    for t in range(1, 6):
        grads = {n: torch.randn(1, *v.shape, generator=generator) for n, v in expected.items()}
        for n, value in expected.items():
            g = grads[n][0].double()
            mean[n] = 0.9 * mean[n] + 0.1 * g
            square[n] = 0.999 * square[n] + 0.001 * g.view(4, -1).square().mean(1)
            size = (square[n] / (1 - 0.999**t)).sqrt().view(4, *[1] * (g.ndim - 1)) + 1e-8
            value.mul_(1 - 0.1 * 0.3).sub_(0.1 * mean[n] / (1 - 0.9**t) / size)
        bias.grad = grads["b"][0].clone()
        theirs.step()
        ours.step([1], grads)
    for n, value in expected.items():
        torch.testing.assert_close(params[n][1].double(), value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(params["b"][1], bias.detach(), rtol=1e-4, atol=1e-5)


def test_the_factor_scales_the_learning_rate():
    a, b = ({"w": torch.ones(1, 3)} for _ in range(2))
    optim.create("sgd", a, 0.1, 0.0).step([0], {"w": torch.ones(1, 3)}, factor=0.5)
    optim.create("sgd", b, 0.05, 0.0).step([0], {"w": torch.ones(1, 3)})
    assert torch.equal(a["w"], b["w"])


def test_clip_limits_each_members_norm_by_itself():
    """Norms 5 and 0.5 with a limit of 1: the first shrinks to 1, the second stays."""
    grads = {"w": torch.tensor([[3.0, 0.0], [0.3, 0.0]]), "b": torch.tensor([[4.0], [0.4]])}
    optim.clip(grads, 1.0)
    torch.testing.assert_close(grads["w"], torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(grads["b"], torch.tensor([[0.8], [0.4]]))


def test_cosine_goes_from_one_over_half_to_zero():
    settings = TrainOptions().resolve("single", 1, Task(100))
    assert [settings.factor(step, 4) for step in (0, 2, 4)] == pytest.approx([1, 0.5, 0], abs=1e-15)
    assert settings.factor(1, 4) == pytest.approx((1 + math.sqrt(0.5)) / 2)


def test_bad_arguments():
    params = {"w": torch.zeros(3, 2)}
    with pytest.raises(UnknownNameError, match="unknown optimizer 'adam'"):
        optim.create("adam", params, 0.1, 0.0)
    with pytest.raises(DissensusError, match=r"lr must be one number or one per member \(3,\); got \(2,\)"):
        optim.create("sgd", params, torch.ones(2), 0.0)
    with pytest.raises(DissensusError, match="must not be negative; got -1"):
        optim.create("sgd", params, 0.1, -1.0)
