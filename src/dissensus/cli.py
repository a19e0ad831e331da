"""The command line: one function a verb, whose signature is the options and whose docstring is the help.

Results go to stdout or --out, messages and progress to stderr. A user's mistake is one line and exit code 2.
Heavy imports stay inside the verbs, so that --help answers at once.
"""

from __future__ import annotations

import errno
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ArgumentParser

from dissensus import parser
from dissensus.errors import DissensusError

EXAMPLES = {
    "demo": "dissensus demo --out runs/demo",
    "train": "dissensus train digits --method sed-a2d --diversity 0.5 --epochs 30 --out runs/mine",
    "evaluate": "dissensus evaluate runs/mine --suite digits",
    "list": "dissensus list methods",
    "bench": "dissensus bench --cases floor scaling --json",
}
LISTS = ("methods", "scores", "aggregates", "suites", "tails")
# What the system may say of a path or a disk that is the user's to mend.
USERS_OWN = {
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP,
}  # fmt: skip
Format = Literal["table", "csv", "json", "md", "tex"]


def demo(out: str = "runs/demo", seed: int = 0, force_epochs: int | None = None, progress: bool = True) -> None:
    """Run the whole job on the embedded digits: train every method, judge, print a table, write a report.

    Needs no data and no network. A second call finds the trained ensembles and only judges them again.

    Args:
        out: folder for results.csv, report.html, the features and one run folder a method.
        seed: decides splits, initial weights and batches.
        force_epochs: train every method for so many epochs instead of the demo's own number.
        progress: show progress bars when stderr is a terminal.
    """
    from dissensus.demo import run_demo

    print(run_demo(Path(out), seed=seed, epochs=force_epochs, progress=progress))


def train(
    features: str,
    out: str,
    method: str = "sed-a2d",
    members: int | None = None,
    tail: str = "linear",
    diversity: float | None = None,
    active: int | None = None,
    main: Literal["active", "all"] = "active",
    hardness: Literal["active", "all"] = "active",
    epochs: int = 10,
    lr: float = 1e-3,
    batch_size: int = 256,
    weight_decay: float = 0.01,
    label_smoothing: float = 0.0,
    optimizer: str = "adamw",
    schedule: Literal["cosine", "constant"] = "cosine",
    clip: float | None = None,
    disagreement: str | None = None,
    confidence: float = 0.2,
    seed: int = 0,
    resume: bool = True,
    checkpoint_seconds: float = 60.0,
    log_every: int = 50,
    tensorboard: bool = False,
    progress: bool = True,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
) -> None:
    """Train an ensemble on features. Killed or stopped, the same command goes on where it was.

    Args:
        features: a feature folder, an .npz file with arrays `features` and `labels`, or the name of a suite.
        out: the run folder to write; one run each.
        method: a row of the paper's tables: dissensus list methods.
        members: how many members; by default 5 (single: 1).
        tail: the layers that every member owns: linear, or mlp as in the paper.
        diversity: weight of the disagreement term, the paper's lambda; by default 0.5 where there is one.
        active: members drawn for a batch; by default 2 for SED and two-stage, all for the others.
        main: who learns the labels in a step: the active members, or all as the paper writes it.
        hardness: whose mean logits judge a sample: the active members', or all members' as the paper writes it.
        epochs: passes over the training set.
        lr: peak learning rate.
        batch_size: samples a step, over all devices.
        weight_decay: decoupled for adamw, an L2 term for sgd.
        label_smoothing: share of the label that is spread over all classes.
        optimizer: adamw or sgd.
        schedule: how the learning rate goes: cosine to zero, or constant.
        clip: largest norm of a member's gradient.
        disagreement: for a2d and divdis, a folder or .npz of features to disagree on; a suite brings its own.
        confidence: two-stage disagrees where the first stage's confidence is below this.
        seed: decides initial weights, batches and draws.
        resume: go on with the run that is in `out`, if it is the same.
        checkpoint_seconds: time between checkpoints.
        log_every: steps between lines of metrics.jsonl.
        tensorboard: write TensorBoard events too.
        progress: show a progress bar when stderr is a terminal.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        devices: processes on this machine; the batch is shared between them.
        num_nodes: machines.
        precision: 32-true or bf16-mixed.
    """
    from dissensus import inputs, methods, tails
    from dissensus.ensemble import Ensemble
    from dissensus.errors import DataError
    from dissensus.train import fit

    recipe = methods.get(method)
    if not features or not out:
        raise DissensusError("features and --out must name something; got an empty name")
    given, suite = inputs.find_features(features)
    where = None if disagreement is None else inputs.find_features(disagreement)[0]
    if where is None and suite is not None and recipe.takes_set:
        where = suite.disagreement
    if len(given.shape) != 1:
        raise DataError(f"the built-in tails take flat features (N, D); got rows of shape {given.shape}: pool them")
    count = members if members is not None else recipe.members or 5
    ensemble = Ensemble(tails.create(tail, given.width, max(2, len(given.classes))), members=count, seed=seed)
    fabric = inputs.launch(accelerator, devices, num_nodes, precision)
    fit(
        ensemble, given, method, diversity=diversity, active=active, main=main, hardness=hardness, epochs=epochs, lr=lr,
        batch_size=batch_size, weight_decay=weight_decay, label_smoothing=label_smoothing, optimizer=optimizer,
        schedule=schedule, clip=clip, disagreement=where, confidence=confidence, seed=seed, out=out, resume=resume,
        checkpoint_seconds=checkpoint_seconds, log_every=log_every, tensorboard=tensorboard, progress=progress,
        fabric=fabric,
    )  # fmt: skip
    if fabric.is_global_zero:
        how = "--id FEATURES --ood NAME=FEATURES" if suite is None else f"--suite {features}"
        _say(f"trained {count} members by {method}; judge them with: dissensus evaluate {shlex.quote(out)} {how}")
        print(out)


