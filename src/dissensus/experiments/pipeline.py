"""A job: methods trained and evaluated on a suite, each in its own run folder; finished ones are not repeated."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from lightning_fabric import Fabric
from torch import nn

from dissensus import backbones, report
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus._core.files import make_folder
from dissensus._core.options import combine
from dissensus.detection.detector import Detector
from dissensus.evaluation import results, saved
from dissensus.evaluation.results import Results
from dissensus.evaluation.suite import Suite
from dissensus.features import FeatureSet
from dissensus.functional import conformal
from dissensus.functional.metrics import FALSE_ALARMS
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import methods
from dissensus.training._fit import fit
from dissensus.training.options import TrainOptions
from dissensus.training.run import Run

INITS = ("random", "pretrained")


def run_methods(
    suite: Suite,
    names: Sequence[str],
    out: Path,
    *,
    members: int = 5,
    tail: str | None = None,
    init: str = "random",
    training: Mapping[str, Any] | None = None,
    seed: int = 0,
    lenient: bool = False,
    progress: bool = True,
    fabric: Fabric | None = None,
) -> pd.DataFrame:
    """Train and evaluate every method; the frame of `evaluate`, all methods in one.

    `lenient` leaves out, with a line, a method that these data do not allow.
    """
    frames: list[pd.DataFrame] = []
    options = combine(TrainOptions, None, {**(training or {}), "seed": seed})
    for number, name in enumerate(names, start=1):
        recipe = methods.METHODS[name]
        say(f"{suite.name} {number}/{len(names)}: {name}", fabric)
        ensemble = new_ensemble(suite.train, recipe.members or members, tail=tail, init=init, seed=seed)
        where = suite.disagreement if recipe.takes_set else None
        try:
            fit(
                ensemble,
                suite.train,
                name,
                options.suited(name),
                disagreement=where,
                out=out / name,
                progress=progress,
                fabric=fabric,
            )
        except DataError as error:
            if not lenient or not (frames or number < len(names)):
                raise
            say(f"{suite.name} goes on without {name}: {error}", fabric)
            continue
        run = Run.open(out / name)
        first = fabric is None or fabric.is_global_zero
        frame = saved.evaluate_run(
            run,
            ensemble,
            suite.sets,
            suite=suite.name,
            summary=suite.summary,
            held_out=suite.held_out,
            keep="predictions" if first else "nothing",
            progress=progress and first,
        )
        if first:
            _calibrate(run.folder, suite.held_out)
        frames.append(frame)
    if suite.held_out is not None and len(suite.held_out) < (enough := conformal.needed(FALSE_ALARMS)):
        say(
            f"{suite.name}: no detector was calibrated; {FALSE_ALARMS:.0%} false alarms need {enough} held-out "
            f"samples, there are {len(suite.held_out)}: dissensus calibrate RUN --id SAMPLES",
            fabric,
        )
    return pd.concat(frames, ignore_index=True)


def _calibrate(run: Path, held_out: FeatureSet | None) -> None:
    """Make a detector of a run, where there is enough to calibrate it on."""
    kept = (run / "detector.json").exists()  # perhaps the user's own
    if not kept and held_out is not None and len(held_out) >= conformal.needed(FALSE_ALARMS):
        Detector.load(run).calibrate(held_out, FALSE_ALARMS).save(run)


def check(names: Sequence[str], members: int, training: Mapping[str, Any], *, seed: int, tail: str | None) -> None:
    """Refuse what no data could be trained with, before hours are spent on features."""
    if tail is not None:
        _check_tail(tail)
    options = combine(TrainOptions, None, {**training, "seed": seed})
    for name in names:
        options.suited(name).resolve(name, methods.METHODS[name].members or members)


def feasible(names: Sequence[str], suite: Suite, fabric: Fabric | None = None) -> list[str]:
    """Those methods that the suite has what they need for; a line tells of the others."""
    chosen = list(dict.fromkeys(names))
    lacking = [name for name in chosen if methods.METHODS[name].takes_set and suite.disagreement is None]
    for name in lacking:
        say(f"{suite.name} goes on without {name}: the suite has no set to disagree on", fabric)
    if len(lacking) == len(chosen):
        raise DissensusError(
            f"{', '.join(chosen)} need a disagreement set; {suite.name} has none: choose other methods"
        )
    return [name for name in chosen if name not in lacking]


def new_ensemble(
    features: FeatureSet, members: int, *, tail: str | None = None, init: str = "random", seed: int = 0
) -> Ensemble:
    """An untrained ensemble for these features.

    `tail` is a built-in one or "backbone", the layers that were cut off; None: those, if they are more than the
    classifier, else linear. `init="pretrained"` starts members from the backbone's weights as far as they fit.
    """
    about = features.provenance.get("backbone")
    if tail is None:
        tail = "backbone" if about is not None and about["layers"] > 1 else "linear"
    _check_tail(tail)
    if init not in INITS:
        raise DissensusError(f"init must be random or pretrained; got {init!r}")
    if about is None and (tail == "backbone" or init == "pretrained"):
        raise DataError(
            f"tail {tail}, init {init} is about a backbone; these features name none: extract them with one"
        )
    classes = max(2, len(features.classes))
    ensemble = Ensemble(_template(tail, features, classes, about), members=members, seed=seed)
    if init == "pretrained":
        assert about is not None  # refused above
        if not ensemble.start_from(backbones.restore(about).tail):
            raise DataError(f"init pretrained found nothing of the backbone's tail that fits tail {tail}: use backbone")
    return ensemble


def _check_tail(tail: str) -> None:
    names = (*tails.TAILS, "backbone")
    if tail not in names:
        raise UnknownNameError("tail", tail, names)


def _template(tail: str, features: FeatureSet, classes: int, about: Mapping[str, Any] | None) -> nn.Module:
    description = (about or {}).get("tail")
    if tail != "backbone":
        description = {"name": tail, "features": tails.width(tail, features.shape)}
    if description is None or not tails.fits(description, features.shape):
        raise DataError(
            f"tail {tail} does not take rows of shape {features.shape}: use tail backbone, or extract with layers 1"
        )
    return tails.build({**description, "classes": classes})


def write_results(sections: Sequence[report.Section], out: Path) -> str:
    """Write results.csv and report.html into `out`; the tables as text for the terminal.

    A page is of one suite: where there are several, each has its own in its folder, and `out` a short one of all.
    """
    make_folder(out)
    several = len(sections) > 1
    named = [s.frame.assign(dataset=s.title + "/" + s.frame["dataset"]) if several else s.frame for s in sections]
    results.write(pd.concat(named, ignore_index=True), out / "results.csv")
    for folder in [out / s.title for s in sections] if several else [out]:
        report.write_page(report.gather([folder]), folder / "report.html")
    if several:
        report.write(sections, out / "report.html")
    pages = [out / s.title / "report.html" for s in sections] if several else [out / "report.html"]
    say(f"wrote {out / 'results.csv'} and, to look at, {' and '.join(map(str, pages))}; the ensembles are beside them")
    texts = [f"{s.title}: {s.summary}\n\n{Results(s.frame).summary()}" for s in sections]
    return "\n".join(texts)


def say(message: str, fabric: Fabric | None = None) -> None:
    """A line on stderr, from one process."""
    if fabric is None or fabric.is_global_zero:
        print(message, file=sys.stderr)
