"""The lab: trials on a suite, trained and evaluated once each, whichever studies ask for them.

The folder of a trial is named by everything that its result depends on: data, method, settings, seed, initial weights.
So a trial that two studies share is trained once, a killed one continues, and a change repeats only what depends on it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dissensus._core.durations import duration
from dissensus._core.options import combine
from dissensus.evaluation.suite import Suite
from dissensus.experiments.runner import Job, evaluated, run_job
from dissensus.features import FeatureSet
from dissensus.training import TrainOptions
from dissensus.training.options import MEMBERS, default_diversity


@dataclass(frozen=True)
class Trial:
    """A planned row: a method and the options that distinguish it; each seed is one run."""

    name: str
    method: str
    members: int = MEMBERS
    active: int | None = None
    diversity: float | None = None  # None: the suite's own, where the method has one
    options: Mapping[str, Any] = field(default_factory=dict)  # of fit(), over those of the suite
    disagreement: FeatureSet | None = None  # None: the suite's own, where the method takes one
    tail: str | None = None
    norm: str | None = None

    def with_name(self, name: str) -> Trial:
        """The same under another name."""
        return replace(self, name=name)


class Lab:
    """A suite, a folder and seeds to run trials with."""

    def __init__(
        self,
        load: Callable[..., Suite],
        out: Path,
        options: TrainOptions | None = None,
        *,
        seeds: Sequence[int] = (0,),
        quick: bool = False,
        progress: bool = True,
        tail: str | None = None,
        norm: str | None = None,
        tell: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.out, self.seeds, self.quick, self.progress = out, tuple(seeds), quick, progress
        self.tail, self.norm = tail, norm
        self.options = options or TrainOptions()
        self.tell = tell
        self._load, self._suites = load, dict[str, Suite]()

    def diversity(self, method: str) -> float:
        """The weight of disagreement of a method where a study does not vary it."""
        given = self.options.suited(method).diversity
        return default_diversity(method) if given is None else given

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
            job = self.job(trial, seed)
            folder = self.out / "runs" / job.name(suite)
            frame = evaluated(folder, suite)
            if frame is None:
                left = ""
                if spent:
                    seconds = (time.monotonic() - start) / spent * (total - number + 1)
                    left = f", at most {duration(seconds)} left"
                self.tell(f"  run {number} of {total}: {trial.name}, seed {seed}{left}")
                frame = run_job(job, suite, folder, keep="values", calibrate=False, progress=self.progress)
                spent += 1
            frames.append(frame.assign(row=trial.name, run=str(folder)))
        return pd.concat(frames, ignore_index=True)

    def job(self, trial: Trial, seed: int) -> Job:
        """A trial with one seed."""
        varied = {"active": trial.active, "diversity": trial.diversity}
        given = {name: value for name, value in varied.items() if value is not None}
        options = combine(TrainOptions, self.options, {**trial.options, **given, "seed": seed})
        return Job(
            trial.method, options, trial.members, trial.tail or self.tail, norm=trial.norm or self.norm,
            disagreement=trial.disagreement,
        )  # fmt: skip
