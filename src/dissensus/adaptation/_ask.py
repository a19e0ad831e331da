"""ask(): which unlabelled samples to label, so that few labels tell the hypotheses apart."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError
from dissensus.evaluation.predictions import batch_size
from dissensus.features import FeatureSet
from dissensus.functional import scores
from dissensus.functional.fitted import unit, vectors
from dissensus.models.ensemble import Ensemble

FLOOR = 0.02  # nats that every sample counts for: where members agree, samples that lie apart are asked for
WIDTH = 64  # principal directions in which samples are compared
STARTS = 2  # of k-means


@dataclass(frozen=True, repr=False)
class Questions:
    """Samples to label, most informative first.

    Attributes:
        rows: (n,) their rows in the pool.
        disagreement: (n,) mutual information between label and member.
        votes: (n, M) the class that each member predicts.
        classes: Names of the classes.
    """

    rows: Tensor
    disagreement: Tensor
    votes: Tensor
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        first = "".join(f"\n  row {int(row)}: {why}" for row, why in zip(self.rows[:5], self.reasons[:5], strict=True))
        return f"Questions({len(self)} samples to label, most informative first){first}"

    @property
    def reasons(self) -> list[str]:
        """Why each sample is asked for: how the members vote."""
        return [self._reason(votes) for votes in self.votes]

    def at(self, rows: Sequence[int]) -> Questions:
        """The same questions, about a pool of which `rows` were the one that was looked at."""
        return replace(self, rows=torch.tensor(rows)[self.rows])

    @property
    def named_votes(self) -> list[list[str]]:
        """The class that each member predicts, by name: one list per sample."""
        return [[self._name(vote) for vote in votes] for votes in self.votes.tolist()]

    def _reason(self, votes: Tensor) -> str:
        counts = torch.bincount(votes, minlength=1)
        order = counts.argsort(descending=True, stable=True)
        named = [f"{int(counts[c])} say {self._name(int(c))}" for c in order[:3].tolist() if counts[c]]
        if len(named) == 1:
            return f"all {len(votes)} members say {self._name(int(order[0]))}; it is unlike the others asked for"
        rest = len(votes) - int(counts[order[:3]].sum())
        return ", ".join(named) + (f", {rest} others" if rest else "")

    def _name(self, label: int) -> str:
        return self.classes[label] if label < len(self.classes) else str(label)


def ask(
    ensemble: Ensemble,
    features: FeatureSet,
    count: int = 16,
    *,
    classes: tuple[str, ...] = (),
    progress: bool = False,
) -> Questions:
    """Choose the samples of a pool whose labels tell most about which members are right.

    Samples are clustered by their features, weighed by the mutual information between label and member, and the most
    informative sample near the centre of each cluster is asked for: no two ask the same. Deterministic. What it is
    worth: docs/adapt.md.

    Args:
        ensemble: Trained members, two or more.
        features: Unlabelled samples of the place where the ensemble will be used; labels are ignored.
        count: How many to choose; at most as many as there are.
        classes: Names of the ensemble's classes, for the reasons.
        progress: Show a progress bar if stderr is a terminal.

    Raises:
        DissensusError: If there is one member only, or the features are of another width.

    Example:
        >>> questions = ask(ensemble, FeatureSet.open("pool"), count=16)
        >>> pool.names[questions.rows[0]], questions.reasons[0]
    """
    check(ensemble, count)
    if features.passes > 1:
        raise DataError(
            f"a pool has each sample once; got {features.passes} augmented passes: extract without --augment"
        )
    ensemble.check_features(features.shape, "the pool")
    disagreement, votes, directions = _look(ensemble.eval(), features, progress)
    rows = torch.tensor(spread(disagreement, directions, min(count, len(features))))
    return Questions(rows, disagreement[rows], votes[rows], classes)


def check(ensemble: Ensemble, count: int) -> None:
    """Raise `DissensusError` if there is nothing to ask: no count, or one member only."""
    if count < 1:
        raise DissensusError(f"count must be at least 1; got {count}: try 16")
    if len(ensemble) < 2:
        raise DissensusError(
            "labels choose among members; this ensemble has one: train several, or label a random sample of the pool"
        )


@torch.no_grad()
def _look(ensemble: Ensemble, features: FeatureSet, progress: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mutual information (N,), votes (N, M) and directions (N, D) of the whole pool."""
    device = next(ensemble.parameters()).device
    information, votes, directions = list[Tensor](), list[Tensor](), list[Tensor]()
    hidden = None if progress else True
    with tqdm(total=len(features), desc="ask", unit="sample", leave=False, disable=hidden) as bar:
        for x, _ in features.batches(batch_size(ensemble, features.shape)):
            logits = ensemble(x.to(device))
            information.append(scores.mutual_information(logits).float().cpu())
            votes.append(logits.argmax(-1).T.cpu())
            directions.append(unit(vectors(x)))
            bar.update(len(x))
    u = torch.cat(directions)
    return torch.cat(information), torch.cat(votes), u - u.mean(0)


def spread(information: Tensor, points: Tensor, count: int) -> list[int]:
    """Choose informative samples that lie apart: information (N,), points (N, D) -> rows, most informative first.

    K-means with the information as weights; of every cluster, the sample that is informative and near its centre.
    """
    if count >= len(points):
        return [int(row) for row in information.argsort(descending=True, stable=True)]
    weight = (information.double() + FLOOR).numpy()
    z = _projected(points).numpy()
    means = KMeans(count, n_init=STARTS, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct samples than clusters: some stay empty
        cluster = means.fit(z, sample_weight=weight).labels_
    distance = np.square(z - means.cluster_centers_[cluster]).sum(1)
    mass = np.bincount(cluster, weights=weight, minlength=count)
    mean = np.bincount(cluster, weights=distance, minlength=count) / np.bincount(cluster, minlength=count).clip(1)
    value = weight * np.exp(-distance / mean[cluster].clip(1e-12))
    chosen: list[int] = []
    for c in (-mass).argsort(kind="stable").tolist():
        rows = np.flatnonzero(cluster == c)
        if len(rows):
            chosen.append(int(rows[value[rows].argmax()]))
    others = np.setdiff1d(np.arange(len(z)), chosen)  # for clusters that stayed empty
    more = others[(-value[others]).argsort(kind="stable")[: count - len(chosen)]]
    return [*chosen, *map(int, more)]


def _projected(points: Tensor) -> Tensor:
    """The principal part of points (N, D): at most WIDTH numbers each."""
    if points.shape[1] <= WIDTH:
        return points
    sample = points[torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:4096]].double()
    _, vectors = torch.linalg.eigh(sample.T @ sample)
    projected: Tensor = points @ vectors[:, -WIDTH:].to(points)
    return projected
