"""Fit scores of features at the end of training: what the training features of an ensemble look like."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError, DissensusWarning, ShapeError
from dissensus.features import FeatureSet
from dissensus.functional import scores
from dissensus.functional.checks import moved
from dissensus.functional.fitted import FittedScore, Head, Labels, Rows
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

VALUES = 2**24  # of features and of hidden layers that are held at once, 64 MB in float32

LABELS = 2**24  # that a score gets as a tensor; those of a larger set are read when they are indexed

State = dict[str, Tensor]


def fit_scores(
    ensemble: Ensemble,
    features: FeatureSet,
    names: Sequence[str] | None = None,
    *,
    progress: bool = False,
    fabric: Fabric | None = None,
) -> None:
    """Fit scores to training features, and keep them as `ensemble.fitted`; those it had are dropped.

    Args:
        ensemble: The trained members.
        features: The labelled features that they were trained on; of several augmented passes, the first is used.
        names: Which scores, see `scores.of_features`; None: all that the tail allows.
        progress: Show a progress bar when stderr is a terminal and the work takes long.
        fabric: Lightning Fabric, launched; every process sums up its part of the rows, and all get the same scores.

    Raises:
        DissensusError: If a name is unknown, not of a fitted score or of one that the tail does not allow, or the
            features have no labels.

    Warns:
        DissensusWarning: If a score cannot be fitted to these features; it is left out.
    """
    kinds = kinds_of(names, ensemble)
    if not features.has_labels:
        raise DataError("scores are fitted to labelled features; got an unlabelled set: give labels when making it")
    if not kinds:
        ensemble.fitted = {}
        return
    was_training = ensemble.training
    ensemble.eval()
    try:
        if fabric is None or fabric.world_size == 1:
            states = _fit(_rows(ensemble, features, progress), kinds)
        else:
            rows = _rows(ensemble, features, progress and fabric.is_global_zero, Ranks(fabric))
            with contextlib.suppress(DataError, ShapeError):  # raised again for the scores that need the sums
                _ = rows.moments
            states = _fit_once(fabric, lambda: _fit(rows, kinds))
    finally:
        ensemble.train(was_training)
    ensemble.fitted = {name: kinds[name](state) for name, state in states.items()}


def _fit_once(fabric: Fabric, fit: Callable[[], dict[str, State]]) -> dict[str, State]:
    """Call `fit` in the first process and return its states in all; if it raises, raise in all: none may wait."""
    states, failure = dict[str, State](), None
    if fabric.is_global_zero:
        try:
            states = fit()
        except Exception as error:
            failure = error
    Ranks(fabric).agree(failure)
    return fabric.broadcast(states)


class Ranks:
    """The processes of Lightning Fabric, each of which reads a part of the rows: an `Exchange`."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def part(self, rows: int) -> slice:
        """The rows that this process reads."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        return slice(rows * rank // world, rows * (rank + 1) // world)

    def agree(self, failure: Exception | None) -> None:
        """Raise in all processes if one of them failed: its own error there, the text of the first in the others."""
        # its text: not every exception can be pickled
        reason = None if failure is None else (str(failure) or repr(failure), _kind(failure))
        reasons = [self.fabric.broadcast(reason, src=rank) for rank in range(self.fabric.world_size)]
        if failure is not None:
            raise failure
        for rank, other in enumerate(reasons):
            if other is not None:
                message, kind = other
                raise RuntimeError(f"process {rank} failed: {message}") if kind is None else kind(message)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over processes."""
        total = self.fabric.all_reduce(moved(value, self.fabric.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total.cpu().to(value.dtype)

    def gather(self, value: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, in order."""
        return [self.fabric.broadcast(value, src=rank) for rank in range(self.fabric.world_size)]


def _kind(error: Exception) -> type[DissensusError] | None:
    """The class in which other processes raise an error; None: it was not expected."""
    kinds = (DataError, ShapeError, DissensusError)
    return next((kind for kind in kinds if isinstance(error, kind)), None)


def kinds_of(names: Sequence[str] | None, ensemble: Ensemble) -> dict[str, type[FittedScore]]:
    """Return the classes of the fitted scores of these names; None: of all that the tail allows.

    Raises:
        DissensusError: If one is not a fitted score, or needs a linear head that the ensemble does not have.
    """
    head = _head(ensemble)
    if names is None:
        return {name: kind for name, kind in scores.of_features().items() if head is not None or not kind.needs_head}
    kinds = dict[str, type[FittedScore]]()
    for name in names:
        kind = scores.SCORES[name]
        if not isinstance(kind, type) or not issubclass(kind, FittedScore):
            raise DissensusError(f"only scores of features are fitted; {name!r} is one of logits: leave it out")
        kind.check_head(head)
        kinds[name] = kind
    return kinds


def _fit(rows: Rows, kinds: dict[str, type[FittedScore]]) -> dict[str, State]:
    """The state of each score, by name."""
    states = dict[str, State]()
    for name, kind in kinds.items():
        try:
            state = kind.fit(rows, cast(Tensor, rows.labels))
            # contiguous, as when loaded: the order of summation depends on it
            states[name] = {key: value.detach().cpu().contiguous() for key, value in state.items()}
        except (DataError, ShapeError) as error:
            message = f"the score {name} is left out, these features do not allow it: {error}"
            warnings.warn(message, DissensusWarning, stacklevel=3)
    return states


def _rows(ensemble: Ensemble, features: FeatureSet, progress: bool, ranks: Ranks | None = None) -> Rows:
    """The rows that scores are fitted to: those of the first pass."""
    samples = len(features) // features.passes
    labels: Labels = _Labels(features, samples)
    if samples <= LABELS:
        labels = labels[slice(0, samples)]
    return Rows(
        _Source(features, slice(0, samples), progress),
        labels,
        ensemble.classes or len(features.classes),
        logits=lambda x: _logits(ensemble, x),
        head=_head(ensemble),
        part=None if ranks is None else _Source(features, ranks.part(samples), progress),
        exchange=ranks,
    )


class _Labels:
    """Labels of the first rows of a set, read when they are indexed."""

    def __init__(self, features: FeatureSet, samples: int) -> None:
        self.features, self.samples = features, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, rows: slice | Tensor) -> Tensor:
        return self.features.labels_at(rows)

    def cpu(self) -> Self:
        """Labels are read to the CPU."""
        return self


@dataclass(frozen=True)
class _Source:
    """Consecutive rows of a set in batches of bounded size, with a progress bar."""

    features: FeatureSet
    part: slice
    progress: bool

    def __len__(self) -> int:
        return int(self.part.stop - self.part.start)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        """Yield features (b, ...) and the rows that they are."""
        size = max(1, min(batch_size, VALUES // self.features.width))
        hidden = None if self.progress else True
        with tqdm(total=len(self), desc="fit scores", unit="row", leave=False, disable=hidden, delay=1) as bar:
            for start in range(self.part.start, self.part.stop, size):
                at = slice(start, min(start + size, self.part.stop))
                yield self.features.rows(at), at
                bar.update(at.stop - at.start)


@torch.no_grad()
def _logits(ensemble: Ensemble, x: Tensor) -> Tensor:
    """Members' logits (M, b, C) on the CPU, computed in parts that fit into memory."""
    about = ensemble.about or {}
    places = math.prod(x.shape[1:]) // about.get("features", math.prod(x.shape[1:]))
    size = max(1, VALUES // (len(ensemble) * max(about.get("classes", 1000), about.get("hidden", 0) * places)))
    device = next(ensemble.parameters()).device
    return torch.cat([ensemble(part.to(device)).cpu() for part in torch.split(x, size)], dim=1)


def _head(ensemble: Ensemble) -> Head | None:
    """The mean of the members' last layers, if members are linear in L2-normalised features."""
    tail = ensemble.tail
    if not isinstance(tail, tails.Linear) or getattr(tail, "norm", "none") != "l2":
        return None
    return Head(tail.weight.detach().mean(0).cpu(), tail.bias.detach().mean(0).cpu())
