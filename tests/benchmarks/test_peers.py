"""Both sides of a comparison must do the same work: their losses agree step by step."""

import pytest
import torch

from benchmarks import peers, steps
from benchmarks.measure import QUICK
from dissensus._core import extras

needs_peers = pytest.mark.skipif(
    bool(extras.missing("bench")),
    reason="the peers are not installed: pip install '.[bench]'",
)


@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_the_loop_does_the_same_training_as_the_step(tail):
    batch = steps.random_batch(QUICK)
    ours = steps.stepper(QUICK, members=5, active=2, tail=tail)
    members = [ours.ensemble.member(i) for i in range(5)]
    step, plain = steps.step_function(ours, batch), peers.loop_step(members, ours.draw, batch)
    torch.testing.assert_close([step()[0].float() for _ in range(6)], [plain() for _ in range(6)], rtol=1e-4, atol=0)


@needs_peers
@pytest.mark.parametrize("tail", ["linear", "mlp"])
def test_torch_uncertainty_does_the_same_training_as_the_step(tail):
    batch = steps.random_batch(QUICK)
    ours = steps.stepper(QUICK, members=5, active=5, diversity=0.0, tail=tail)
    members = [ours.ensemble.member(i) for i in range(5)]
    step, theirs = steps.step_function(ours, batch), peers.torch_uncertainty_step(peers.require(), members, batch)
    torch.testing.assert_close([step()[0].float() for _ in range(6)], [theirs() for _ in range(6)], rtol=1e-4, atol=0)
