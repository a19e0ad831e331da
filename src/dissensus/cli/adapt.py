"""dissensus adapt: from a few labels, the hypothesis that holds in a new place."""

from __future__ import annotations

import shlex
from typing import Literal

from dissensus._core.places import place
from dissensus._core.terminal import show
from dissensus.cli.command import command, hold, say


@command("adapt", "dissensus adapt runs/mine --labelled questions.csv --out runs/there")
def adapt(
    run: str,
    *,
    labelled: str,
    out: str,
    by: Literal["auto", "member", "prior", "head", "weights"] = "auto",
    train: str | None = None,
    pool: str | None = None,
    engine: str | None = None,
    accelerator: str = "auto",
    progress: bool = True,
) -> None:
    """Adapt a run to a new place with a few labelled samples: choose among its members, or correct the best one.

    The result is a run like any other; the given one stays as it is.

    Args:
        run: a run folder.
        labelled: labelled samples: the table of dissensus ask, filled in; class folders, a table or a tar of images; a
            feature folder or an .npz file with labels. Classes are those of the run; a few samples are enough.
        out: the run folder to write, new or empty.
        by: the best member alone; a new head with that member as its prior; a new head without; weights of members; or
            auto, which is prior while labels are few and cross-validation with many.
        train: the features that the run was trained on, if it keeps none (it does with the score knn).
        pool: what ask was given, if the table is of features or of images in a tar.
        engine: how the trunk runs over images: dissensus list engines; onnx is faster on CPUs. By default eager,
            or onnx-int8 for a run that was trained on its features.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        progress: show a progress bar if stderr is a terminal.
    """
    from dissensus._core.outputs import writing
    from dissensus.adaptation import adapt as choose
    from dissensus.adaptation import runs
    from dissensus.cli import inputs
    from dissensus.detection.detector import Detector
    from dissensus.features import check_backbone
    from dissensus.training import adaptation
    from dissensus.training.run import Run

    opened = Run.open(run)
    opened.check_single("adapt takes one backbone")
    runs.check_out(opened, place(out))
    hold(writing(out))
    before = adaptation.read(opened)
    trained = None if train is None else inputs.find_features(train)[0]
    device = inputs.launch(accelerator=accelerator).device
    detector = Detector.load(run, calibrated=False, engine=engine, device=device)
    if trained is not None:
        check_backbone(detector.backbone_info, trained, str(train))
    samples = inputs.find_labelled(labelled, pool, detector.members, detector.classes, progress)
    adapted = choose(
        detector.ensemble, samples, by, train=trained, classes=detector.classes, before=before, run=run
    )  # fmt: skip
    runs.save(adapted, opened, out)
    show(adapted.table)
    show(adapted.reason)
    say(f"wrote {out}; calibrate it for verdicts: dissensus calibrate {shlex.quote(out)} --id SAMPLES")
