"""Comparisons equal naive definitions; the mean placement is the AUROC."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

from dissensus.functional import comparisons, metrics
from dissensus.functional.comparisons import accuracy_gap, placements


@pytest.mark.parametrize("ties", [False, True])
def test_placements_equal_the_definition(ties):
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(40, generator=generator), 1 + torch.randn(15, generator=generator)
    if ties:
        inside, outside = inside.round(), outside.round()
    of_id, of_ood = placements(inside, outside)
    above = (outside[None] > inside[:, None]).double() + 0.5 * (outside[None] == inside[:, None]).double()
    assert of_id.tolist() == pytest.approx(above.mean(1).tolist())
    assert of_ood.tolist() == pytest.approx(above.mean(0).tolist())
    assert float(of_id.mean()) == pytest.approx(metrics.auroc(inside, outside))


def test_accuracy_gap():
    best, other = torch.tensor([1, 1, 1, 0]), torch.tensor([1, 0, 1, 0])
    gap, error = accuracy_gap(other, best)
    assert gap == 0.25
    assert error == pytest.approx(np.std([0, 1, 0, 0]) / 2)
    assert accuracy_gap(best, best) == (0, 0)


def test_the_docstring():
    assert doctest.testmod(comparisons).failed == 0
