"""Several methods on a suite, each in its own run folder, and the results of all in a table and a page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from lightning_fabric import Fabric

from dissensus import report
from dissensus._core import terminal
from dissensus._core.errors import DataError, DissensusError
from dissensus._core.files import make_folder
from dissensus._core.options import given
from dissensus.evaluation import results
from dissensus.evaluation.results import Results
from dissensus.evaluation.suite import Suite
from dissensus.experiments.joined import JoinedJob, run_joined_job
from dissensus.experiments.runner import Job, can_calibrate, run_job
from dissensus.functional import conformal
from dissensus.functional.metrics import FALSE_ALARMS
from dissensus.training import METHODS
from dissensus.training.create import check_tail
from dissensus.training.run import AUTO, Run


def run_methods(
    suite: Suite,
    jobs: Sequence[Job | JoinedJob],
    out: Path,
    *,
    lenient: bool = False,
    progress: bool = True,
    fabric: Fabric | None = None,
) -> pd.DataFrame:
    """Train and evaluate several methods.

    Args:
        suite: what to train and evaluate on; with several backbones, their suites joined.
        jobs: one per method.
        out: folder for one run folder per method.
        lenient: leave out, with a line, a method that these data do not allow.
        progress: show progress bars when stderr is a terminal.
        fabric: Lightning Fabric, launched, for other devices or several processes.

    Returns:
        The frames of `evaluate`, all methods in one.
    """
    frames: list[pd.DataFrame] = []
    notify = partial(say, fabric=fabric)
    for number, job in enumerate(jobs, start=1):
        say(f"{suite.name} {number}/{len(jobs)}: {job.method}", fabric)
        try:
            folder = out / job.method
            if isinstance(job, JoinedJob):
                frame = run_joined_job(job, suite, folder, progress=progress, fabric=fabric, notify=notify)
            else:
                frame = run_job(job, suite, folder, progress=progress, fabric=fabric, notify=notify)
            frames.append(frame)
        except DataError as error:
            if not lenient or not (frames or number < len(jobs)):
                raise
            say(f"{suite.name} goes on without {job.method}: {error}", fabric)
    if suite.held_out is not None and not can_calibrate(suite):
        say(
            f"{suite.name}: no detector was calibrated; {FALSE_ALARMS:.0%} false alarms need "
            f"{conformal.needed(FALSE_ALARMS)} held-out samples, there are {len(suite.held_out)}: "
            "dissensus calibrate RUN --id SAMPLES",
            fabric,
        )
    return pd.concat(frames, ignore_index=True)


def check(jobs: Sequence[Job]) -> None:
    """Raise for what no data could be trained with, before hours are spent on features."""
    for job in jobs:
        if job.members < 1:
            raise DissensusError(f"members must be at least 1; got {job.members}")
        if job.method == AUTO:
            if job.members < 2:
                raise DissensusError(f"{AUTO} compares ensembles with a single model; got members=1: use 2 or more")
            check_tail("linear", job.norm)
            continue
        check_tail(job.tail or "backbone", job.norm)
        job.options.suited(job.method).check_method(job.method, METHODS[job.method].members or job.members)
    if all(job.method == AUTO for job in jobs):  # otherwise the other methods use them
        for job in jobs:
            _check_auto(job)


def _check_auto(job: Job) -> None:
    """Raise for options that `tune` would ignore."""
    ignored = {"tail": job.tail, "init": None if job.init == Job.init else job.init}
    ignored |= {name: value for name, value in given(job.options).items() if name != "seed"}
    for name, value in ignored.items():
        if value is not None:
            raise DissensusError(
                f"{AUTO} takes members, norm and seed, and chooses the rest itself; got {name}={value}: leave it out, "
                "or name a method"
            )


def feasible(jobs: Sequence[Job], suite: Suite, fabric: Fabric | None = None) -> list[Job]:
    """Return the jobs that the suite can run, and print a line for each of the others.

    Raises:
        DissensusError: if there is none.
    """
    takers = [job for job in jobs if job.method != AUTO and METHODS[job.method].takes_set]
    lacking = [job for job in takers if job.disagreement_set(suite) is None]
    if len(lacking) == len(jobs):
        names = ", ".join(job.method for job in jobs)
        need = "needs" if len(jobs) == 1 else "need"
        raise DissensusError(
            f"{names} {need} a disagreement set; {suite.name} has none: choose other methods, or add --disagreement "
            "self for jigsaws of the training images"
        )
    for job in lacking:
        say(f"{suite.name} goes on without {job.method}: the suite has no set to disagree on", fabric)
    return [job for job in jobs if job not in lacking]


def write_results(sections: Sequence[report.Section], out: Path) -> str:
    """Write results.csv and report.html into `out`, and return the tables as text.

    A page shows one suite: that of the first is in `out`, each other one in the suite's folder, linked from the first.
    """
    make_folder(out)
    several = len(sections) > 1
    named = [s.frame.assign(dataset=s.title + "/" + s.frame["dataset"]) if several else s.frame for s in sections]
    results.write(pd.concat(named, ignore_index=True), out / "results.csv")
    first, *rest = sections
    others = {s.title: f"{s.title}/report.html" for s in rest}
    for section in rest:
        report.write_page(report.gather([out / section.title]), out / others[section.title])
    report.write_page(report.gather([out / first.title if several else out]), out / "report.html", others=others)
    pages = [out / "report.html", *(out / address for address in others.values())]
    say(f"wrote {out / 'results.csv'} and, to look at, {' and '.join(map(str, pages))}; the ensembles are beside them")
    texts = []
    for s in sections:
        folder = out / s.title if several else out
        settings = {run: Run.open(folder / run).settings for run in s.frame["run"].unique()}
        texts.append(f"{s.title}: {s.summary}\n\n{Results(s.frame, settings).summary()}")
    return "\n".join(texts)


def say(message: str, fabric: Fabric | None = None) -> None:
    """Print one line to stderr, from the first process only."""
    if fabric is None or fabric.is_global_zero:
        terminal.say(message)
