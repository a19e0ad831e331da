"""dissensus run: the whole job on a suite, from images to a table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.cli.parser import Arguments, share

EXAMPLE = "dissensus run --root photos --methods deep-ensemble sed-a2d --out runs/photos"
PLAIN: Arguments = {
    "--methods": {
        "nargs": "+",
        "metavar": "METHOD",
        "default": ["single", "deep-ensemble", "sed-a2d"],
        "help": "what to train: dissensus list methods; or all",
    },
}


def run(
    out: str,
    suite: str | None = None,
    root: str | None = None,
    methods: list[str] | None = None,
    members: int = 5,
    backbone: str | None = None,
    weights: str | None = None,
    layers: int | None = None,
    size: int | None = None,
    crop: float | None = None,
    features: str | None = None,
    augment: int = 0,
    engine: Literal["eager", "onnx"] = "eager",
    workers: int | None = None,
    max_bad: str = "1%",
    strict: bool = False,
    tail: str | None = None,
    init: Literal["random", "pretrained"] = "random",
    diversity: float | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    weight_decay: float | None = None,
    label_smoothing: float | None = None,
    confidence: float | None = None,
    seed: int = 0,
    progress: bool = True,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
) -> None:
    """Do the whole job on a suite: extract what is missing, train and evaluate methods, print a table, write a report.

    Killed or stopped, the same command goes on. How long and how fast to train is the suite's to say, unless given.

    Args:
        out: folder for results.csv, report.html and one run folder per method.
        suite: dissensus list suites; or your own YAML file; by default folders, the images under --root.
        root: the folder that holds the images, such as one of class folders; embedded suites have none.
        methods: what to train; all is all of them.
        members: of every ensemble.
        backbone: by default the suite's, lite0.
        weights: a local file, or random; by default the pretrained ones.
        layers: how much of the backbone every member owns, 1 or 2; by default the suite's.
        size: pixels a side; by default the suite's.
        crop: share of the shorter side that is seen; by default the suite's.
        features: where to keep the features; by default OUT/features.
        augment: passes of random crops and flips over the training images; 0: their centre.
        engine: how the trunk runs: eager PyTorch, or onnx, which is faster on CPUs.
        workers: processes that read images; by default one a core, at most 8.
        max_bad: share of images that may be unreadable, such as 1% or 0.01.
        strict: fail at the first unreadable image.
        tail: linear, mlp, conv or backbone; by default what was cut off, if more than the classifier, else linear.
        init: how members start: random, as in the paper, or with the backbone's weights where they fit.
        diversity: weight of the disagreement term.
        epochs: passes over the training set.
        lr: peak learning rate.
        batch_size: samples a step.
        weight_decay: decoupled.
        label_smoothing: share of the label that is spread over all classes.
        confidence: two-stage disagrees where the first stage's confidence is below this.
        seed: decides splits, initial weights and batches.
        progress: show progress bars when stderr is a terminal.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        devices: processes on this machine, which share the work.
        num_nodes: machines.
        precision: 32-true or bf16-mixed.
    """
    from dissensus import report, suites
    from dissensus.cli import inputs
    from dissensus.experiments import pipeline
    from dissensus.training import methods as known

    if not out or suite == "" or root == "":
        raise DissensusError("--suite, --out and --root must name something; got an empty name")
    if suite is None and root is None:
        raise DissensusError("run needs images; got neither --root DIR, a folder of class folders, nor --suite NAME")
    suite = suite or "folders"
    everything = "all" in (methods or [])
    names = list(dict.fromkeys(known.METHODS if everything else methods or []))
    taken = suites.accepted_options(suite)
    given = {
        "diversity": diversity, "epochs": epochs, "lr": lr, "batch_size": batch_size, "weight_decay": weight_decay,
        "label_smoothing": label_smoothing, "confidence": confidence,
    }  # fmt: skip
    training = suites.training(suite)
    try:
        pipeline.check(names, members, training, seed=seed, tail=tail)
    except UnknownNameError:
        raise
    except DissensusError as error:
        raise DissensusError(f"training of suite {suite}: {error}") from error
    training |= {name: value for name, value in given.items() if value is not None}
    pipeline.check(names, members, training, seed=seed, tail=tail)
    fabric = inputs.launch(accelerator, devices, num_nodes, precision)
    with inputs.first_speaks(fabric):
        asked: dict[str, Any] = {
            "root": root, "backbone": backbone, "weights": weights, "layers": layers, "size": size, "crop": crop,
            "augment": augment or None, "workers": workers, "features": features,
        }  # fmt: skip
        options = {name: value for name, value in asked.items() if value is not None}
        usual: dict[str, Any] = {
            "features": Path(out) / "features", "engine": engine, "max_bad": share("--max-bad", max_bad),
            "strict": strict, "progress": progress, "fabric": fabric, "notify": partial(pipeline.say, fabric=fabric),
        }  # fmt: skip
        # what was not asked for goes to those suites that take it
        options = {name: value for name, value in usual.items() if taken is None or name in taken} | options
        loaded = suites.load(suite, seed=seed, **options)
        frame = pipeline.run_methods(
            loaded, pipeline.feasible(names, loaded, fabric), Path(out), members=members, tail=tail, init=init,
            training=training, seed=seed, lenient=everything, progress=progress, fabric=fabric,
        )  # fmt: skip
        if fabric.is_global_zero:
            section = report.Section(loaded.name, loaded.summary, frame)
            print(pipeline.write_results([section], Path(out)), end="")
