"""evaluate(): an ensemble on the sets of a suite -> one tidy frame, a row a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd
from tqdm import tqdm

from dissensus._core.errors import DataError
from dissensus.evaluation.predictions import Judged, Samples, judge, make_soups
from dissensus.features import FeatureSet, check_backbone
from dissensus.functional import metrics, scores
from dissensus.images import ImageSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

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
    images: ImageSet | None = None  # row by row what the features are of, to look at


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
    samples: dict[str, Samples] | None = None,
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
        samples: filled, where given, with what the ensemble says of every sample, by the name of the set.
        progress: show a progress bar when stderr is a terminal.

    Accuracy comes for each aggregate: prediction (mean logits), probability, vote, soup, greedy-soup, and for single
    members as their mean (members) and their best (oracle).
    """
    inside = _check(sets, protocol)
    for s in sets if held_out is None else [*sets, SuiteSet("held-out", "shift", held_out)]:
        check_backbone(backbone, s.features, s.name)
        _check_set(ensemble, s, classes)
    wanted = [scores.SCORES[name].__name__ for name in score_names] if score_names else list(scores.SCORES)
    wanted += [name for name in ("pds", "unique") if name not in wanted]
    was_training = ensemble.training
    try:
        ensemble.eval()
        soups = make_soups(ensemble, held_out)
        bar = tqdm(sets, desc="evaluate", unit="set", leave=False, disable=None if progress else True)
        judged = {
            s.name: judge(
                ensemble, soups, s.features, wanted, labelled=s.role != "ood", subset=s.subset, protocol=protocol
            )
            for s in bar
        }
    finally:
        ensemble.train(was_training)
    if samples is not None:
        samples |= {name: found.samples for name, found in judged.items()}
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


def _rows(s: SuiteSet, own: Judged, inside: Judged) -> list[dict[str, Any]]:
    rows = [
        {"aggregate": name, "score": "", "metric": metric, "value": value}
        for name, quality in own.metrics.items()
        for metric, value in quality.items()
    ]
    for name, values in own.samples.scores.items():
        found = metrics.compute(scores=values.double())
        if s.role in ("shift", "ood"):
            found |= metrics.detection(inside.samples.scores[name].double(), values.double())
        rows += [{"aggregate": "", "score": name, "metric": metric, "value": value} for metric, value in found.items()]
    return rows
