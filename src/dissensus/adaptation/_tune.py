"""tune(): choose ensemble and score from training data alone, train the winner and calibrate it."""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dissensus import __version__
from dissensus._core.digests import digest
from dissensus._core.places import place
from dissensus._core.terminal import say
from dissensus.adaptation import checks, splits, stand_ins, workspace
from dissensus.adaptation.candidates import INCUMBENT, Candidate, candidates
from dissensus.adaptation.search import NO_TIME, Clock, Search
from dissensus.adaptation.trials import Bench, Store, planned
from dissensus.adaptation.tuned import Chosen, Tuned, Tuning, lines_of
from dissensus.detection import threshold
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet, backbone_of
from dissensus.functional import expressions
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.images import ImageSet
from dissensus.models.ensemble import Ensemble
from dissensus.models.saved import MemberTailInfo
from dissensus.training import fit
from dissensus.training.options import MEMBERS


@dataclass(frozen=True)
class Options:
    """The parameters of `tune` that all its steps use."""

    members: int
    norm: str | None
    seed: int
    false_alarms: float
    progress: bool

    def notify(self, message: str) -> None:
        """Print a line of progress."""
        if self.progress:
            say(message)


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
        out: The run folder to write; None: nothing is written. Call again with the same folder to continue an
            interrupted search, or with a larger budget one that the budget ended.
        budget: Time limit in seconds; None: no limit.
        held_out: ID samples to calibrate on; None: a part of `features`, which the winner is not trained on.
        members: Number of members of every ensemble.
        norm: Norm of the default ensemble's tails; None: the tail's default, l2 for linear.
        seed: Decides splits, initial weights and batches.
        false_alarms: The share of ID samples that the detector may call out. A calibration that the run in `out` has
            already is kept.
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
    clock, options = Clock(budget), Options(members, norm, seed, false_alarms, progress)
    checks.check(features, members, false_alarms, calibration)
    images = None if images is None else stand_ins.check_images(features, images)
    assert features.labels is not None
    rows = np.arange(len(features))
    train, calibrate = features, held_out
    if calibrate is None:
        held, rows = splits.divide(features.labels.numpy(), calibration, seed)
        checks.check_count(len(held), len(features), calibration, false_alarms)
        train, calibrate = features.subset(rows), features.subset(held)
    else:
        checks.check_held_out(features, calibrate, false_alarms)
    data = [features.fingerprint, held_out and held_out.fingerprint, images and images.fingerprint, __version__]
    tried = [each.settings for each in candidates(train, norm)]
    plan = digest([data, members, seed, calibration, DEFAULT_SCORE, tried, norm])[:16]
    with workspace.claimed(out, plan) as work:
        document = before = workspace.read_choice(out, plan)
        if document is None or document.goes_on(budget):
            document = _decide(_search(features, images, rows, work, clock, options), plan, clock)
            if out is not None:
                if before is not None and before.choice.score != document.choice.score:
                    _drop_calibration(place(out), before.choice.score, false_alarms)
                workspace.write_choice(place(out), document)
        return Tuned(_finish(train, calibrate, document.choice, out, work, options), document)


def _search(
    features: FeatureSet, images: ImageSet | None, rows: splits.Rows, work: Path, clock: Clock, options: Options
) -> Search:
    """Make the stand-ins, and measure candidates on them until the budget is used up."""
    assert features.labels is not None
    members, seed, norm = options.members, options.seed, options.norm
    clock.reserve(features.subset(rows), members, seed, norm)
    folds = splits.folds(features.labels.numpy(), rows, seed)
    views: list[dict[str, FeatureSet]] = [{} for _ in folds]
    places = stand_ins.view_rows(folds)
    if images is not None:
        chosen = np.concatenate([fold.inside[at] for fold, at in zip(folds, places, strict=True)])
        by_view = stand_ins.extract_views(
            features, images, chosen, work / "stand-ins",
            seed=seed, progress=options.progress, notify=options.notify, has_time=lambda: clock.allows(0),
        )  # fmt: skip
        starts = np.cumsum([0, *map(len, places)])
        for number, (start, stop) in enumerate(itertools.pairwise(starts)):
            views[number] = {name: each.subset(slice(start, stop)) for name, each in by_view.items()}
    usable = [n for n, fold in enumerate(folds) if len(fold.outside) or views[n]]
    bench = Bench(
        features, [folds[n] for n in usable], [views[n] for n in usable], Store(work / "trials"), members, seed, norm
    )
    search = Search(bench, [places[n] for n in usable], clock, options.progress, options.notify)
    if usable:
        search.run(candidates(features.subset(rows), norm))
    return search


def _decide(search: Search, plan: str, clock: Clock) -> Tuning:
    """The choice as a document."""
    choice = search.choose()
    if choice is not None:
        reason = choice.reason
    elif clock.stopped:
        reason = NO_TIME
    else:
        reason = "The default is kept: with two classes and no images there is no stand-in to choose with."
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
        stopped=clock.stopped,
        seconds=round(clock.passed, 1),
        lines=tuple(lines),
    )


def _drop_calibration(out: Path, score: str, false_alarms: float) -> None:
    """Remove the calibration of the choice before, if there is one; not one that the user made."""
    rule = Detector.load(out).threshold if (out / threshold.DOCUMENT).exists() else None
    if rule is not None and (rule.name, rule.false_alarms) == (score, false_alarms):
        (out / threshold.DOCUMENT).unlink()


def _finish(
    train: FeatureSet,
    calibrate: FeatureSet,
    choice: Chosen,
    out: str | os.PathLike[str] | None,
    work: Path,
    options: Options,
) -> Detector:
    """Train the winner on everything but the calibration samples, and calibrate it unless the run in `out` is."""
    candidate = choice.candidate
    ensemble = candidate.ensemble(train, options.members, options.seed, options.norm)
    if out is not None:
        replaced = workspace.make_way(place(out), work, _settings(candidate, ensemble, train, options.seed))
        if replaced is not None:
            options.notify(f"the run of another choice is in {replaced} now")
    options.notify(f"train {candidate.name} on all {len(train):,} samples")
    fit(ensemble, train, candidate.method, candidate.options(options.seed), out=out, progress=options.progress)
    if out is None:
        backbone = backbone_of(train)
        detector = Detector(ensemble, train.classes, backbone=backbone, trained_on={"train": train.fingerprint})
    else:
        detector = Detector.load(out)
    if (rule := detector.threshold) is not None:  # it may be the user's
        if rule.false_alarms != options.false_alarms:
            options.notify(
                f"{out} keeps its calibration at {rule.false_alarms:g} false alarms; see dissensus calibrate"
            )
        return detector
    # the default falls back to a single score where samples are few
    names = expressions.score_names(choice.score)[0]
    usual = choice.score == DEFAULT_SCORE or not expressions.enough(names, len(calibrate), options.false_alarms)
    detector.calibrate(calibrate, options.false_alarms, None if usual else choice.score)
    if out is not None:
        detector.save(out)
    return detector


def _settings(candidate: Candidate, ensemble: Ensemble, train: FeatureSet, seed: int) -> dict[str, Any]:
    """What distinguishes the runs of two candidates, as run.json has it."""
    settings = asdict(planned(candidate, ensemble, train, seed))
    tail = MemberTailInfo(**(ensemble.about or {})).model_dump(mode="json")
    return {**{name: settings[name] for name in ("method", "diversity", "label_smoothing")}, "tail": tail}