def evaluate(
    runs: list[str],
    suite: str | None = None,
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
    progress: bool = True,
) -> None:
    """Judge trained runs: accuracy in and out of distribution, OOD detection, diversity.

    Args:
        runs: run folders that train wrote.
        suite: a suite of data sets to judge on: dissensus list suites.
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
        progress: show a progress bar when stderr is a terminal.
    """
    import pandas as pd

    from dissensus import aggregate as aggregates
    from dissensus import inputs, scores, tables
    from dissensus.ensemble import Ensemble
    from dissensus.errors import UnknownNameError
    from dissensus.evaluate import evaluate as judge
    from dissensus.runs import Run

    scores.get(score)
    shown = [*aggregates.AGGREGATES, *aggregates.OF_WEIGHTS]
    if aggregate not in shown:
        raise UnknownNameError("aggregate", aggregate, shown)
    if out is not None and Path(out).suffix not in tables.SUFFIXES:
        raise DissensusError(f"--out must end in {', '.join(tables.SUFFIXES)}; got {out}")
    opened = [Run.open(run) for run in runs]
    sets, families, kept = inputs.find_judges(suite, id, {"shift": shift, "ood": ood, "groups": groups}, held_out)
    if aggregate == "greedy-soup" and kept is None:
        raise DissensusError("greedy-soup is chosen on held-out features; none were given: add --held-out FEATURES")
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
        frames.append(
            judge(
                ensemble,
                sets,
                about=run.about,
                classes=run.settings["classes"],
                held_out=kept,
                protocol=protocol,
                progress=progress,
            )
        )
    frame = pd.concat(frames, ignore_index=True)
    if out is not None:
        tables.write(frame, Path(out))
        _say(f"wrote {len(frame)} numbers to {out}")
    if format == "table":
        print(tables.as_text(tables.summary(frame, families, score=score, aggregate=aggregate)), end="")
    else:
        print(tables.render(frame, f".{format}"), end="")


