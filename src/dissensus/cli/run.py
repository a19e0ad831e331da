"""dissensus run: the whole job on a suite, from images to a table."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus._core.places import place
from dissensus.cli.command import Flags, Given, command
from dissensus.cli.options import BackboneOptions, DeviceOptions
from dissensus.features.options import ExtractOptions
from dissensus.training.methods import DEFAULT_METHOD
from dissensus.training.options import MEMBERS, TrainOptions

BY_SUITE = "What is not given is the suite's choice, else the default shown."
NO_IMAGES = "use a suite of images, without --augment"  # to make views of
READING = ("batch_size", "workers", "shard_images", "max_bad", "strict")  # how views are extracted, but not which


@command(
    "run",
    "dissensus run --root photos --methods deep-ensemble sed-a2d --out runs/photos",
    training=Flags(TrainOptions, BY_SUITE),
    backbone=Flags(BackboneOptions, BY_SUITE),
    extraction=Flags(ExtractOptions, without=("corruption", "severity", "view")),
    devices=Flags(DeviceOptions),
)
def run(
    *,
    out: str,
    suite: str | None = None,
    root: str | None = None,
    methods: list[str] | None = None,
    members: int = MEMBERS,
    tail: str | None = None,
    norm: str | None = None,
    init: Literal["random", "pretrained"] = "random",
    disagreement: str | None = None,
    features: str | None = None,
    seed: int = 0,
    progress: bool = True,
    training: Given,
    backbone: Given,
    extraction: Given,
    devices: Given,
) -> None:
    """Do the whole job on a suite: extract what is missing, train and evaluate methods, print a table, write a report.

    If it is killed or stopped, the same command continues.

    Args:
        out: folder for results.csv, report.html and one run folder per method.
        suite: dissensus list suites; or your own YAML file; by default folders, the images under --root.
        root: the folder that holds the images, such as one of class folders; embedded suites have none.
        methods: what to train: dissensus list methods; auto, which tune chooses, given members, norm and seed; or all
            of the former; by default single, deep-ensemble and sed-a2d.
        members: number of members of every ensemble.
        tail: linear, mlp, conv or backbone; by default what was cut off, if more than the classifier, else linear.
        norm: what the tail does to features first: l2, layer or none; by default l2 for linear, none for the others.
        init: how members start: random, as in the paper, or from the backbone's weights where they fit.
        disagreement: for a2d and divdis, and for SED besides the hard samples: self for jigsaws of the training images,
            or a folder or .npz of features; by default the suite's own, for a2d and divdis only.
        features: where to keep the features; by default OUT/features.
        seed: decides splits, initial weights and batches.
        progress: show progress bars when stderr is a terminal.
    """
    from dissensus import report, suites
    from dissensus._core.files import check_output
    from dissensus.cli import inputs
    from dissensus.experiments import pipeline, runner
    from dissensus.training import METHODS
    from dissensus.training.run import AUTO

    if not out or suite == "" or root == "":
        raise DissensusError("--suite, --out and --root must name something; got an empty name")
    if suite is None and root is None:
        raise DissensusError("run needs images; got neither --root DIR, a folder of class folders, nor --suite NAME")
    suite = suite or "folders"
    check_output(out)
    names = list(dict.fromkeys(methods or ("single", "deep-ensemble", DEFAULT_METHOD)))
    for name in names:
        if name not in (known := (*METHODS, AUTO, "all")):
            raise UnknownNameError("method", name, known)
    everything = "all" in names
    names = list(METHODS) if everything else names
    options = runner.training_options(suite, {**training, "seed": seed})
    alone = TrainOptions(**{**training, "seed": seed})  # auto takes nothing that a suite recommends
    jobs = [runner.Job(name, alone if name == AUTO else options, members, tail, init, norm) for name in names]
    pipeline.check(jobs)
    inputs.check_takes_set(names, disagreement)
    accepted = suites.accepted_options(suite)
    fabric = inputs.launch(**devices)
    with inputs.first_speaks(fabric):
        given = {"root": root, "features": features, **backbone, **extraction}
        usual: dict[str, Any] = {
            "features": place(out) / "features", "progress": progress, "fabric": fabric,
            "notify": partial(pipeline.say, fabric=fabric),
        }  # fmt: skip
        # what was not asked for goes to those suites that take it
        keywords = {name: value for name, value in usual.items() if accepted is None or name in accepted}
        keywords |= {name: value for name, value in given.items() if value is not None}
        loaded = suites.load(suite, seed=seed, **keywords)
        reading = {name: value for name, value in extraction.items() if name in READING}
        shared = inputs.find_disagreement(
            disagreement, loaded.train, loaded.train_images, NO_IMAGES, progress=progress, fabric=fabric, **reading
        )
        jobs = [replace(job, disagreement=shared) for job in jobs]
        feasible = pipeline.feasible(jobs, loaded, fabric)
        frame = pipeline.run_methods(loaded, feasible, place(out), lenient=everything, progress=progress, fabric=fabric)
        if fabric.is_global_zero:
            section = report.Section(loaded.name, loaded.summary, frame)
            print(pipeline.write_results([section], place(out)), end="")
