"""Scores of an ensemble on several backbones: `mahalanobis@lite0` is the score mahalanobis on the features of lite0.

The features of all backbones are one vector per sample; a part is a range of it. Fitted scores belong to a part. Scores
of logits are of all members, whatever their backbone, and have no part in their name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from dissensus._core.errors import DissensusError
from dissensus.functional.fitted import FittedScore, Rows
from dissensus.functional.scores import SCORES, is_fitted

MARK = "@"  # between a score and its part


class PartScore(FittedScore):
    """A fitted score of one part of joined features.

    Args:
        score: The score, fitted to the features of the part.
        columns: Where those are in a row of joined features.
        shape: Their shape for one sample.
        members: The members of the part.
    """

    exportable = False
    why_not = "it is of one of several backbones"

    def __init__(self, score: FittedScore, columns: slice, shape: Sequence[int], members: slice) -> None:
        super().__init__({})
        self.score, self.columns, self.shape, self.members = score, columns, tuple(shape), members

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Raise: parts are fitted on their own, before they are joined."""
        raise DissensusError("a score of one backbone is fitted with its run; got joined features: train each run")

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the score of joined features (B, D) with the logits (M, B, C) of all members: (B,)."""
        own = features[:, self.columns].reshape(-1, *self.shape)
        return self.score(own, logits[self.members])

    __call__ = forward  # the score itself checks shapes and goes part by part


def part_name(score: str, part: str) -> str:
    """Return the name of a score on a part: mahalanobis@lite0."""
    return f"{score}{MARK}{part}"


def parts_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the parts that occur in these names, in order; none if the scores are of a single backbone.

    >>> parts_of(["knn@lite0", "vim@lite0", "knn@lite2"])
    ('lite0', 'lite2')
    """
    return tuple(dict.fromkeys(name.partition(MARK)[2] for name in names if MARK in name))


def spread(
    names: Sequence[str], weights: Sequence[float], parts: Sequence[str]
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Return names and weights of an expression over several backbones, as they are if there is none.

    A fitted score without a part is computed on every part, with its weight on each. A score of logits is of all
    members; it gets the weight of as many parts, so that fitted scores and scores of logits keep their balance.

    >>> spread(["mahalanobis", "pds"], [2.0, 1.0], ["lite0", "lite2"])
    (('mahalanobis@lite0', 'mahalanobis@lite2', 'pds'), (2.0, 2.0, 2.0))
    """
    if not parts:
        return tuple(names), tuple(weights)
    pairs: list[tuple[str, float]] = []
    for name, weight in zip(names, weights, strict=True):
        if MARK in name:
            pairs.append((name, weight))
        elif is_fitted(name):
            pairs += [(part_name(name, part), weight) for part in parts]
        else:
            pairs.append((name, weight * len(parts)))
    if len(pairs) == 1:
        pairs = [(pairs[0][0], 1.0)]
    return tuple(name for name, _ in pairs), tuple(weight for _, weight in pairs)


def _find(score: str, part: str) -> type[FittedScore]:
    if not is_fitted(score):
        raise DissensusError(
            f"a score of logits is of all members, whatever their backbone; got {score}{MARK}{part}: write {score}"
        )
    return PartScore


SCORES.add_mark(MARK, _find)
