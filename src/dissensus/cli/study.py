"""dissensus study: the paper's tables and figures on a suite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import Flags, Given, command, hold, say
from dissensus.cli.options import BackboneOptions
from dissensus.cli.run import BY_SUITE, NO_IMAGES, READING
from dissensus.features.options import ExtractOptions
from dissensus.training.options import PASSES, TrainOptions

# Digits have no groups; dominoes, made of the same scans, have.
COMPANIONS = {("groups", "digits"): "dominoes"}


@command(
    "study",
    "dissensus study detection diversity-weight --suite digits --seeds 3",
    training=Flags(TrainOptions, BY_SUITE, without=("seed",)),
    backbone=Flags(BackboneOptions, BY_SUITE),
    extraction=Flags(ExtractOptions, without=("corruption", "severity", "view", "seed")),
)
def study(
    names: list[str],
    *,
    suite: str,
    root: str | None = None,
    out: str | None = None,
    seeds: int = 1,
    quick: bool = False,
    tail: str | None = None,
    norm: str | None = None,
    disagreement: str | None = None,
    features: str | None = None,
    format: Literal["text", "md", "tex"] = "text",
    progress: bool = True,
    training: Given,
    backbone: Given,
    extraction: Given,
) -> None:
    """Run tables and figures of the paper on a suite; trained ensembles are kept and shared between studies.

    If it is killed or stopped, the same command continues and repeats only the run in progress; a second call is
    instant.

    Args:
        names: which studies: dissensus list studies; or all, for all that the suite has what it needs for.
        suite: dissensus list suites; or your own YAML file.
        root: the folder that holds the images, for suites of images.
        out: folder for runs and results; by default runs/studies-SUITE.
        seeds: how many runs of each trial; tables show mean and deviation.
        quick: fewer weights, sizes and epochs, to see that it works.
        tail: linear, mlp, conv or backbone; by default what was cut off, if more than the classifier, else linear.
        norm: what the tail does to features first: l2, layer or none; by default l2 for linear, none for the others.
        disagreement: what a2d and divdis disagree on: self for jigsaws of the training images, or a folder or .npz of
            features; by default the suite's own.
        features: where to keep the features; by default the cache.
        format: how to print tables: text, Markdown (md) or LaTeX (tex).
        progress: show progress bars when stderr is a terminal.
    """
    import torch

    from dissensus import suites
    from dissensus._core.files import check_output
    from dissensus._core.outputs import writing
    from dissensus.cli import inputs
    from dissensus.experiments import runner, studies
    from dissensus.training.create import check_tail

    if seeds < 1:
        raise DissensusError(f"seeds must be at least 1; got {seeds}")
    if "all" in names and len(names) > 1:
        raise DissensusError(f"all is all of them; got {' '.join(names)}: name either all or some")
    chosen = list(studies.STUDIES) if names == ["all"] else list(dict.fromkeys(names))
    for name in chosen:
        studies.STUDIES.check(name)
    check_tail(tail or "backbone", norm)  # before hours are spent on features
    folder = Path(out or f"runs/studies-{Path(suite).stem.replace(':', '-')}")
    check_output(folder)
    hold(writing(folder))
    given = {"root": root, "features": features, **backbone, **extraction}
    keywords = {name: value for name, value in given.items() if value is not None}
    options = runner.training_options(suite, training)
    if quick and "epochs" not in training and "member_epochs" not in training:
        options = replace(options, epochs=None, member_epochs=max(1, (options.member_epochs or 2 * PASSES) // 4))

    def lab(name: str) -> studies.Lab:
        extracted = {**keywords, "progress": progress} if suites.uses_backbone(name) else {}

        def load(**changes: Any) -> suites.Suite:
            loaded = suites.load(name, **{**extracted, **changes})
            if disagreement is None or name != suite:
                return loaded
            reading = {key: value for key, value in extraction.items() if key in READING}
            return replace(
                loaded,
                disagreement=inputs.find_disagreement(
                    disagreement, loaded.train, loaded.train_images, NO_IMAGES, progress=progress, **reading
                ),
            )

        return studies.Lab(
            load, folder, options, seeds=range(seeds), quick=quick, progress=progress, tail=tail, norm=norm, tell=say
        )

    main = lab(suite)
    say(f"{suite}: features first, of whatever has none yet")
    main.suite()  # fails before anything is written
    for number, name in enumerate(chosen, start=1):
        say(f"study {number} of {len(chosen)}: {name}")
        other = COMPANIONS.get((name, suite))
        bench = main if other is None else lab(other)
        try:
            studies.check(name, bench)
        except DissensusError as error:
            if names != ["all"]:
                raise
            say(f"  left out: {error}")
            continue
        # narrow features gain nothing from a second thread
        with runner.threads(1 if bench.suite().train.width < 256 else torch.get_num_threads()):
            outcome = studies.run(name, bench)
        show({"text": outcome.text, "md": outcome.markdown, "tex": outcome.latex}[format]())
    say(f"results are in {folder}; look at them with: dissensus report {folder}")
