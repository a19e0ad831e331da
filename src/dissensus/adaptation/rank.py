"""Ranking: the AUROC of a score on every stand-in, and how far two scores differ beyond noise.

The noise of a difference of AUROCs follows from the influence of each sample (DeLong et al., 1988): the placement of
an ID sample among the OOD samples, and the reverse. A sample used in several roles, such as an ID image and its jigsaw,
has the sum of its influences, so that the roles need not be independent. Scores are compared on the same samples. Which
classes were left out is chance as well: the spread between them adds to the noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dissensus.functional import expressions
from dissensus.functional.comparisons import placements

INSIDE = "id"
CLASSES = "classes"
CORRUPTIONS = "corruptions"

Values = Mapping[str, Mapping[str, Tensor]]
"""Score -> set -> (n,); the sets are "id" and the stand-ins."""


@dataclass(frozen=True)
class Ranked:
    """How well a score separates ID samples from stand-ins.

    Attributes:
        aurocs: stand-in -> AUROC.
        kinds: kind of stand-in -> mean AUROC of its stand-ins.
        influence: (S,) of each sample on the mean over the kinds, of a fold on that over all folds; sums to 0.
        by_class: (K,) AUROC on each class that was left out; empty if unknown.
    """

    aurocs: dict[str, float]
    kinds: dict[str, float]
    influence: Tensor
    by_class: Tensor

    @property
    def mean(self) -> float:
        """The mean over the kinds of stand-ins, with equal weight."""
        return sum(self.kinds.values()) / len(self.kinds)

    def error(self, other: Ranked | None = None) -> float:
        """Standard error of the mean, or of its difference to that of another score on the same samples."""
        influence = self.influence if other is None else self.influence - other.influence
        by_class = self.by_class if other is None else self.by_class - other.by_class
        variance = float(influence.square().sum())
        if len(by_class) > 1:
            variance += float(by_class.var()) / len(by_class) / len(self.kinds) ** 2
        return math.sqrt(variance)


def kind_of(stand_in: str) -> str:
    """The kind of a stand-in: classes, jigsaw or corruptions."""
    return stand_in if stand_in in (CLASSES, "jigsaw") else CORRUPTIONS


def shares(folds: Sequence[Collection[str]]) -> list[dict[str, float]]:
    """The weight of each stand-in of each fold in the mean over kinds; the weights sum to 1.

    Kinds have equal weight, in a kind its stand-ins, and of a stand-in the folds that have it.
    """
    names = dict.fromkeys(itertools.chain(*folds))
    kinds = [kind_of(name) for name in names]
    weights = {name: 1 / (len(set(kinds)) * kinds.count(kind_of(name))) for name in names}
    return [{name: weights[name] / sum(name in each for each in folds) for name in fold} for fold in folds]


def rank(
    score: str,
    values: Values,
    samples: Mapping[str, Tensor],
    classes: Tensor | None = None,
    share: Mapping[str, float] | None = None,
) -> Ranked:
    """Rank a score, or a combination as a detector combines it, on the stand-ins of one fold.

    Combinations compare with the scores of half of the ID samples, and are measured on the other half; then the halves
    are swapped, and the AUROCs are averaged. Single scores are measured in the same way.

    Args:
        score: A score expression.
        values: The values of its scores on each set.
        samples: Set -> (n,), the number of the sample behind each value, 0 to S - 1.
        classes: (n,), the class of each sample of the stand-in "classes".
        share: The weight of each stand-in in the mean, see `shares`; None: this is the only fold.
    """
    names, weights = expressions.score_names(score)
    outside = [name for name in values[names[0]] if name != INSIDE]
    count = len(values[names[0]][INSIDE])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    halves = order[::2], order[1::2]
    aurocs = dict.fromkeys(outside, 0.0)
    influence = torch.zeros(1 + max(int(at.max()) for at in samples.values()), dtype=torch.float64)
    share = shares([outside])[0] if share is None else share
    by_class = torch.zeros(0 if classes is None else len(torch.unique(classes)), dtype=torch.float64)
    for reference, test in (halves, halves[::-1]):
        references = [values[name][INSIDE][reference].float().sort().values for name in names]
        inside = expressions.combine([values[name][INSIDE][test] for name in names], references, weights)
        for stand_in in outside:
            scores = expressions.combine([values[name][stand_in] for name in names], references, weights)
            of_id, of_ood = placements(inside, scores)
            auroc = float(of_id.mean())
            aurocs[stand_in] += auroc / 2
            if stand_in == CLASSES and classes is not None:
                by_class += _means(of_ood, classes) / 2
            part = share[stand_in] / 2
            influence.index_add_(0, samples[INSIDE][test], part * (of_id - auroc) / len(of_id))
            influence.index_add_(0, samples[stand_in], part * (of_ood - auroc) / len(of_ood))
    return Ranked(aurocs, kinds_of(aurocs), influence, by_class)


def _means(values: Tensor, groups: Tensor) -> Tensor:
    """The mean of values (n,) over each group of equal numbers: (K,)."""
    _, at = torch.unique(groups, return_inverse=True)
    return torch.bincount(at, weights=values) / torch.bincount(at)


def pool(folds: Sequence[Ranked]) -> Ranked:
    """The mean over folds, whose samples differ; of a stand-in, over the folds that have it. Rank with `shares`."""
    names = dict.fromkeys(itertools.chain(*(fold.aurocs for fold in folds)))
    values = {name: [fold.aurocs[name] for fold in folds if name in fold.aurocs] for name in names}
    aurocs = {name: sum(each) / len(each) for name, each in values.items()}
    influence, by_class = torch.cat([f.influence for f in folds]), torch.cat([f.by_class for f in folds])
    return Ranked(aurocs, kinds_of(aurocs), influence, by_class)


def kinds_of(aurocs: Mapping[str, float]) -> dict[str, float]:
    """Kind of stand-in -> the mean AUROC of its stand-ins."""
    by_kind: dict[str, list[float]] = {}
    for name, value in aurocs.items():
        by_kind.setdefault(kind_of(name), []).append(value)
    return {kind: sum(each) / len(each) for kind, each in by_kind.items()}
