"""The runner: one method trained on a suite, evaluated, calibrated and kept in its folder.

`dissensus run`, the demo and the studies all train through `run_job`. What a folder holds already is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from lightning_fabric import Fabric

from dissensus import __version__, suites
from dissensus._core.digests import digest
from dissensus._core.errors import DissensusError, RunError
from dissensus._core.options import combine
from dissensus.adaptation import Tuned, tune
from dissensus.detection import threshold
from dissensus.detection.detector import Detector
from dissensus.detection.false_alarms import FalseAlarms
from dissensus.evaluation import saved
from dissensus.evaluation.suite import Suite
from dissensus.features import FeatureSet
from dissensus.functional import aggregates, conformal, expressions, metrics, scores
from dissensus.functional.metrics import FALSE_ALARMS
from dissensus.models.ensemble import Ensemble
from dissensus.training import METHODS, Run, TrainOptions, fit, fit_scores, new_ensemble
from dissensus.training.options import MEMBERS, Task
from dissensus.training.run import AUTO


@dataclass(frozen=True)
class Job:
    """A method to train on a suite."""

    method: str
    options: TrainOptions
    members: int = MEMBERS
    tail: str | None = None
    init: str = "random"
    norm: str | None = None  # None: the tail's default
    disagreement: FeatureSet | None = None  # None: the suite's own, where the method needs one

    def ensemble(self, suite: Suite) -> Ensemble:
        """The members, untrained."""
        members = METHODS[self.method].members or self.members
        return new_ensemble(
            suite.train, members, tail=self.tail, norm=self.norm, init=self.init, seed=self.options.seed
        )

    def disagreement_set(self, suite: Suite) -> FeatureSet | None:
        """The set that members disagree on: the job's, where the method can use it; else the suite's, where it must."""
        method = METHODS[self.method]
        own = suite.disagree_on if method.takes_set else None
        return self.disagreement if self.disagreement is not None and method.accepts_set else own

    def name(self, suite: Suite) -> str:
        """A folder name that changes with everything that the result depends on."""
        ensemble, where = self.ensemble(suite), self.disagreement_set(suite)
        facts = {
            "train": suite.train.fingerprint,
            "disagreement": None if where is None else where.fingerprint,
            "tail": ensemble.about,
            "init": self.init,
            "settings": asdict(
                self.options.suited(self.method).resolve(self.method, len(ensemble), Task.of(ensemble, suite.train))
            ),
        }
        return f"{self.method}-M{len(ensemble)}-seed{self.options.seed}-{digest(facts)[:10]}"


def run_job(
    job: Job,
    suite: Suite,
    folder: Path,
    *,
    keep: Literal["predictions", "values"] = "predictions",
    calibrate: bool = True,
    progress: bool = True,
    fabric: Fabric | None = None,
    notify: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Train, evaluate and calibrate a method.

    Args:
        job: what to train.
        suite: what to train and evaluate on.
        folder: the run folder. A finished run in it is not trained again, and its values are not measured again
            unless a set, a score, a metric or an aggregate has changed.
        keep: whether to keep the predictions for a report, or the values only; of a run that is not calibrated, those
            without the fitted scores.
        calibrate: set a threshold on the held-out set, if it is large enough and the run has none.
        progress: show progress bars when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices or several processes.
        notify: called with one line about what `auto` chose, and one about the false alarms of a calibrated run.

    Returns:
        The frame of `evaluate`; in processes other than the first, an empty one.
    """
    if job.method == AUTO:
        tuned = _tune(job, suite, folder, progress, fabric)
        ensemble = tuned.ensemble
        if notify is not None:
            notify(f"{AUTO}: {tuned.reason}")
    else:
        ensemble = job.ensemble(suite)
        fit(
            ensemble, suite.train, job.method, job.options.suited(job.method), disagreement=job.disagreement_set(suite),
            out=folder, progress=progress, fabric=fabric,
        )  # fmt: skip
    if fabric is not None and not fabric.is_global_zero:
        return pd.DataFrame()
    frame = measure_run(
        Run.open(folder), ensemble, suite, keep=keep, calibrate=calibrate, progress=progress,
        notify=None if notify is None else lambda text: notify(f"{job.method}: {text}"),
    )  # fmt: skip
    if keep == "values" and not calibrate:  # large, and their values are known
        ensemble.fitted = {}
        ensemble.save(Run.open(folder).ensemble_folder)
    return frame


