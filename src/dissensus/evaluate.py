"""evaluate(): an ensemble on the sets of a suite -> one tidy frame, a row a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

from dissensus import aggregate, scores, tails
from dissensus.ensemble import Ensemble
from dissensus.errors import DataError
from dissensus.features import FeatureSet, check_backbone
from dissensus.metrics import Classification, detection

COLUMNS = (
    "method",
    "members",
    "active",
    "diversity",
    "seed",
    "dataset",
    "role",
    "aggregate",
    "score",
    "metric",
    "value",
)
Role = Literal["id", "shift", "ood", "groups"]
Protocol = Literal["mask", "vote"]
# Logits held at once, 64 MB: 50 members x 1000 classes go in batches of 335.
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class SuiteSet:
    """One set to judge on: its role, its features, and how it is shown.

    `family` names the column that several sets share in tables, such as all corruptions of one severity.
    `subset` lists the classes that occur, where those are a part of the tail's; labels stay tail classes.
    """

    name: str
    role: Role
    features: FeatureSet
    family: str = ""
    subset: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Suite:
    """Named data sets with roles: what to train on and what to be judged on."""

    name: str
    summary: str
    train: FeatureSet
    sets: tuple[SuiteSet, ...]
    held_out: FeatureSet | None = None  # labelled, for choices made before the test: the greedy soup
    disagreement: FeatureSet | None = None  # unlabelled, for a2d and divdis

    @property
    def families(self) -> dict[str, str]:
        """Set name -> the column it is shown under."""
        return {s.name: s.family or s.name for s in self.sets}


@dataclass
class _Judged:
    """What one pass over a set leaves: numbers, and a score a sample."""

    metrics: dict[str, dict[str, float]] = field(default_factory=dict)  # aggregate -> metric -> value
    scores: dict[str, Tensor] = field(default_factory=dict)  # name -> (N,)


def evaluate(
    ensemble: Ensemble,
    sets: Sequence[SuiteSet],
    *,
    about: Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    backbone: Mapping[str, Any] | None = None,
    held_out: FeatureSet | None = None,
    score_names: Sequence[str] | None = None,
    protocol: Protocol = "mask",
    progress: bool = True,
) -> pd.DataFrame:
    """Judge the ensemble on every set; a frame with COLUMNS.

    Args:
        ensemble: the trained members.
        sets: one id set, and any number of others. AUROC and its kin tell each shift and ood set from the id set.
        about: method, active, diversity and seed for the frame's first columns.
        classes: names of the classes trained on; labelled sets with other names are refused. None: not checked.
        backbone: what the run recorded of the trunk trained on; features of another are refused. None: not checked.
        held_out: labelled features, not of the test sets, on which the greedy soup is chosen; None: no greedy soup.
        score_names: which scores; None: all.
        protocol: for sets with a subset of classes, "mask" restricts logits first; "vote" is the authors' protocol.
        progress: show a progress bar when stderr is a terminal.

    Accuracy comes for each aggregate: prediction (mean logits), probability, vote, soup, greedy-soup, and for single
    members as their mean (members) and their best (oracle).
    """
    inside = _check(sets, protocol)
    for s in sets if held_out is None else [*sets, SuiteSet("held-out", "shift", held_out)]:
        check_backbone(backbone, s.features, s.name)
        _check_set(ensemble, s, classes)
    wanted = [scores.get(name).__name__ for name in score_names] if score_names else list(scores.SCORES)
    wanted += [name for name in ("pds", "unique") if name not in wanted]
    was_training = ensemble.training
    try:
        ensemble.eval()
        soups: dict[str, nn.Module] = {"soup": ensemble.soup().eval()}
        if held_out is not None:
            soups["greedy-soup"] = ensemble.soup(_greedy_members(ensemble, held_out)).eval()
        bar = tqdm(sets, desc="evaluate", unit="set", leave=False, disable=None if progress else True)
        judged = {s.name: _judge(ensemble, soups, s, wanted, protocol) for s in bar}
    finally:
        ensemble.train(was_training)
    rows = [
        {"dataset": s.name, "role": s.role, **row}
        for s in sets
        for row in _rows(s, judged[s.name], judged[inside.name])
    ]
    fixed = {"method": "", "active": len(ensemble), "diversity": 0.0, "seed": 0, **(about or {})}
    frame = pd.DataFrame(rows).assign(
        members=len(ensemble), **{k: fixed[k] for k in ("method", "active", "diversity", "seed")}
    )
    return frame[list(COLUMNS)]


def _check(sets: Sequence[SuiteSet], protocol: str) -> SuiteSet:
    if protocol not in get_args(Protocol):
        raise DataError(f"protocol must be mask or vote; got {protocol!r}")
    inside = [s for s in sets if s.role == "id"]
    if len(inside) != 1:
        found = ", ".join(s.name for s in inside) or "none"
        raise DataError(f"evaluation needs exactly one id set to compare with; got {found}: give one")
    names = [s.name for s in sets]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise DataError(f"every set needs a name of its own; {sorted(twice)[0]!r} stands twice: rename one")
    return inside[0]


def _check_set(ensemble: Ensemble, s: SuiteSet, trained: Sequence[str] | None) -> None:
    """Refuse a set that the ensemble cannot be judged on, or only wrongly."""
    classes = ensemble.classes
    features, labels = s.features, s.features.labels
    if not tails.fits(ensemble.about, features.shape):
        width = (ensemble.about or {})["features"]
        raise DataError(f"the ensemble takes features of width {width}; {s.name} has {features.shape}: extract it anew")
    if s.role == "ood":
        return
    if labels is None:
        raise DataError(f"sets of role {s.role} need labels; {s.name} has none: give it role ood, or labels")
    if s.role == "groups" and features.groups is None:
        raise DataError(f"a groups set needs groups; {s.name} has none: write its features with groups")
    if classes is not None and int(labels.max()) >= classes:
        raise DataError(
            f"the ensemble has {classes} classes; {s.name} has label {int(labels.max())}: check its classes"
        )
    numbered = features.classes == tuple(str(i) for i in range(len(features.classes)))
    if trained is not None and not numbered and features.classes != tuple(trained):
        raise DataError(
            f"classes must be those of the training set, {_some(trained)}; {s.name} has {_some(features.classes)}: "
            "number its labels as in training"
        )
    if s.subset is not None and (
        len(set(s.subset)) != len(s.subset)
        or len(s.subset) < 2
        or not 0 <= min(s.subset) <= max(s.subset) < (classes or 2**31)
    ):
        raise DataError(f"a subset lists two or more different classes of the ensemble; {s.name} has {_some(s.subset)}")


def _some(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")


@torch.no_grad()
def _judge(
    ensemble: Ensemble, soups: Mapping[str, nn.Module], s: SuiteSet, wanted: Sequence[str], protocol: str
) -> _Judged:
    labelled = s.role != "ood"
    qualities = {name: Classification() for name in [*aggregate.AGGREGATES, *soups]}
    parts: dict[str, list[Tensor]] = {name: [] for name in wanted}
    hits = torch.zeros(len(ensemble), dtype=torch.float64)
    for x, at in s.features.batches(_batch_size(ensemble, s.features.shape)):
        batch = x.to(_device(ensemble))
        logits = ensemble(batch)
        for name in wanted:
            parts[name].append(scores.SCORES[name](logits).cpu())
        if not labelled:
            continue
        assert s.features.labels is not None
        labels, groups = s.features.labels[at], None if s.features.groups is None else s.features.groups[at]
        cooked = {name: soup(batch)[None] for name, soup in soups.items()}
        labels, log_probs = _answers(logits, cooked, labels, s.subset, protocol)
        for name, answer in log_probs.items():
            qualities[name].update(answer.cpu(), labels, groups)
        own = logits if s.subset is None or protocol == "vote" else aggregate.restrict(logits, s.subset)
        truth = s.features.labels[at] if own is logits else labels
        hits += (own.argmax(-1).cpu() == truth).sum(-1)
    result = _Judged(scores={name: torch.cat(values) for name, values in parts.items()})
    if labelled:
        result.metrics = {name: quality.compute() for name, quality in qualities.items()}
        accuracy = hits / len(s.features)
        best = aggregate.oracle(accuracy)
        result.metrics["members"] = {"accuracy": float(accuracy.mean())}
        result.metrics["oracle"] = {"accuracy": float(accuracy[best])}
    return result


def _answers(
    logits: Tensor, soups: Mapping[str, Tensor], labels: Tensor, subset: Sequence[int] | None, protocol: str
) -> tuple[Tensor, dict[str, Tensor]]:
    """Every aggregate's log-probabilities, restricted to the set's classes, and the labels among those."""
    if subset is None:
        answers = {name: combine(logits) for name, combine in aggregate.AGGREGATES.items()}
        return labels, answers | {name: aggregate.prediction(z) for name, z in soups.items()}
    place = torch.full((logits.shape[-1],), -1)
    place[torch.as_tensor(subset)] = torch.arange(len(subset))
    if bool((place[labels] < 0).any()):
        raise DataError(
            f"a label lies outside the subset of classes: {int(labels[place[labels] < 0][0])}; correct either"
        )
    narrow = aggregate.restrict(logits, subset)
    answers = {name: combine(narrow) for name, combine in aggregate.AGGREGATES.items()}
    if protocol == "vote":
        answers["prediction"] = answers["vote"] = aggregate.authors_vote(logits, subset)
    return place[labels], answers | {
        name: aggregate.prediction(aggregate.restrict(z, subset)) for name, z in soups.items()
    }


def _rows(s: SuiteSet, own: _Judged, inside: _Judged) -> list[dict[str, Any]]:
    rows = [
        {"aggregate": name, "score": "", "metric": metric, "value": value}
        for name, metrics in own.metrics.items()
        for metric, value in metrics.items()
    ]
    for name, values in own.scores.items():
        found = {"mean": float(values.double().mean())}
        if s.role in ("shift", "ood"):
            found |= detection(inside.scores[name].double(), values.double())
        rows += [{"aggregate": "", "score": name, "metric": metric, "value": value} for metric, value in found.items()]
    return rows


def _greedy_members(ensemble: Ensemble, held_out: FeatureSet) -> list[int]:
    single = [_accuracy(ensemble.member(i), held_out, ensemble) for i in range(len(ensemble))]
    order = sorted(range(len(ensemble)), key=lambda i: -single[i])
    return aggregate.greedy_soup(order, lambda members: _accuracy(ensemble.soup(members), held_out, ensemble))


@torch.no_grad()
def _accuracy(module: nn.Module, features: FeatureSet, ensemble: Ensemble) -> float:
    assert features.labels is not None
    hits = 0
    for x, at in features.batches(4096):
        hits += int((module.eval()(x.to(_device(ensemble))).argmax(-1).cpu() == features.labels[at]).sum())
    return hits / len(features)


def _device(ensemble: Ensemble) -> torch.device:
    return next(ensemble.parameters()).device


def _batch_size(ensemble: Ensemble, shape: tuple[int, ...]) -> int:
    """Rows at once: logits are held, and what a hidden layer makes of every place of a map or every token."""
    about = ensemble.about or {}
    places = math.prod(shape) // about.get("features", math.prod(shape))
    floats: int = max(about.get("classes", 1000), about.get("hidden", 0) * places // 4)
    return max(1, min(4096, CHUNK_ELEMENTS // (len(ensemble) * floats)))
