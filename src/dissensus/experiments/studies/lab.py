"""The lab: trials on a suite, trained and evaluated once each, whatever studies ask for them.

A trial's folder is named by all that its result depends on: data, method, settings, seed, initial weights. So a trial
that two studies share is trained once, one that was killed goes on, and a change of one thing repeats only what
depends on it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from lightning_fabric import Fabric

from dissensus._core.errors import RunError
from dissensus._core.options import combine
from dissensus.evaluation import saved
from dissensus.evaluation.suite import Suite
from dissensus.experiments import pipeline
from dissensus.features import FeatureSet
from dissensus.functional import aggregates, metrics, scores
from dissensus.models.ensemble import Ensemble
from dissensus.training import methods
from dissensus.training._fit import fit
from dissensus.training.options import TrainOptions
from dissensus.training.run import Run


@dataclass(frozen=True)
class Trial:
    """One row to be: a method with what sets it apart; every seed of it is a run."""

    name: str
    method: str
    members: int = 5
    active: int | None = None
    diversity: float | None = None  # None: the suite's own, where the method has one
    options: Mapping[str, Any] = field(default_factory=dict)  # of fit(), over those of the suite
    disagreement: FeatureSet | None = None  # None: the suite's own, where the method takes one
    tail: str | None = None

    def with_name(self, name: str) -> Trial:
        """The same under another name."""
        return replace(self, name=name)


class Lab:
    """A suite, a folder and seeds to run trials with."""

    def __init__(
        self,
        load: Callable[..., Suite],
        out: Path,
        *,
        seeds: Sequence[int] = (0,),
        training: Mapping[str, Any] | None = None,
        quick: bool = False,
        progress: bool = True,
        tail: str | None = None,
        tell: Callable[[str], None] = lambda message: None,
        fabric: Fabric | None = None,
    ) -> None:
        self.out, self.seeds, self.quick, self.progress, self.tail = out, tuple(seeds), quick, progress, tail
        self.training = dict(training or {})
        self.tell, self.fabric = tell, fabric
        self._load, self._suites = load, dict[str, Suite]()

    def suite(self, **changes: Any) -> Suite:
        """The suite, or a form of it through other layers or another backbone."""
        key = json.dumps(changes, sort_keys=True, default=str)
        if key not in self._suites:
            self._suites[key] = self._load(**changes)
        return self._suites[key]

    def run(self, trials: Sequence[Trial], suite: Suite | None = None) -> pd.DataFrame:
        """Every trial with every seed: the frame of `evaluate`, with the trials' names as `row`."""
        suite = suite or self.suite()
        frames, start, spent = [], time.monotonic(), 0
        total = len(trials) * len(self.seeds)
        for number, (trial, seed) in enumerate(((t, s) for t in trials for s in self.seeds), start=1):
            ensemble, options, where = self._prepare(trial, seed, suite)
            folder = self.out / "runs" / self._name(trial, seed, suite, options, where, ensemble)
            if not self._done(folder, suite):
                left = ""
                if spent:
                    seconds = (time.monotonic() - start) / spent * (total - number + 1)
                    left = f", at most {_duration(seconds)} left"
                self.tell(f"  run {number} of {total}: {trial.name}, seed {seed}{left}")
                self._train(folder, trial, seed, suite, ensemble, options, where)
                spent += 1
            frames.append(saved.load(folder).frame.assign(row=trial.name, run=str(folder)))
        return pd.concat(frames, ignore_index=True)

    def _prepare(self, trial: Trial, seed: int, suite: Suite) -> tuple[Ensemble, TrainOptions, FeatureSet | None]:
        recipe = methods.METHODS[trial.method]
        members = recipe.members or trial.members
        ensemble = pipeline.new_ensemble(suite.train, members, tail=trial.tail or self.tail, seed=seed)
        own = {"active": trial.active, "diversity": trial.diversity}
        given = {**self.training, **trial.options, **{key: value for key, value in own.items() if value is not None}}
        options = combine(TrainOptions, None, {**given, "seed": seed}).suited(trial.method)
        where = (trial.disagreement or suite.disagreement) if recipe.takes_set else None
        return ensemble, options, where

    def _name(
        self,
        trial: Trial,
        seed: int,
        suite: Suite,
        options: TrainOptions,
        where: FeatureSet | None,
        ensemble: Ensemble,
    ) -> str:
        facts = {
            "train": suite.train.fingerprint,
            "disagreement": None if where is None else where.fingerprint,
            "tail": ensemble.about,
            "settings": asdict(options.resolve(trial.method, len(ensemble))),
        }
        digest = hashlib.sha256(json.dumps([trial.method, facts], sort_keys=True).encode()).hexdigest()
        return f"{trial.method}-M{len(ensemble)}-seed{seed}-{digest[:10]}"

    def _done(self, folder: Path, suite: Suite) -> bool:
        try:
            return saved.load(folder).about.inputs == _inputs(suite)
        except RunError:  # none yet, or a damaged one
            return False

    def _train(
        self,
        folder: Path,
        trial: Trial,
        seed: int,
        suite: Suite,
        ensemble: Ensemble,
        options: TrainOptions,
        where: FeatureSet | None,
    ) -> None:
        fit(
            ensemble, suite.train, trial.method, options, disagreement=where, out=folder,
            progress=self.progress, fabric=self.fabric,
        )  # fmt: skip
        saved.evaluate_run(
            Run.open(folder), ensemble, suite.sets, suite=suite.name, summary=suite.summary, held_out=suite.held_out,
            keep="values", inputs=_inputs(suite), progress=self.progress,
        )  # fmt: skip


def _inputs(suite: Suite) -> str:
    """A digest of what a run's values depend on besides the run."""
    held_out = None if suite.held_out is None else suite.held_out.fingerprint
    sets = [[s.name, s.role, s.family, s.features.fingerprint, s.subset] for s in suite.sets]
    measured = [sorted(names) for names in (scores.SCORES, metrics.METRICS, aggregates.AGGREGATES)]
    return hashlib.sha256(json.dumps([sets, held_out, measured]).encode()).hexdigest()


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
