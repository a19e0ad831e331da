"""Corruptions of scans."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.suites._scans import CORRUPTIONS, DISTORTIONS, corrupt


@pytest.mark.parametrize("name", [*CORRUPTIONS, *DISTORTIONS])
def test_a_corruption_grows_with_severity_and_stays_in_range(name: str) -> None:
    images = (load_digits().images[:200] / 16).astype(np.float32)
    changed = [corrupt(images, name, severity) for severity in range(1, 6)]
    distance = [float(np.abs(each - images).mean()) for each in changed]
    assert distance == sorted(distance)
    assert distance[0] > 0
    assert len(set(distance)) == 5
    for each in changed:
        assert each.shape == images.shape
        assert each.dtype == images.dtype
        assert 0 <= each.min() <= each.max() <= 1
    assert np.array_equal(corrupt(images, name, 2), changed[1])


@pytest.mark.parametrize(
    "name", ["gaussian-noise", "impulse-noise", "fog", "rotation", "translation", "shear", "erase"]
)
def test_a_corruption_draws_by_seed(name: str) -> None:
    images = (load_digits().images[:20] / 16).astype(np.float32)
    assert not np.array_equal(corrupt(images, name, 3, seed=0), corrupt(images, name, 3, seed=1))


def test_translation_moves_by_its_strength_and_rotation_turns_about_the_centre() -> None:
    spot = np.zeros((50, 8, 8))
    spot[:, 3:5, 3:5] = 0.25  # its centre of mass is the centre
    rows, columns = np.indices((8, 8)) - 3.5
    strength = CORRUPTIONS["translation"].strengths[4]
    moved = corrupt(spot, "translation", 5)
    centres = np.stack([(moved * rows).sum((1, 2)), (moved * columns).sum((1, 2))], 1)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), strength, atol=1e-6)
    turned = corrupt(spot, "rotation", 5)
    np.testing.assert_allclose((turned * rows).sum((1, 2)), 0, atol=1e-6)


@pytest.mark.parametrize("severity", [0, 6])
def test_a_severity_outside_1_to_5_is_refused(severity: int) -> None:
    with pytest.raises(DissensusError, match=f"1 to 5; got {severity}"):
        corrupt(np.zeros((1, 8, 8)), "blur", severity)


def test_an_unknown_corruption_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gaussian-noise'"):
        corrupt(np.zeros((1, 8, 8)), "gaussian_noise", 1)
