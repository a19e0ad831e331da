"""The paper's first claim, on the digits suite: the more diversity is asked for, the more members disagree."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from dissensus import suites
from dissensus.functional import aggregates, scores
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit

SEEDS = (0, 1, 2)
DIVERSITIES = (0.0, 0.5, 2.0)


@cache
def suite(seed: int) -> suites.Suite:
    return suites.load("digits", seed=seed, severities=(), backbone="pixels")


@torch.no_grad()
def judge(ensemble: Ensemble, seed: int) -> tuple[float, float, float]:
    """Mean #unique and mean PDS over id and ood samples alike, and the ensemble's accuracy on id."""
    logits = {s.name: ensemble(s.features.rows(slice(None))) for s in suite(seed).sets}
    everything = torch.cat(list(logits.values()), dim=1)
    labels = suite(seed).sets[0].features.labels
    assert labels is not None
    right = aggregates.prediction(logits["id"]).argmax(-1).eq(labels)
    unique, pds = scores.unique(everything).double(), scores.pds(everything)
    return float(unique.mean()), float(pds.mean()), float(right.double().mean())


def train(method: str, seed: int, diversity: float | None = None) -> tuple[float, float, float]:
    ensemble = Ensemble(tails.create("mlp", 64, 8), members=5, seed=seed)
    fit(
        ensemble,
        suite(seed).train,
        method,
        diversity=diversity,
        epochs=10,
        lr=1e-2,
        weight_decay=0.01,
        batch_size=128,
        seed=seed,
        progress=False,
    )
    return judge(ensemble, seed)


@pytest.mark.slow
def test_members_disagree_more_the_more_diversity_is_asked_for() -> None:
    """Seen over three seeds: #unique 1.33, 1.66, 2.35 and PDS 1.29, 1.54, 2.01; the deep ensemble 1.25, 1.23."""
    found = np.array([[train("sed-a2d", seed, d) for seed in SEEDS] for d in DIVERSITIES])  # (D, seeds, 3)
    deep = np.array([train("deep-ensemble", seed) for seed in SEEDS])
    disagreement, accuracy = found[..., :2], found[..., 2]
    assert (np.diff(disagreement, axis=0) > 0.1).all(), "rises for every seed"
    assert (np.diff(disagreement.mean(axis=1), axis=0) > 0.15).all(), "rises clearly over the seeds"
    assert (disagreement[-1].mean(axis=0) > deep[:, :2].mean(axis=0) + 0.5).all()
    assert accuracy.min() > 0.9, "members that guess would disagree, too"
