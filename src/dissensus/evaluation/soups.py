"""Soups: the aggregates of weights, each one model with the mean weights of some members."""

from __future__ import annotations

import torch
from torch import nn

from dissensus.features import FeatureSet
from dissensus.functional import aggregates
from dissensus.models.ensemble import Ensemble


def make_soups(ensemble: Ensemble, held_out: FeatureSet | None) -> dict[str, nn.Module]:
    """Every aggregate of weights as one module, by name; without `held_out`, only those that do not need it."""

    def soup_accuracy(members: list[int]) -> float:
        assert held_out is not None
        return accuracy(ensemble.soup(members), held_out)

    return {
        name: ensemble.soup(choose(len(ensemble), soup_accuracy)).eval()
        for name, choose in aggregates.of_kind("weights").items()
        if held_out is not None or not choose.held_out
    }


@torch.no_grad()
def accuracy(module: nn.Module, features: FeatureSet) -> float:
    """Share of labelled features that a single model, (B, ...) -> (B, C), classifies correctly."""
    assert features.labels is not None
    device = next(module.parameters()).device
    hits = 0
    for x, rows in features.batches(4096):
        hits += int((module.eval()(x.to(device)).argmax(-1).cpu() == features.labels[rows]).sum())
    return hits / len(features)
