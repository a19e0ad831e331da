"""dissensus calibrate: the threshold of a run, from ID samples that it was not trained on."""

from __future__ import annotations

import shlex
import warnings

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import Share, command, hold, say


@command("calibrate", "dissensus calibrate runs/mine --id features/held-out --false-alarms 0.05")
def calibrate(
    run: str,
    *,
    id: str | None = None,
    suite: str | None = None,
    root: str | None = None,
    features: str | None = None,
    false_alarms: Share = Share(0.05),
    score: list[str] | None = None,
    by_class: bool = False,
    engine: str | None = None,
    accelerator: str = "auto",
    progress: bool = True,
) -> None:
    """Set the score above which a sample is called out of distribution, and save it with the run.

    Split-conformal calibration guarantees the rate: of samples like those given, at most that share is called out, on
    average over calibration sets of this size, whatever the score and the ensemble.

    Args:
        run: a run folder that train, run or demo wrote.
        id: ID samples that were not trained on: images as for extract, a feature folder or an .npz file; for a joined
            run features of every backbone, with commas between them.
        suite: the held-out set of a suite, instead of --id: dissensus list suites.
        root: the folder that holds a suite's images.
        features: the folder for a suite's features; by default the user's cache.
        false_alarms: share of ID samples that may be called out, such as 5% or 0.05.
        score: the score to calibrate: dissensus list scores. Several are combined as p-values, with weights if you
            like: mahalanobis+pds, 2*mahalanobis+pds; of a joined run also on one backbone, mahalanobis@lite0. By
            default a combination, if the run has fitted scores and there are samples enough for a combination; else
            gaussian, else pds.
        by_class: set one threshold per predicted class, so that the rate holds within each.
        engine: how the trunk runs over images: dissensus list engines; onnx is faster on CPUs. By default eager,
            or onnx-int8 for a run that was trained on its features.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        progress: show a progress bar if stderr is a terminal.
    """
    from tabulate import tabulate

    from dissensus.cli import inputs
    from dissensus.detection.detector import Detector
    from dissensus.functional.expressions import score_names
    from dissensus.training.run import Run, writing_run

    if score is not None:
        score_names(score)
    if (id is None) == (suite is None):
        got = "neither" if id is None else "both"
        raise DissensusError(f"calibrate needs either --id SAMPLES or --suite NAME; got {got}: give one")
    if id is not None and (root is not None or features is not None):
        raise DissensusError("--root and --features belong to --suite; got them with --id: leave them out")
    hold(writing_run(Run.open(run).folder))
    device = inputs.launch(accelerator=accelerator).device
    detector = Detector.load(run, calibrated=False, engine=engine, device=device)
    samples = id if id is not None else inputs.held_out(run, str(suite), root, features)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        detector.calibrate(samples, false_alarms, score, by_class=by_class, progress=progress)
    for warning in caught:
        say(f"warning: {warning.message}")
    detector.save(run)
    assert detector.threshold is not None
    limits = detector.threshold.calibrated.thresholds(false_alarms)
    if by_class:
        counts = [f"(n = {len(values):,})" for values in detector.threshold.calibrated.values]
        rows = zip(detector.classes, (f"out above {limit:.4g}" for limit in limits), counts, strict=True)
        show(tabulate(rows, tablefmt="plain", disable_numparse=True))
    else:
        show(f"{detector.threshold.name}: out above {float(limits[0]):.5g}")
    say(detector.threshold.promise)
    say(f"predict images with: dissensus predict {shlex.quote(run)} IMAGES...")