def list_(what: str) -> None:
    """Say which methods, scores, aggregates, suites or tails there are, a line each.

    Args:
        what: methods, scores, aggregates, suites or tails.
    """
    from dissensus import aggregate, methods, scores, suites, tails

    lines: dict[str, str] = {}
    if what == "methods":
        lines = {name: method.summary for name, method in methods.METHODS.items()}
    else:
        tables: dict[str, dict[str, Any]] = {
            "scores": dict(scores.SCORES),
            "aggregates": dict(aggregate.AGGREGATES),
            "tails": dict(tails.TAILS),
        }
        lines = {name: (entry.__doc__ or "").strip().split("\n")[0] for name, entry in tables.get(what, {}).items()}
    if what == "suites":
        lines = {name: suites.summary(name) for name in suites.SUITES}
    if what == "aggregates":
        lines |= aggregate.OF_WEIGHTS
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name.ljust(width)}  {text}")


def bench(
    cases: list[str] | None = None, repeats: int = 20, json: bool = False, out: str | None = None, quick: bool = False
) -> None:
    """Measure speed as ratios within one run: against the floor, a plain loop, and two peer libraries.

    Args:
        cases: which cases; by default all: floor, scaling, pairs, loop, peers, memory.
        repeats: interleaved repeats; medians are reported.
        json: print JSON instead of a table.
        out: write the JSON to this file as well.
        quick: small sizes and few repeats, to see that it works; the ratios then say little.
    """
    from dissensus.bench import run_bench

    print(run_bench(cases, repeats=repeats, as_json=json, out=None if out is None else Path(out), quick=quick))


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo, "train": train, "evaluate": evaluate, "list": list_, "bench": bench,
}  # fmt: skip


# Arguments that stand without a flag, or take several values: verb -> name -> how to parse it.
PLAIN: dict[str, dict[str, dict[str, Any]]] = {
    "train": {"features": {"help": "a feature folder, an .npz file with `features` and `labels`, or a suite's name"}},
    "evaluate": {
        "runs": {"nargs": "+", "metavar": "RUN", "help": "run folders that train wrote"},
        "--shift": {"nargs": "+", "metavar": "NAME=FEATURES", "help": "shifted sets with the same labels"},
        "--ood": {"nargs": "+", "metavar": "NAME=FEATURES", "help": "sets with other labels"},
        "--groups": {"nargs": "+", "metavar": "NAME=FEATURES", "help": "labelled sets with groups"},
    },
    "list": {"what": {"choices": LISTS, "help": ", ".join(LISTS)}},
    "bench": {"--cases": {"nargs": "+", "metavar": "CASE", "help": "which cases; by default all of them"}},
}


def build_parser() -> ArgumentParser:
    """The parser of all verbs."""
    return parser.build(VERBS, EXAMPLES, PLAIN)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    given = [parser.underscored(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    try:
        options = build_parser().parse_args(given)
    except UnicodeDecodeError as error:
        parser.fail(f"--config must be a YAML file in UTF-8; it is not ({error.reason}): save it as UTF-8")
    verb = options.verb
    arguments = options[verb].as_dict()
    arguments.pop("config", None)
    try:
        VERBS[verb](**arguments)
    except DissensusError as error:
        parser.fail(str(error))
    except KeyboardInterrupt:
        hint = "; the same command goes on from here" if verb in ("train", "demo") else ""
        print(f"\ndissensus: stopped{hint}", file=sys.stderr)
        return 130
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        parser.fail("there is too little memory for this: use fewer members, a smaller batch or a smaller tail")
    except OSError as error:
        if error.errno not in USERS_OWN:
            raise
        parser.fail(f"{error.strerror}: {error.filename or 'a file'}; check the path, its rights and the space left")
    return 0


def _say(message: str) -> None:
    print(message, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
