"""Trials: one ensemble trained on a fold, and the values of its scores on the fold's ID samples and stand-ins."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus._core import tensors
from dissensus._core.digests import digest
from dissensus._core.errors import DissensusWarning, RunError
from dissensus._core.files import make_folder
from dissensus.adaptation.candidates import DISTANCES, LENGTH, LOGITS, Candidate
from dissensus.adaptation.rank import CLASSES, INSIDE
from dissensus.adaptation.splits import Fold
from dissensus.evaluation.predictions import Predictions, predict
from dissensus.features import FeatureSet
from dissensus.models.ensemble import Ensemble
from dissensus.training import Settings, fit, fit_scores
from dissensus.training.options import Task

CORRECT, SECONDS = "correct", "seconds"
FITTED = (*DISTANCES, LENGTH)
Measured = dict[str, dict[str, Tensor]]  # score -> set -> (n,)


@dataclass(frozen=True)
class Trial:
    """What is known of one ensemble on one fold."""

    values: Measured
    correct: Tensor  # (n,) 0 or 1, of the ID samples
    seconds: float


@dataclass
class Store:
    """Finished trials, in a folder."""

    folder: Path
    _known: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def get(self, key: str) -> dict[str, Tensor] | None:
        """The tensors under a key; None if there are none, or the file is damaged."""
        if key not in self._known and (self.folder / f"{key}.safetensors").exists():
            try:
                self._known[key] = tensors.read(self.folder / f"{key}.safetensors", remedy="it is made again")
            except RunError:  # made again
                return None
        return self._known.get(key)

    def put(self, key: str, values: dict[str, Tensor]) -> None:
        """Keep tensors under a key."""
        self._known[key] = values
        make_folder(self.folder)
        tensors.write(self.folder / f"{key}.safetensors", values)


class Bench:
    """Runs trials on the folds of a feature set.

    Args:
        features: The labelled training features.
        folds: How to divide them.
        views: Per fold, stand-ins made of images.
        store: Where trials are kept.
        members: Number of members of every ensemble.
        seed: Decides initial weights and batches.
        norm: Norm of candidates that do not set one; None: the tail's default.
    """

    def __init__(
        self,
        features: FeatureSet,
        folds: Sequence[Fold],
        views: Sequence[Mapping[str, FeatureSet]],
        store: Store,
        members: int,
        seed: int,
        norm: str | None = None,
    ) -> None:
        self.norm = norm
        self.features, self.folds, self.store, self.members, self.seed = features, folds, store, members, seed
        self.sets = [self._sets(fold, by_name) for fold, by_name in zip(folds, views, strict=True)]

    def _sets(self, fold: Fold, views: Mapping[str, FeatureSet]) -> dict[str, FeatureSet]:
        sets = {INSIDE: fold.relabelled(self.features, fold.inside)}
        if len(fold.outside):
            sets[CLASSES] = self.features.subset(fold.outside)
        return sets | dict(views)

    def left_out(self, number: int) -> Tensor | None:
        """The classes of the samples of a fold whose classes were left out; None if there are none."""
        return self.sets[number][CLASSES].labels if CLASSES in self.sets[number] else None

    def distances(self, number: int) -> Measured:
        """The values of scores of features on the sets of a fold, which do not depend on the ensemble."""
        key = _key("distances", number)
        kept = self.store.get(key)
        if kept is None:
            fold = self.folds[number]
            train = fold.relabelled(self.features, fold.fit)
            carrier = Candidate("single").ensemble(train, 1, self.seed)
            fit_scores(carrier, train, FITTED)
            kept = _by_key(self._predictions(carrier, number, tuple(carrier.fitted)))
            self.store.put(key, kept)
        return _nested(kept)

    def known(self, candidate: Candidate, number: int, share: float) -> bool:
        """Whether a trial is finished."""
        return self.store.get(self._key(candidate, number, share)) is not None

    def _key(self, candidate: Candidate, number: int, share: float) -> str:
        return _key(candidate.settings, number, share)

    def trial(self, candidate: Candidate, number: int, share: float, progress: bool = False) -> Trial:
        """Train an ensemble on a fold for a share of its epochs, and score the fold's sets."""
        key = self._key(candidate, number, share)
        kept = self.store.get(key)
        if kept is None:
            start = time.monotonic()
            ensemble = self._trained(candidate, number, share, progress)
            predictions = self._predictions(ensemble, number, LOGITS)
            kept = _by_key(predictions)
            labels = self.sets[number][INSIDE].labels
            assert labels is not None
            kept[CORRECT] = predictions[INSIDE].prediction == labels
            kept[SECONDS] = torch.tensor(time.monotonic() - start, dtype=torch.float64)
            self.store.put(key, kept)
        values = {name: value for name, value in kept.items() if name not in (CORRECT, SECONDS)}
        return Trial(_nested(values), kept[CORRECT], float(kept[SECONDS]))

    def _trained(self, candidate: Candidate, number: int, share: float, progress: bool) -> Ensemble:
        fold = self.folds[number]
        train = fold.relabelled(self.features, fold.fit)
        ensemble = candidate.ensemble(train, self.members, self.seed, self.norm)
        settings = planned(candidate, ensemble, train, self.seed)
        short_fit(candidate, ensemble, train, max(1, round(share * settings.epochs)), self.seed, progress)
        return ensemble

    def _predictions(self, ensemble: Ensemble, number: int, names: Sequence[str]) -> dict[str, Predictions]:
        """The ensemble's predictions and scores on each set of a fold."""
        return {name: predict(ensemble, each, names, labelled=False) for name, each in self.sets[number].items()}


def short_fit(
    candidate: Candidate, ensemble: Ensemble, features: FeatureSet, epochs: int, seed: int, progress: bool = False
) -> None:
    """Train for so many epochs, without fitted scores.

    Warnings are not shown, such as that the training could go on: it is meant to be short.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DissensusWarning)
        options = candidate.options(seed, epochs=epochs)
        fit(ensemble, features, candidate.method, options, scores=(), progress=progress)


def planned(candidate: Candidate, ensemble: Ensemble, features: FeatureSet, seed: int) -> Settings:
    """The settings of a full training."""
    return candidate.options(seed).resolve(candidate.method, len(ensemble), Task.of(ensemble, features))


def _by_key(predictions: Mapping[str, Predictions]) -> dict[str, Tensor]:
    """Set -> predictions as SCORE.SET -> value."""
    return {
        f"{score}.{name}": value.float() for name, each in predictions.items() for score, value in each.scores.items()
    }


def _nested(values: Mapping[str, Tensor]) -> Measured:
    """SCORE.SET -> value as score -> set -> value."""
    nested: Measured = {}
    for name, value in values.items():
        score, _, where = name.rpartition(".")
        nested.setdefault(score, {})[where] = value
    return nested


def _key(*facts: Any) -> str:
    """The name of a trial."""
    return digest(facts)[:16]
