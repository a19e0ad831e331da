"""Trials: one ensemble trained on a fold, and the values of its scores on the fold's ID samples and stand-ins."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dissensus._core import tensors
from dissensus._core.errors import DissensusWarning, RunError
from dissensus._core.files import make_folder
from dissensus.adaptation.candidates import DISTANCES, LENGTH, LOGITS, Candidate
from dissensus.adaptation.rank import CLASSES, INSIDE
from dissensus.adaptation.splits import Fold
from dissensus.evaluation.predictions import batch_size
from dissensus.features import FeatureSet
from dissensus.functional import aggregates, scores
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
    """Finished trials, in a folder or in memory."""

    folder: Path | None
    _known: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def get(self, key: str) -> dict[str, Tensor] | None:
        """The tensors under a key; None if there are none, or the file is damaged."""
        if key not in self._known and self.folder is not None and (self.folder / f"{key}.safetensors").exists():
            try:
                self._known[key] = tensors.read(self.folder / f"{key}.safetensors", remedy="it is made again")
            except RunError:  # made again
                return None
        return self._known.get(key)

    def put(self, key: str, values: dict[str, Tensor]) -> None:
        """Keep tensors under a key."""
        self._known[key] = values
        if self.folder is not None:
            make_folder(self.folder)
            tensors.write(self.folder / f"{key}.safetensors", values)


def key_of(*facts: Any) -> str:
    """A short name that changes with the facts."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Bench:
    """Runs trials on the folds of a feature set.

    Args:
        features: The labelled training features.
        folds: How to divide them.
        views: Per fold, stand-ins made of images.
        store: Where trials are kept.
        members: Of every ensemble.
        seed: Decides initial weights and batches.
    """

    def __init__(
        self,
        features: FeatureSet,
        folds: Sequence[Fold],
        views: Sequence[Mapping[str, FeatureSet]],
        store: Store,
        members: int,
        seed: int,
    ) -> None:
        self.features, self.folds, self.store, self.members, self.seed = features, folds, store, members, seed
        self.sets = [self._sets(fold, made) for fold, made in zip(folds, views, strict=True)]

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
        key = key_of("distances", number)
        kept = self.store.get(key)
        if kept is None:
            fold = self.folds[number]
            train = fold.relabelled(self.features, fold.fit)
            carrier = Candidate("single").ensemble(train, 1, self.seed)
            fit_scores(carrier, train, FITTED)
            kept = self._scored(carrier, number, tuple(carrier.fitted))
            self.store.put(key, kept)
        return _nested(kept)

    def known(self, candidate: Candidate, number: int, share: float) -> bool:
        """Whether a trial is finished."""
        return self.store.get(self._key(candidate, number, share)) is not None

    def _key(self, candidate: Candidate, number: int, share: float) -> str:
        return key_of(candidate.settings, number, share)

    def trial(self, candidate: Candidate, number: int, share: float, progress: bool = False) -> Trial:
        """Train an ensemble on a fold for a share of its epochs, and score the fold's sets."""
        key = self._key(candidate, number, share)
        kept = self.store.get(key)
        if kept is None:
            start = time.monotonic()
            ensemble = self._trained(candidate, number, share, progress)
            kept = self._scored(ensemble, number, LOGITS)
            kept[CORRECT] = self._correct(ensemble, self.sets[number][INSIDE])
            kept[SECONDS] = torch.tensor(time.monotonic() - start, dtype=torch.float64)
            self.store.put(key, kept)
        values = {name: value for name, value in kept.items() if name not in (CORRECT, SECONDS)}
        return Trial(_nested(values), kept[CORRECT], float(kept[SECONDS]))

    def _trained(self, candidate: Candidate, number: int, share: float, progress: bool) -> Ensemble:
        fold = self.folds[number]
        train = fold.relabelled(self.features, fold.fit)
        ensemble = candidate.ensemble(train, self.members, self.seed)
        settings = planned(candidate, ensemble, train, self.seed)
        options = candidate.options(self.seed, epochs=max(1, round(share * settings.epochs)))
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DissensusWarning
            )  # such as that a short training could go on: it is meant to be short
            fit(ensemble, train, candidate.method, options, scores=(), progress=progress)
        return ensemble

    def _scored(self, ensemble: Ensemble, number: int, names: Sequence[str]) -> dict[str, Tensor]:
        """The values of scores on the sets of a fold, as SCORE.SET."""
        return {
            f"{score}.{name}": value
            for name, each in self.sets[number].items()
            for score, value in self._values(ensemble, each, names).items()
        }

    @torch.inference_mode()
    def _values(self, ensemble: Ensemble, features: FeatureSet, names: Sequence[str]) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        for x, _ in features.batches(batch_size(ensemble, features.shape)):
            logits = ensemble(x)
            for name in names:
                parts[name].append(scores.compute(name, logits, x, ensemble.fitted).float())
        return {name: torch.cat(each) for name, each in parts.items()}

    @torch.inference_mode()
    def _correct(self, ensemble: Ensemble, features: FeatureSet) -> Tensor:
        assert features.labels is not None
        batches = features.batches(batch_size(ensemble, features.shape))
        return torch.cat([aggregates.prediction(ensemble(x)).argmax(-1) for x, _ in batches]) == features.labels


def planned(candidate: Candidate, ensemble: Ensemble, features: FeatureSet, seed: int) -> Settings:
    """The settings of a full training."""
    return candidate.options(seed).resolve(candidate.method, len(ensemble), Task.of(ensemble, features))


def _nested(values: Mapping[str, Tensor]) -> Measured:
    """SCORE.SET -> value as score -> set -> value."""
    nested: Measured = {}
    for name, value in values.items():
        score, _, where = name.rpartition(".")
        nested.setdefault(score, {})[where] = value
    return nested
