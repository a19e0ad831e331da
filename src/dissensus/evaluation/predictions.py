"""Predictions: one pass of an ensemble over a set, with metrics of every aggregate and of soups of the members."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet
from dissensus.functional import aggregates, metrics, scores
from dissensus.functional.classification import Classification
from dissensus.models.ensemble import Ensemble

# Logits held at once, 64 MB: 50 members x 1000 classes go in batches of 335.
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class Predictions:
    """An ensemble's output for each sample of a set; classes are the tail's, whatever the set's subset.

    Attributes:
        labels: (N,), None where the set has none.
        prediction: (N,), the class with the highest mean logit.
        confidence: (N,), its probability.
        votes: (M, N), each member's class.
        scores: name -> (N,), higher = more OOD.
        metrics: aggregate -> metric -> value, of labelled sets.
    """

    labels: Tensor | None
    prediction: Tensor
    confidence: Tensor
    votes: Tensor
    scores: dict[str, Tensor]
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prediction)


@torch.no_grad()
def predict(
    ensemble: Ensemble,
    features: FeatureSet,
    score_names: Sequence[str],
    *,
    labelled: bool = True,
    soups: Mapping[str, nn.Module] | None = None,
    subset: Sequence[int] | None = None,
    protocol: str = "mask",
) -> Predictions:
    """Run an ensemble over a set of features, once.

    Args:
        ensemble: the trained members; runs in evaluation mode and returns to the mode it was in.
        features: the set.
        score_names: which scores to compute.
        labelled: whether labels, if there are any, are those of the ensemble; False for OOD sets.
        soups: means of the members' weights as models, to be measured too; see `soups.make_soups`.
        subset: the classes that occur in the set, where those are a part of the ensemble's.
        protocol: for a subset, "mask" restricts logits first; "vote" is the authors' protocol.

    Returns:
        The predictions, with metrics for every aggregate where labels are known.
    """
    soups, was_training = soups or {}, ensemble.training
    qualities = {name: Classification() for name in [*aggregates.of_kind("logits"), *soups]}
    parts: dict[str, list[Tensor]] = {name: [] for name in (*score_names, "prediction", "confidence", "votes")}
    labels = features.labels if labelled else None
    masked = subset is not None and protocol == "mask"
    device = next(ensemble.parameters()).device
    try:
        ensemble.eval()
        for x, rows in features.batches(batch_size(ensemble, features.shape)):
            batch = x.to(device)
            logits = ensemble(batch)
            for name in score_names:
                parts[name].append(scores.compute(name, logits, batch, ensemble.fitted).cpu())
            seen = aggregates.restrict(logits, subset) if masked and subset is not None else logits
            classes = torch.as_tensor(subset) if masked else torch.arange(logits.shape[-1])
            log_probs, places = aggregates.prediction(seen).max(-1)
            parts["prediction"].append(classes[places.cpu()])
            parts["confidence"].append(log_probs.exp().cpu())
            parts["votes"].append(classes[seen.argmax(-1).cpu()].to(torch.int32))
            if labels is not None:
                groups = None if features.groups is None else features.groups[rows]
                soup_logits = {name: soup(batch)[None] for name, soup in soups.items()}
                targets, answers = _answers(logits, soup_logits, labels[rows], subset, protocol)
                for name, answer in answers.items():
                    qualities[name].update(answer.cpu(), targets, groups)
    finally:
        ensemble.train(was_training)
    votes = torch.cat(parts.pop("votes"), dim=1)
    whole = {name: torch.cat(values) for name, values in parts.items()}
    prediction, confidence = whole.pop("prediction"), whole.pop("confidence")
    if labels is None:
        return Predictions(None, prediction, confidence, votes, whole)
    measured = {name: quality.compute() for name, quality in qualities.items()}
    measured |= _member_metrics((votes == labels).double(), features.groups)
    return Predictions(labels, prediction, confidence, votes, whole, measured)


def _member_metrics(correct: Tensor, groups: Tensor | None) -> dict[str, dict[str, float]]:
    """Every aggregate of single members, of the metrics that need no probabilities; `correct` is (M, N)."""
    columns = {} if groups is None else {"groups": groups}
    alone = [metrics.compute(correct=member, **columns) for member in correct]
    measured: dict[str, dict[str, float]] = {name: {} for name in aggregates.of_kind("members")}
    for metric in alone[0]:
        sign = -1 if metrics.METRICS[metric].better == "lower" else 1  # aggregates take higher for better
        values = torch.tensor([sign * member[metric] for member in alone], dtype=torch.float64)
        for name, aggregate in aggregates.of_kind("members").items():
            measured[name][metric] = sign * float(aggregate(values))
    return measured


def _answers(
    logits: Tensor, soups: Mapping[str, Tensor], labels: Tensor, subset: Sequence[int] | None, protocol: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """The labels among the set's classes, and every aggregate's log-probabilities of these classes."""
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
    narrow_soups = {name: aggregates.prediction(aggregates.restrict(z, subset)) for name, z in soups.items()}
    return place[labels], answers | narrow_soups


def batch_size(ensemble: Ensemble, shape: tuple[int, ...]) -> int:
    """Rows of features of a shape to run at once.

    Bounds the memory of the logits and of the hidden layer's outputs at every place of a map or token.
    """
    about = ensemble.about or {}
    places = math.prod(shape) // about.get("features", math.prod(shape))
    floats: int = max(about.get("classes", 1000), about.get("hidden", 0) * places // 4)
    return max(1, min(4096, CHUNK_ELEMENTS // (len(ensemble) * floats)))
