"""Both sides of a comparison must do the same work: their losses agree step by step."""

import torch

from benchmarks import many, steps
from benchmarks.measure import QUICK


def test_the_loop_over_all_members_does_the_same_training_as_the_step():
    batch = steps.random_batch(QUICK)
    ours = steps.stepper(QUICK, members=5, active=5, diversity=0.0)
    members = [ours.ensemble.member(i) for i in range(5)]
    step, plain = steps.step_function(ours, batch), many.deep_ensemble_step(members, batch)
    torch.testing.assert_close([step()[0].float() for _ in range(6)], [plain() for _ in range(6)], rtol=1e-4, atol=0)


def test_all_pairs_by_autograd_do_the_same_training_as_the_step():
    batch = steps.random_batch(QUICK)
    ours = steps.stepper(QUICK, members=5, active=5)
    members = [ours.ensemble.member(i) for i in range(5)]
    step, plain = steps.step_function(ours, batch), many.all_pairs_step(members, batch)
    torch.testing.assert_close([step()[0].float() for _ in range(6)], [plain() for _ in range(6)], rtol=1e-4, atol=0)
