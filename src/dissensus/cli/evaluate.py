"""dissensus evaluate: trained runs, judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say

EXAMPLE = "dissensus evaluate runs/mine --suite digits"
PLAIN: Arguments = {
    "runs": {"nargs": "+", "metavar": "RUN", "help": "run folders that train wrote"},
    "--shift": {"nargs": "+", "metavar": "NAME=FEATURES", "help": "shifted sets with the same labels"},
    "--ood": {"nargs": "+", "metavar": "NAME=FEATURES", "help": "sets with other labels"},
    "--groups": {"nargs": "+", "metavar": "NAME=FEATURES", "help": "labelled sets with groups"},
}
Format = Literal["table", "csv", "json", "md", "tex"]


def evaluate_runs(
    runs: list[str],
    suite: str | None = None,
    root: str | None = None,
    features: str | None = None,
    id: str | None = None,
    shift: list[str] | None = None,
    ood: list[str] | None = None,
    groups: list[str] | None = None,
    held_out: str | None = None,
    score: str = "pds",
    aggregate: str = "prediction",
    protocol: Literal["mask", "vote"] = "mask",
    format: Format = "table",
    out: str | None = None,
    keep: bool = True,
    progress: bool = True,
) -> None:
    """Judge trained runs: accuracy in and out of distribution, OOD detection, diversity.

    Args:
        runs: run folders that train wrote.
        suite: a suite of data sets to judge on: dissensus list suites; what is not extracted yet will be.
        root: for a suite of images, the folder that holds them.
        features: where that suite's features are kept, such as OUT/features of dissensus run; by default the cache.
        id: instead of a suite, the in-distribution test features (a folder or .npz).
        shift: shifted sets with the same labels, each as NAME=FEATURES.
        ood: sets with other labels, each as NAME=FEATURES.
        groups: sets with groups, each as NAME=FEATURES.
        held_out: labelled features on which the greedy soup is chosen; a suite brings its own.
        score: the score whose AUROC the table shows: dissensus list scores.
        aggregate: the aggregate whose accuracy the table shows: dissensus list aggregates.
        protocol: for sets with a part of the classes: mask the logits first, or the authors' vote.
        format: what to print: a summary table, or every number as csv, json, md or tex.
        out: write every number to this file instead (.csv, .json, .md, .tex); the table is still printed.
        keep: leave what was found in the run folder too, for dissensus report.
        progress: show a progress bar when stderr is a terminal.
    """
    import pandas as pd

    from dissensus.cli import inputs
    from dissensus.evaluation import records, tables
    from dissensus.evaluation._evaluate import measure, predict_sets
    from dissensus.evaluation.suite import Role
    from dissensus.functional import aggregates, scores
    from dissensus.models.ensemble import Ensemble
    from dissensus.training.run import Run

    scores.SCORES.check(score)
    chosen = aggregates.AGGREGATES[aggregate]
    if out is not None and Path(out).suffix not in tables.SUFFIXES:
        raise DissensusError(f"--out must end in {', '.join(tables.SUFFIXES)}; got {out}")
    opened = [Run.open(run) for run in runs]
    options = inputs.suite_options(opened, suite, root, features)
    others: dict[Role, list[str] | None] = {"shift": shift, "ood": ood, "groups": groups}
    sets, kept = inputs.find_sets(suite, id, others, held_out, options)
    if chosen.held_out and kept is None:
        raise DissensusError(f"{aggregate} is chosen on held-out features; none were given: add --held-out FEATURES")
    frames: list[pd.DataFrame] = []
    seen: dict[tuple[Any, ...], Run] = {}
    for run in opened:
        ensemble = Ensemble.load(run.ensemble_folder)
        same = seen.setdefault((len(ensemble), *run.about.values()), run)
        if same is not run:
            raise DissensusError(
                f"runs of one table must differ in method, members, active, diversity or seed; {same.folder} and "
                f"{run.folder} do not: evaluate them one by one"
            )
        predictions = predict_sets(
            ensemble,
            sets,
            classes=run.settings["classes"],
            backbone=run.settings.get("backbone"),
            held_out=kept,
            protocol=protocol,
            progress=progress,
        )
        found = measure(sets, predictions, {"run": run.folder.name, **run.about})
        if keep:
            records.keep(run.folder, suite or "own sets", "", run.settings["classes"], sets, found, predictions)
        frames.append(found)
    frame = pd.concat(frames, ignore_index=True)
    if out is not None:
        tables.write(frame, Path(out))
        say(f"wrote {len(frame)} numbers to {out}")
    if format == "table":
        print(tables.as_text(tables.summary(frame, score=score, aggregate=aggregate)), end="")
    else:
        print(tables.render(frame, f".{format}"), end="")
