"""dissensus run: the whole job on a suite, from images to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dissensus.cli.parser import Arguments, share
from dissensus.errors import DissensusError

EXAMPLE = "dissensus run --suite pacs --root data --methods deep-ensemble sed-a2d --out runs/pacs"
PLAIN: Arguments = {
    "--methods": {
        "nargs": "+",
        "metavar": "METHOD",
        "default": ["single", "deep-ensemble", "sed-a2d"],
        "help": "what to train: dissensus list methods; or all",
    },
}


def run(
    suite: str,
    out: str,
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
    seed: int = 0,
    progress: bool = True,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
) -> None:
    """Do the whole job on a suite: extract what is missing, train methods, judge them, print a table, write a report.

    Killed or stopped, the same command goes on. How long and how fast to train is the suite's to say, unless given.

    Args:
        suite: dissensus list suites; or your own YAML file.
        out: folder for results.csv, report.html and one run folder a method.
        root: the folder that holds the images, for suites of images.
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
        epochs: passes of every member over the training set.
        lr: peak learning rate.
        batch_size: samples a step.
        weight_decay: decoupled.
        label_smoothing: share of the label that is spread over all classes.
        seed: decides splits, initial weights and batches.
        progress: show progress bars when stderr is a terminal.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        devices: processes on this machine, which share the work.
        num_nodes: machines.
        precision: 32-true or bf16-mixed.
    """
    from dissensus import job, report, suites
    from dissensus import methods as known
    from dissensus.cli import inputs

    names = list(known.METHODS) if methods == ["all"] else methods or []
    for name in names:
        known.get(name)
    if not out:
        raise DissensusError("--out must name a folder; got an empty name")
    asked: dict[str, Any] = {
        "root": root, "backbone": backbone, "weights": weights, "layers": layers, "size": size, "crop": crop,
    }  # fmt: skip
    options = {name: value for name, value in asked.items() if value is not None}
    if suite != "dominoes":  # the one that has no images
        options |= {
            "features": features or Path(out) / "features",
            "augment": augment,
            "engine": engine,
            "workers": workers,
            "max_bad": share("--max-bad", max_bad),
            "strict": strict,
            "progress": progress,
        }
    training = dict(suites.recipe(suite, Path(root)).training) if root and suites.needs_root(suite) else {}
    given = {
        "diversity": diversity, "epochs": epochs, "lr": lr, "batch_size": batch_size, "weight_decay": weight_decay,
        "label_smoothing": label_smoothing,
    }  # fmt: skip
    training |= {name: value for name, value in given.items() if value is not None}
    fabric = inputs.launch(accelerator, devices, num_nodes, precision)
    if suite != "dominoes":
        options["fabric"] = fabric
    loaded = suites.load(suite, seed=seed, **options)
    frame = job.run_methods(
        loaded, job.feasible(names, loaded), Path(out), members=members, tail=tail, init=init, training=training,
        seed=seed, progress=progress, fabric=fabric,
    )  # fmt: skip
    if fabric.is_global_zero:
        section = report.Section(loaded.name, loaded.summary, frame, loaded.families)
        print(job.write_results([section], Path(out)), end="")
