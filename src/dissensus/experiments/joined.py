"""One method on several backbones: a run on each, in the folder parts/ of the joined run, which is measured too."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from lightning_fabric import Fabric

from dissensus._core.errors import DissensusError
from dissensus.backbones.joined import part_names
from dissensus.evaluation.suite import Suite
from dissensus.experiments.runner import Job, measure_run, run_job
from dissensus.models.ensemble import Ensemble
from dissensus.training.joined import PARTS, check_free, join


@dataclass(frozen=True)
class JoinedJob:
    """A method to train on several backbones.

    Attributes:
        method: Its name.
        parts: By the name of each backbone, the suite through it and what to train on it.
    """

    method: str
    parts: Mapping[str, tuple[Suite, Job]]


def joined_jobs(suites: Sequence[Suite], jobs: Sequence[Sequence[Job]]) -> list[JoinedJob]:
    """Return one job per method from those of every backbone, in the same order.

    Raises:
        DissensusError: If a backbone occurs twice with the same layers, or a suite does not name its backbone.
    """
    about = [suite.train.provenance.get("backbone") for suite in suites]
    if missing := [suite.name for suite, each in zip(suites, about, strict=True) if each is None]:
        raise DissensusError(
            f"backbones to join must be networks; one of those given leaves the features of {missing[0]} as they are: "
            "leave it out"
        )
    names = part_names([each for each in about if each is not None])
    return [
        JoinedJob(group[0].method, dict(zip(names, zip(suites, group, strict=True), strict=True)))
        for group in zip(*jobs, strict=True)
    ]


def run_joined_job(
    job: JoinedJob,
    suite: Suite,
    folder: Path,
    *,
    progress: bool = True,
    fabric: Fabric | None = None,
    notify: Callable[[str], None],
) -> pd.DataFrame:
    """Train a method on every backbone, join the runs, evaluate and calibrate the joined run.

    Args:
        job: What to train.
        suite: The suites of all backbones, joined.
        folder: The joined run; its parts are in the folder parts. What is there already is not repeated.
        progress: Show progress bars when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices or several processes.
        notify: Called with one line about the false alarms of each run.

    Returns:
        The frame of `evaluate`, with a row for each part and one for the joined run; in processes other than the
        first, an empty one.
    """
    check_free(folder, list(job.parts))
    places = {name: folder / PARTS / folder_name(name) for name in job.parts}
    frames: list[pd.DataFrame] = []
    for name, (own, part) in job.parts.items():
        say = partial(_say, notify, f"{name}, ")
        frame = run_job(part, own, places[name], progress=progress, fabric=fabric, notify=say)
        place = places[name].relative_to(folder.parent).as_posix()
        frames.append(frame.assign(row=f"{job.method} on {name}", run=place))
    if fabric is not None and not fabric.is_global_zero:
        return pd.DataFrame()
    run = join(list(places.values()), folder, shapes=[own.train.shape for own, _ in job.parts.values()])
    say = partial(_say, notify, f"{' + '.join(job.parts)}, {job.method}: ")
    frame = measure_run(run, Ensemble.load(run.ensemble_folder), suite, progress=progress, notify=say)
    return pd.concat([*frames, frame.assign(row=f"{job.method} joined")], ignore_index=True)


def folder_name(part: str) -> str:
    """Return the name of a backbone as that of a folder: lite0:2 is lite0-2.

    >>> folder_name("hf-hub:timm/resnet10t:1")
    'hf-hub-timm-resnet10t-1'
    """
    return re.sub(r"[^\w.-]", "-", part)


def _say(notify: Callable[[str], None], before: str, text: str) -> None:
    notify(before + text)
