"""dissensus evaluate: the metrics of trained runs, side by side."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus._core.terminal import show
from dissensus.cli.command import command, hold, say

if TYPE_CHECKING:
    from dissensus.training.run import Run


@command("evaluate", "dissensus evaluate runs/mine --suite digits")
def evaluate_runs(
    runs: list[str],
    *,
    suite: str | None = None,
    root: str | None = None,
    features: str | None = None,
    id: str | None = None,
    shift: list[str] | None = None,
    ood: list[str] | None = None,
    groups: list[str] | None = None,
    held_out: str | None = None,
    score: str | None = None,
    aggregate: str = "prediction",
    protocol: Literal["mask", "vote"] = "mask",
    format: Literal["text", "md", "tex", "csv", "json"] = "text",
    out: str | None = None,
    scores_out: str | None = None,
    scores_format: str = "openood",
    keep: bool = True,
    progress: bool = True,
) -> None:
    """Evaluate trained runs: accuracy in and out of distribution, OOD detection, diversity.

    Runs that differ only in their seed share a row, with mean and deviation; other runs are named by the settings
    that differ, and where none does, by their folders. Every run is evaluated through its own backbone, on the split it
    was trained with.

    Args:
        runs: run folders that train wrote.
        suite: a suite of data sets to evaluate on: dissensus list suites; what is not extracted yet will be.
        root: for a suite of images, the folder that holds them.
        features: where that suite's features are kept, such as OUT/features of dissensus run; by default the cache.
        id: instead of a suite, the in-distribution test features (a folder or .npz); for a joined run those of every
            backbone, with commas between them.
        shift: shifted sets with the same labels, each as NAME=FEATURES.
        ood: sets with other labels, each as NAME=FEATURES.
        groups: sets with groups, each as NAME=FEATURES.
        held_out: labelled features on which greedy and learned soups are chosen; a suite brings its own.
        score: the score whose AUROC the table shows: dissensus list scores; by default the combination that detectors
            use, which needs held-out features, else gaussian.
        aggregate: the aggregate whose accuracy the table shows: dissensus list aggregates.
        protocol: for sets with a part of the classes: mask the logits first, or the authors' vote.
        format: how to print the table: text, Markdown (md), LaTeX (tex), csv or json.
        out: write every value, one per row, to this file too (.csv, .json, .md, .tex).
        scores_out: write the score of every sample of one run to files in this new folder, for other libraries.
        scores_format: openood: .npz files, and tables by OpenOOD's definitions; pytorch-ood: tensors for its metrics.
        keep: save the predictions in the run folder too, for dissensus report.
        progress: show a progress bar when stderr is a terminal.
    """
    import pandas as pd

    from dissensus import suites
    from dissensus._core.files import check_folder
    from dissensus._core.outputs import writing
    from dissensus.cli import inputs
    from dissensus.evaluation import results, saved, score_files
    from dissensus.evaluation._evaluate import COMBINED
    from dissensus.evaluation.naming import name_runs
    from dissensus.evaluation.suite import Role
    from dissensus.functional import aggregates, scores
    from dissensus.models.ensemble import Ensemble
    from dissensus.training.run import Run, writing_run

    if score not in (None, COMBINED):
        scores.SCORES.check(score)
    chosen = aggregates.AGGREGATES[aggregate]
    if out is not None and place(out).suffix not in results.SUFFIXES:
        raise DissensusError(f"--out must end in {', '.join(results.SUFFIXES)}; got {out}")
    if scores_out is not None:
        score_files.SCORE_FILES.check(scores_format)
        check_folder(place(scores_out), "--scores-out")
        if len(runs) > 1:
            raise DissensusError(f"--scores-out takes one run; got {len(runs)}: evaluate them one by one")
    opened = [Run.open(run) for run in {place(run).resolve(): run for run in runs}.values()]
    inputs.suite_options(opened[0], suite, root, features)  # flags that go together
    for run in opened if keep else ():
        hold(writing_run(run.folder, remedy="wait for it, or add --no-keep"))
    if out is not None:
        hold(writing(out))
    if scores_out is not None:
        hold(writing(scores_out))
    others: dict[Role, list[str] | None] = {"shift": shift, "ood": ood, "groups": groups}
    load = cache(suites.load)  # runs may differ in backbone and seed
    evaluated_on = [
        inputs.find_sets(
            suite, id, others, held_out, partial(inputs.load_suite, run=run, root=root, features=features, load=load)
        )
        for run in opened
    ]
    if chosen.held_out and evaluated_on[0][1] is None:
        raise DissensusError(f"{aggregate} is chosen on held-out features; none were given: add --held-out FEATURES")
    if chosen.pretrained:
        for run in opened:
            _check_pretrained(run, aggregate)
    names = name_runs([run.named for run in opened], [str(run.folder) for run in opened])
    frames: list[pd.DataFrame] = []
    for run, (row, _), (sets, held_out_set, loaded) in zip(opened, names, evaluated_on, strict=True):
        frame = saved.evaluate_run(
            run,
            Ensemble.load(run.ensemble_folder),
            sets,
            suite=suite or "own sets",
            summary="" if loaded is None else loaded.summary,
            title="" if loaded is None else loaded.title,
            held_out=held_out_set,
            protocol=protocol,
            keep="predictions" if keep else "nothing",
            scores=None if scores_out is None else (place(scores_out), scores_format, score),
            progress=progress,
        )
        frames.append(frame.assign(row=row, run=str(run.folder)))
    frame = pd.concat(frames, ignore_index=True)
    if out is not None:
        results.write(frame, place(out))
        say(f"wrote {len(frame)} values to {out}")
    if scores_out is not None:
        say(f"wrote score files for {scores_format} to {scores_out}")
    settings = {str(run.folder): run.settings for run in opened}
    show(results.Results(frame, settings).summary(score=score, aggregate=aggregate).render(format), end="")


def _check_pretrained(run: Run, aggregate: str) -> None:
    """Raise if members of a run cannot be mixed with the tail of its backbone."""
    from dissensus.evaluation.soups import pretrained_tail
    from dissensus.models.ensemble import Ensemble

    ensemble = Ensemble.load(run.ensemble_folder)
    if pretrained_tail(ensemble, run.settings.get("backbone"), run.settings["classes"]) is None:
        raise DissensusError(
            f"{aggregate} mixes members with the backbone's own tail; that of {run.folder} has other layers, norm or "
            "classes, or its weights are not at hand: choose another --aggregate"
        )
