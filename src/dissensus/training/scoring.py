"""Fit scores of features at the end of training: what the training features of an ensemble look like."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from lightning_fabric import Fabric
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DataError, DissensusError, DissensusWarning, ShapeError
from dissensus.features import FeatureSet
from dissensus.functional import scores
from dissensus.functional.fitted import FittedScore, Head, Rows
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

VALUES = 2**24  # of features and of hidden layers that are held at once, 64 MB in float32

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
        fabric: Lightning Fabric, launched; the first process fits, all of them get the same scores.

    Raises:
        DissensusError: If a name is unknown, not of a fitted score or of one that the tail does not allow, or the
            features have no labels.

    Warns:
        DissensusWarning: If a score cannot be fitted to these features; it is left out.
    """
    kinds = kinds_of(names, ensemble)
    if features.labels is None:
        raise DataError("scores are fitted to labelled features; got an unlabelled set: give labels when making it")
    if fabric is None or fabric.world_size == 1:
        states = _fit(ensemble, features, kinds, progress)
    else:
        states = _fit_once(fabric, lambda: _fit(ensemble, features, kinds, progress))
    ensemble.fitted = {name: kinds[name](state) for name, state in states.items()}


def _fit_once(fabric: Fabric, fit: Callable[[], dict[str, State]]) -> dict[str, State]:
    """Call `fit` in the first process and return its states in all; if it raises, raise in all: none may wait."""
    states, failure = dict[str, State](), None
    if fabric.is_global_zero:
        try:
            states = fit()
        except Exception as error:
            failure = error
    # its text: not every exception can be pickled
    reason = None if failure is None else (str(failure) or repr(failure), isinstance(failure, DissensusError))
    states, reason = fabric.broadcast((states, reason))
    if failure is not None:
        raise failure
    if reason is not None:
        message, expected = reason
        raise DissensusError(message) if expected else RuntimeError(f"the first process failed: {message}")
    return states


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


def _fit(
    ensemble: Ensemble, features: FeatureSet, kinds: dict[str, type[FittedScore]], progress: bool
) -> dict[str, State]:
    """The state of each score, by name."""
    if not kinds:
        return {}
    features = features.subset(slice(0, len(features) // features.passes)) if features.passes > 1 else features
    assert features.labels is not None
    was_training, states = ensemble.training, dict[str, State]()
    source = _Source(features, progress)
    rows = Rows(
        source,
        features.labels,
        ensemble.classes or len(features.classes),
        logits=lambda x: _logits(ensemble, x),
        head=_head(ensemble),
    )
    ensemble.eval()
    try:
        for name, kind in kinds.items():
            source.name = name
            try:
                state = kind.fit(rows, features.labels)
                # contiguous, as when loaded: the order of summation depends on it
                states[name] = {key: value.detach().cpu().contiguous() for key, value in state.items()}
            except (DataError, ShapeError) as error:
                message = f"the score {name} is left out, these features do not allow it: {error}"
                warnings.warn(message, DissensusWarning, stacklevel=3)
    finally:
        ensemble.train(was_training)
    return states


@dataclass
class _Source:
    """Features in batches of bounded size, with a progress bar."""

    features: FeatureSet
    progress: bool
    name: str = ""  # of the score that reads them

    def __len__(self) -> int:
        return len(self.features)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, slice]]:
        """Yield features (b, ...) and the rows that they are."""
        size = max(1, min(batch_size, VALUES // self.features.width))
        hidden = None if self.progress else True
        with tqdm(total=len(self), desc=f"fit {self.name}", unit="row", leave=False, disable=hidden, delay=1) as bar:
            for x, at in self.features.batches(size):
                yield x, at
                bar.update(len(x))


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