def measure_run(
    run: Run,
    ensemble: Ensemble,
    suite: Suite,
    *,
    keep: Literal["predictions", "values"] = "predictions",
    calibrate: bool = True,
    progress: bool = True,
    notify: Callable[[str], None] | None = None,
) -> pd.DataFrame:
    """Evaluate and calibrate a finished run; arguments as for `run_job`, with one line about its false alarms."""
    folder, frame = run.folder, evaluated(run.folder, suite)
    if frame is None:
        if not ensemble.fitted:  # a run of which only the values were kept
            fit_scores(ensemble, suite.train)
        frame = saved.evaluate_run(
            run, ensemble, suite.sets, suite=suite.name, summary=suite.summary, title=suite.title,
            held_out=suite.held_out, keep=keep, inputs=_inputs(suite), progress=progress,
        )  # fmt: skip
    # a threshold that is there already may be the user's
    if calibrate and can_calibrate(suite) and not (folder / threshold.DOCUMENT).exists():
        assert suite.held_out is not None
        Detector.load(folder).calibrate(suite.held_out, FALSE_ALARMS).save(folder)
    if notify is not None and (alarms := FalseAlarms.of_run(folder)) is not None:
        notify(str(alarms))
    return frame


def _tune(job: Job, suite: Suite, folder: Path, progress: bool, fabric: Fabric | None) -> Tuned:
    """Choose on the suite's training set alone; of the job's options, only the seed applies."""
    if fabric is not None and fabric.world_size > 1:
        raise DissensusError(f"auto runs in one process; got {fabric.world_size}: use --devices 1, or another method")
    held_out = suite.held_out if can_calibrate(suite) else None
    return tune(
        suite.train, images=suite.train_images, out=folder, held_out=held_out, members=job.members,
        norm=job.norm, seed=job.options.seed, false_alarms=FALSE_ALARMS, progress=progress,
    )  # fmt: skip


def evaluated(folder: Path, suite: Suite) -> pd.DataFrame | None:
    """The values that a run folder holds, if they are of this suite as it is now."""
    try:
        evaluation = saved.load(folder)
    except RunError:  # none yet, or a damaged one
        return None
    return evaluation.frame if evaluation.about.inputs == _inputs(suite) else None


def can_calibrate(suite: Suite) -> bool:
    """Whether there are enough held-out samples for a threshold."""
    return suite.held_out is not None and len(suite.held_out) >= conformal.needed(FALSE_ALARMS)


def _inputs(suite: Suite) -> str:
    """A digest of what the values of a run depend on besides the run."""
    held_out = None if suite.held_out is None else suite.held_out.fingerprint
    sets = [[s.name, s.role, s.family, s.features.fingerprint, s.subset] + [True] * s.inside for s in suite.sets]
    measured = [sorted(names) for names in (scores.SCORES, metrics.METRICS, aggregates.AGGREGATES)]
    return digest([__version__, sets, held_out, measured, expressions.DEFAULT_SCORE])


def training_options(suite: str, given: Mapping[str, Any]) -> TrainOptions:
    """How to train on a suite: its own recommendation, with the given options on top."""
    recommended = suites.training(suite)
    if "member_epochs" in given:
        recommended.pop("epochs", None)  # which would win over it
    return combine(TrainOptions, None, {**recommended, **given})


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set the number of PyTorch threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
