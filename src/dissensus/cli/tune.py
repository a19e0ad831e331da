"""dissensus tune: choose how to train and to detect, without OOD data."""

from __future__ import annotations

import shlex

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import Duration, Share, command, say
from dissensus.training.options import MEMBERS


@command("tune", "dissensus tune features --images photos --out runs/tuned --budget 10m")
def tune(
    features: str,
    *,
    out: str,
    images: str | None = None,
    held_out: str | None = None,
    budget: Duration | None = None,
    members: int = MEMBERS,
    seed: int = 0,
    false_alarms: Share = Share(0.05),
    progress: bool = True,
) -> None:
    """Choose ensemble and score without OOD data, train the winner and calibrate it.

    Method, diversity, label smoothing, norm, tail and score are compared on stand-ins for OOD data: classes that are
    left out of training and, with --images, jigsaws and corruptions of held-out images. The default is left only for a
    gain beyond noise. If it is killed or stopped, the same command continues; if the budget ended the search, the same
    command with a larger one does.

    Args:
        features: labelled features to train on: a feature folder, an .npz file, or the name of a suite.
        out: the run folder to write, with all candidates in tuning.csv.
        images: the images that the features were extracted from, as for extract.
        held_out: features to calibrate on; by default a fifth of the training features, which are not trained on.
        budget: time limit, such as 90s, 10m or 1h; by default none.
        members: number of members of every ensemble.
        seed: decides splits, initial weights and batches.
        false_alarms: share of ID samples that may be called out, such as 5% or 0.05; a calibration in OUT is kept.
        progress: report progress.
    """
    from dissensus._core.files import check_output
    from dissensus.adaptation import tune as run
    from dissensus.cli import inputs
    from dissensus.images import ImageSet

    if not features or not out or images == "":
        raise DissensusError("features, --out and --images must name something; got an empty name")
    check_output(out)
    train, suite = inputs.find_features(features)
    calibrate = None if held_out is None else inputs.find_features(held_out)[0]
    if calibrate is None and suite is not None:
        calibrate = suite.held_out
    tuned = run(
        train,
        images=None if images is None else ImageSet.find(images),
        out=out,
        budget=budget,
        held_out=calibrate,
        members=members,
        seed=seed,
        false_alarms=false_alarms,
        progress=progress,
    )
    if tuned.document.lines:
        show(tuned.table)
    show(tuned.reason)
    assert tuned.detector.threshold is not None
    say(tuned.detector.threshold.promise)
    say(f"all candidates are in {out}/tuning.csv; predict images with: dissensus predict {shlex.quote(out)} IMAGES...")
