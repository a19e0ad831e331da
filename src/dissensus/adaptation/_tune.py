"""tune(): choose ensemble and score from training data alone, train the winner and calibrate it."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dissensus._core import documents
from dissensus._core.errors import DataError, DissensusError, RunError
from dissensus._core.files import is_temporary, make_folder, replacing
from dissensus._core.locks import locked
from dissensus.adaptation import splits, stand_ins
from dissensus.adaptation.candidates import INCUMBENT, candidates
from dissensus.adaptation.choose import Choice
from dissensus.adaptation.search import Clock, Search
from dissensus.adaptation.trials import Bench, Store, key_of
from dissensus.adaptation.tuned import DOCUMENT, TABLE, WORK, Chosen, Tuned, Tuning, frame_of, lines_of
from dissensus.detection.detector import Detector
from dissensus.features import FeatureSet, check_backbone
from dissensus.functional import conformal, expressions
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.images import ImageSet
from dissensus.training import fit
from dissensus.training.options import MEMBERS
from dissensus.training.run import INFO, TUNING

Notify = Callable[[str], None]


def tune(
    features: FeatureSet,
    *,
    images: ImageSet | None = None,
    out: str | os.PathLike[str] | None = None,
    budget: float | None = None,
    held_out: FeatureSet | None = None,
    members: int = MEMBERS,
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
    _check(features, members, false_alarms, calibration)
    images = None if images is None else stand_ins.check_images(features, images)
    assert features.labels is not None
    labels = features.labels.numpy()
    rows = np.arange(len(features))
    train, calibrate = features, held_out
    if calibrate is None:
        held, rows = splits.divide(labels, calibration, seed)
        _check_count(len(held), len(features), calibration, false_alarms)
        train, calibrate = features.subset(rows), features.subset(held)
    else:
        _check_held_out(features, calibrate, false_alarms)
    plan = key_of(
        [features.fingerprint, held_out and held_out.fingerprint, images and images.fingerprint],
        [members, seed, calibration, DEFAULT_SCORE, [each.settings for each in candidates(train)]],
    )
    with _workspace(out, plan) as folder:
        document = _document(out, plan)
        if document is None:
            search = _search(features, images, labels, rows, folder, clock, members, seed, progress, notify)
            document = _decide(search, plan, clock, notify)
            if out is not None:
                _write(Path(out), document)
        return Tuned(_finish(train, calibrate, document, members, seed, false_alarms, out, progress, notify), document)


def _check(features: FeatureSet, members: int, false_alarms: float, calibration: float) -> None:
    conformal.check_rate(false_alarms)
    if members < 2:
        raise DissensusError(f"tune compares ensembles with a single model; got members={members}: use 2 or more")
    if not 0 < calibration < 1:
        raise DissensusError(f"calibration must be a share within (0, 1); got {calibration:g}: try 0.2")
    if features.labels is None:
        raise DataError("tune needs labelled features; got an unlabelled set: give labels when making it")
    if features.passes > 1:
        raise DataError(
            f"tune needs each image once, as in use; these features are {features.passes} augmented passes: extract "
            "them without --augment"
        )
    if int((features.class_counts > 0).sum()) < 2:
        raise DataError(f"tune needs at least two classes; all {len(features)} samples are of one: add another")
    if int(features.class_counts.max()) < 2:
        raise DataError(
            f"tune holds out samples of every class; each of {len(features)} classes has one sample: add samples"
        )


def _check_count(count: int, total: int, share: float, false_alarms: float) -> None:
    if count < (needed := conformal.needed(false_alarms)):
        part = "" if share == 1 else f" ({share:g} of {total} samples)"
        raise DataError(
            f"a false-alarm rate of {false_alarms:g} needs {needed} samples to calibrate on; got {count}{part}: add "
            "samples, or allow more false alarms"
        )


def _check_held_out(features: FeatureSet, held_out: FeatureSet, false_alarms: float) -> None:
    """Raise now for what calibration would raise after the search."""
    check_backbone(features.provenance.get("backbone"), held_out, "the held-out set")
    if held_out.shape != features.shape:
        raise DataError(
            f"held-out features must be like the training features, {features.shape}; got {held_out.shape}: extract "
            "both with the same backbone"
        )
    if held_out.passes > 1:
        raise DataError(
            f"calibration needs each image once, as in use; the held-out features are {held_out.passes} augmented "
            "passes: extract them without --augment"
        )
    _check_count(len(held_out), len(held_out), 1, false_alarms)


@contextlib.contextmanager
def _workspace(out: str | os.PathLike[str] | None, plan: str) -> Iterator[Path]:
    """The folder for work in progress: OUT/tuning, or a temporary one."""
    if out is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"the output must be a folder; {folder} is a file: choose another --out")
    if (folder / INFO).exists() and not (folder / DOCUMENT).exists():
        raise RunError(f"{folder} holds a run that tune did not make; choose another --out, or remove it yourself")
    known = (folder / INFO).exists() or not folder.is_dir()
    if not known and any(not is_temporary(path.name) and path.name not in TUNING for path in folder.iterdir()):
        raise RunError(f"{folder} holds files that are not of a run; choose another --out, or empty it yourself")
    work = folder / WORK / plan
    if (folder / WORK).is_dir() and not work.is_dir():
        raise RunError(
            f"{folder} holds another tuning, of other data, members, seed or version; choose another --out, or remove "
            "it yourself"
        )
    make_folder(work)
    with locked(work / ".lock"):
        yield work


def _document(out: str | os.PathLike[str] | None, plan: str) -> Tuning | None:
    """The choice that was made before, if there is one."""
    if out is None or not (Path(out) / DOCUMENT).exists():
        return None
    remedy = f"remove {Path(out) / DOCUMENT} to choose again"
    document = documents.read(Tuning, Path(out) / DOCUMENT, remedy=remedy)
    if document.plan != plan:
        raise RunError(f"{out} holds another tuning; choose another --out, or remove it yourself")
    return document


def _search(
    features: FeatureSet,
    images: ImageSet | None,
    labels: splits.Rows,
    rows: splits.Rows,
    folder: Path,
    clock: Clock,
    members: int,
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
        features, [folds[n] for n in usable], [views[n] for n in usable], Store(folder / "trials"), members, seed
    )
    search = Search(bench, [places[n] for n in usable], clock, progress, notify)
    if usable:
        search.run(candidates(features.subset(rows)))
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


def _write(out: Path, document: Tuning) -> None:
    """Write tuning.csv, then tuning.json: a choice is complete or absent."""
    with replacing(out / TABLE) as temporary:
        temporary.write_text(frame_of(document).to_csv(index=False, float_format="%.6g"), encoding="utf-8")
    documents.write(out / DOCUMENT, document)


def _finish(
    train: FeatureSet,
    calibrate: FeatureSet,
    document: Tuning,
    members: int,
    seed: int,
    false_alarms: float,
    out: str | os.PathLike[str] | None,
    progress: bool,
    notify: Notify,
) -> Detector:
    """Train the winner on everything but the calibration samples, and calibrate it."""
    candidate, score = document.choice.candidate, document.choice.score
    notify(f"train {candidate.name} on all {len(train):,} samples")
    ensemble = candidate.ensemble(train, members, seed)
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
