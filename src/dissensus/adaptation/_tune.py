"""tune(): choose ensemble and score from training data alone, train the winner and calibrate it."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dissensus.adaptation import checks, splits, stand_ins, workspace
from dissensus.adaptation.candidates import INCUMBENT, candidates
from dissensus.adaptation.choose import Choice
from dissensus.adaptation.search import Clock, Search
from dissensus.adaptation.trials import Bench, Store, key_of
from dissensus.adaptation.tuned import Chosen, Tuned, Tuning, lines_of
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet
from dissensus.functional import expressions
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.images import ImageSet
from dissensus.training import fit
from dissensus.training.options import MEMBERS

Notify = Callable[[str], None]


def tune(
    features: FeatureSet,
    *,
    images: ImageSet | None = None,
    out: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    held_out: FeatureSet | None = None,
    members: int = MEMBERS,
    norm: str | None = None,
    seed: int = 0,
    false_alarms: float = 0.05,
    calibration: float = 0.2,
    progress: bool = True,
) -> Tuned:
    """Choose method, diversity, label smoothing, norm, tail and score without OOD data; train and calibrate the winner.

    Candidates are compared on stand-ins for OOD data: held-out classes and, with images, jigsaws and corruptions of
    held-out images. The default is left only for a gain beyond noise. See docs/tune.md.

    Args:
        features: Labelled training features, each sample once.
        images: The images that they were extracted from, row by row.
        out: The run folder to write; None: nothing is written. A killed command continues in the same folder.
        budget: Seconds that it may take; None: as long as it needs.
        held_out: ID samples to calibrate on; None: a part of `features`, which the winner is not trained on.
        members: Of every ensemble.
        norm: What tails of the default ensemble do to features first; None: the tail's default, l2 for linear.
        seed: Decides splits, initial weights and batches.
        false_alarms: The share of ID samples that the detector may call out.
        calibration: The share of `features` to calibrate on, without `held_out`.
        progress: Report progress on stderr.

    Returns:
        The trained and calibrated detector, the choice and all candidates.

    Raises:
        DissensusError: If the features, the images, the folder or the budget cannot be used.

    Example:
        >>> tuned = tune(FeatureSet.open("features"), images=ImageSet.find("photos"), out="runs/tuned")
        >>> print(tuned.table, tuned.reason)
    """
    clock = Clock(budget)
    notify: Notify = (lambda message: print(message, file=sys.stderr)) if progress else (lambda message: None)
    checks.check(features, members, false_alarms, calibration)
    images = None if images is None else stand_ins.check_images(features, images)
    assert features.labels is not None
    labels = features.labels.numpy()
    rows = np.arange(len(features))
    train, calibrate = features, held_out
    if calibrate is None:
        held, rows = splits.divide(labels, calibration, seed)
        checks.check_count(len(held), len(features), calibration, false_alarms)
        train, calibrate = features.subset(rows), features.subset(held)
    else:
        checks.check_held_out(features, calibrate, false_alarms)
    plan = key_of(
        [features.fingerprint, held_out and held_out.fingerprint, images and images.fingerprint],
        [members, seed, calibration, DEFAULT_SCORE, [each.settings for each in candidates(train, norm)], norm],
    )
    with workspace.claimed(out, plan) as folder:
        document = workspace.read_choice(out, plan)
        if document is None:
            search = _search(features, images, labels, rows, folder, clock, members, norm, seed, progress, notify)
            document = _decide(search, plan, clock, notify)
            if out is not None:
                workspace.write_choice(Path(out), document)
        return Tuned(
            _finish(train, calibrate, document, members, norm, seed, false_alarms, out, progress, notify), document
        )


def _search(
    features: FeatureSet,
    images: ImageSet | None,
    labels: splits.Rows,
    rows: splits.Rows,
    folder: Path,
    clock: Clock,
    members: int,
    norm: str | None,
    seed: int,
    progress: bool,
    notify: Notify,
) -> Search:
    """Make the stand-ins, and measure candidates on them until the budget is used up."""
    clock.reserve(features.subset(rows), members, seed)
    folds = splits.folds(labels, rows, seed)
    views: list[dict[str, FeatureSet]] = [{} for _ in folds]
    places = stand_ins.view_rows(folds)
    if images is not None:
        chosen = np.concatenate([fold.inside[at] for fold, at in zip(folds, places, strict=True)])
        made = stand_ins.extract_views(
            features, images, chosen, folder / "stand-ins", seed=seed, progress=progress, notify=notify
        )
        starts = np.cumsum([0, *map(len, places)])
        for number, (start, stop) in enumerate(itertools.pairwise(starts)):
            views[number] = {name: each.subset(slice(start, stop)) for name, each in made.items()}
    usable = [n for n, fold in enumerate(folds) if len(fold.outside) or views[n]]
    bench = Bench(
        features, [folds[n] for n in usable], [views[n] for n in usable], Store(folder / "trials"), members, seed, norm
    )
    search = Search(bench, [places[n] for n in usable], clock, progress, notify)
    if usable:
        search.run(candidates(features.subset(rows), norm))
    return search


def _decide(search: Search, plan: str, clock: Clock, notify: Notify) -> Tuning:
    """The choice as a document."""
    choice: Choice | None = search.choose()
    reason = (
        "It keeps the default: with two classes and no images there is no stand-in to choose with."
        if choice is None
        else choice.reason
    )
    if clock.stopped:
        reason += f" The budget ended the search after {search.done} of {search.total} trainings."
    lines = [] if choice is None else lines_of(search.entries, choice)
    candidate, score = (INCUMBENT, DEFAULT_SCORE) if choice is None else (choice.entry.candidate, choice.entry.score)
    return Tuning(
        plan=plan,
        choice=Chosen(**candidate.settings, score=score),
        reason=reason,
        stand_ins=tuple(lines[0].aurocs) if lines else (),
        budget=clock.budget,
        seconds=round(clock.passed, 1),
        lines=tuple(lines),
    )


def _finish(
    train: FeatureSet,
    calibrate: FeatureSet,
    document: Tuning,
    members: int,
    norm: str | None,
    seed: int,
    false_alarms: float,
    out: str | os.PathLike[str] | None,
    progress: bool,
    notify: Notify,
) -> Detector:
    """Train the winner on everything but the calibration samples, and calibrate it."""
    candidate, score = document.choice.candidate, document.choice.score
    notify(f"train {candidate.name} on all {len(train):,} samples")
    ensemble = candidate.ensemble(train, members, seed, norm)
    fit(ensemble, train, candidate.method, candidate.options(seed), out=out, progress=progress)
    if out is None:
        backbone = train.provenance.get("backbone")
        detector = Detector(ensemble, train.classes, backbone=backbone, trained_on={"train": train.fingerprint})
    else:
        detector = Detector.load(out, calibrated=False)
    # the default falls back to a single score where samples are few
    usual = score == DEFAULT_SCORE or not expressions.enough(
        expressions.score_names(score)[0], len(calibrate), false_alarms
    )
    detector.calibrate(calibrate, false_alarms, None if usual else score)
    if out is not None:
        detector.save(out)
    return detector
