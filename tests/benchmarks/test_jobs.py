"""All jobs learn the same task: none is fast because it does not train."""

import pytest

from benchmarks import jobs
from benchmarks.measure import QUICK
from tests.benchmarks.test_peers import needs_peers

JOBS = [
    jobs.our_job,
    pytest.param(jobs.torch_uncertainty_job, marks=needs_peers),
    pytest.param(jobs.torchensemble_job, marks=needs_peers),
    jobs.logistic_regression_job,
]


@pytest.mark.parametrize("make", JOBS)
def test_a_job_learns(make):
    outcome = make(QUICK)()
    assert 0.7 < outcome.accuracy <= 1, "a third by chance"
    assert 0.6 < outcome.auroc <= 1


def test_the_sets_do_not_overlap_and_ood_samples_are_of_other_classes():
    data = jobs.random_data(QUICK)
    rows = [row.numpy().tobytes() for x in (data.x, data.held_out, data.test, data.ood) for row in x]
    assert len(set(rows)) == len(rows)
    centres = [x[data.answers == 0].mean(0) for x in (data.held_out, data.test, data.ood)]
    assert (centres[0] - centres[1]).norm() < (centres[0] - centres[2]).norm()
