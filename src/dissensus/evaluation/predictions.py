"""One pass of an ensemble over a set of features: numbers for every aggregate, and what it says of every sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.functional import aggregates, scores
from dissensus.functional.classification import Classification
from dissensus.models.ensemble import Ensemble

# Logits held at once, 64 MB: 50 members x 1000 classes go in batches of 335.
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Samples:
    """What an ensemble says of each sample of a set; classes are the tail's, whatever the set's subset."""

    labels: Tensor | None  # (N,)
    prediction: Tensor  # (N,), of the mean logits
    confidence: Tensor  # (N,), its probability
    votes: Tensor  # (M, N), each member's class
    scores: dict[str, Tensor]  # name -> (N,)


@dataclass(frozen=True)
class Judged:
    """What one pass over a set leaves."""

    samples: Samples
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # aggregate -> metric -> value


@torch.no_grad()
def judge(
    ensemble: Ensemble,
    soups: Mapping[str, nn.Module],
    features: FeatureSet,
    wanted: Sequence[str],
    *,
    labelled: bool,
    subset: Sequence[int] | None = None,
    protocol: str = "mask",
) -> Judged:
    """Run the ensemble and its soups over the features; `wanted` are the names of scores."""
    qualities = {name: Classification() for name in [*aggregates.of_kind("logits"), *soups]}
    parts: dict[str, list[Tensor]] = {name: [] for name in (*wanted, "prediction", "confidence", "votes")}
    known = features.labels if labelled else None
    for x, at in features.batches(batch_size(ensemble, features.shape)):
        batch = x.to(_device(ensemble))
        logits = ensemble(batch)
        for name in wanted:
            parts[name].append(scores.SCORES[name](logits).cpu())
        masked = subset is not None and protocol == "mask"
        own = aggregates.restrict(logits, subset) if masked and subset is not None else logits
        places = torch.as_tensor(subset) if masked else torch.arange(logits.shape[-1])
        log_probs, found = aggregates.prediction(own).max(-1)
        parts["prediction"].append(places[found.cpu()])
        parts["confidence"].append(log_probs.exp().cpu())
        parts["votes"].append(places[own.argmax(-1).cpu()].to(torch.int32))
        if known is not None:
            groups = None if features.groups is None else features.groups[at]
            cooked = {name: soup(batch)[None] for name, soup in soups.items()}
            labels, answers = _answers(logits, cooked, known[at], subset, protocol)
            for name, answer in answers.items():
                qualities[name].update(answer.cpu(), labels, groups)
    votes = torch.cat(parts.pop("votes"), dim=1)
    whole = {name: torch.cat(values) for name, values in parts.items()}
    samples = Samples(known, whole.pop("prediction"), whole.pop("confidence"), votes, whole)
    if known is None:
        return Judged(samples)
    metrics = {name: quality.compute() for name, quality in qualities.items()}
    right = (votes == known).double()
    alone = {"accuracy": right.mean(-1)}  # metric -> (M,)
    if features.groups is not None:
        each = [right[:, features.groups == g].mean(-1) for g in torch.unique(features.groups)]
        alone["worst_group"] = torch.stack(each).amin(0)
    for name, aggregate in aggregates.of_kind("members").items():
        metrics[name] = {metric: float(aggregate(values)) for metric, values in alone.items()}
    return Judged(samples, metrics)


def _answers(
    logits: Tensor, soups: Mapping[str, Tensor], labels: Tensor, subset: Sequence[int] | None, protocol: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Every aggregate's log-probabilities, restricted to the set's classes, and the labels among those."""
    if subset is None:
        answers = {name: combine(logits) for name, combine in aggregates.of_kind("logits").items()}
        return labels, answers | {name: aggregates.prediction(z) for name, z in soups.items()}
    place = torch.full((logits.shape[-1],), -1)
    place[torch.as_tensor(subset)] = torch.arange(len(subset))
    if bool((place[labels] < 0).any()):
        raise DataError(
            f"a label lies outside the subset of classes: {int(labels[place[labels] < 0][0])}; correct either"
        )
    narrow = aggregates.restrict(logits, subset)
    answers = {name: combine(narrow) for name, combine in aggregates.of_kind("logits").items()}
    if protocol == "vote":
        answers["prediction"] = answers["vote"] = aggregates.authors_vote(logits, subset)
    return place[labels], answers | {
        name: aggregates.prediction(aggregates.restrict(z, subset)) for name, z in soups.items()
    }


def make_soups(ensemble: Ensemble, held_out: FeatureSet | None) -> dict[str, nn.Module]:
    """Every aggregate of weights as one module, by name; without `held_out`, only those that do not need it."""

    def accuracy(members: list[int]) -> float:
        assert held_out is not None
        return _accuracy(ensemble.soup(members), held_out, ensemble)

    return {
        name: ensemble.soup(choose(len(ensemble), accuracy)).eval()
        for name, choose in aggregates.of_kind("weights").items()
        if held_out is not None or not choose.held_out
    }


@torch.no_grad()
def _accuracy(module: nn.Module, features: FeatureSet, ensemble: Ensemble) -> float:
    assert features.labels is not None
    hits = 0
    for x, at in features.batches(4096):
        hits += int((module.eval()(x.to(_device(ensemble))).argmax(-1).cpu() == features.labels[at]).sum())
    return hits / len(features)


def _device(ensemble: Ensemble) -> torch.device:
    return next(ensemble.parameters()).device


def batch_size(ensemble: Ensemble, shape: tuple[int, ...]) -> int:
    """Rows at once: logits are held, and what a hidden layer makes of every place of a map or every token."""
    about = ensemble.about or {}
    places = math.prod(shape) // about.get("features", math.prod(shape))
    floats: int = max(about.get("classes", 1000), about.get("hidden", 0) * places // 4)
    return max(1, min(4096, CHUNK_ELEMENTS // (len(ensemble) * floats)))
