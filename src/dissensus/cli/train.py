"""dissensus train: an ensemble from features."""

from __future__ import annotations

import shlex
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say

EXAMPLE = "dissensus train digits --method sed-a2d --diversity 0.5 --epochs 30 --out runs/mine"
PLAIN: Arguments = {
    "features": {"help": "a feature folder, an .npz file with `features` and `labels`, or a suite's name"},
}


def train(
    features: str,
    out: str,
    method: str = "sed-a2d",
    members: int | None = None,
    tail: str | None = None,
    init: Literal["random", "pretrained"] = "random",
    diversity: float | None = None,
    active: int | None = None,
    main: Literal["active", "all"] = "active",
    hardness: Literal["active", "all"] = "active",
    epochs: int | None = None,
    member_epochs: int = 10,
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
        tail: the layers that every member owns: linear, mlp as in the paper, conv, or backbone for those that were cut
            off; by default these where they are more than the classifier, else linear.
        init: how members start: random, as in the paper, or with the backbone's weights where they fit.
        diversity: weight of the disagreement term, the paper's lambda; by default 0.1 where there is one.
        active: members drawn for a batch; by default 2 for SED and two-stage, all for the others.
        main: who learns the labels in a step: the active members, or all as the paper writes it.
        hardness: whose mean logits judge a sample: the active members', or all members' as the paper writes it.
        epochs: passes over the training set; by default as many as give every member `member_epochs`.
        member_epochs: passes over the training set per member.
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
    from dissensus.cli import inputs
    from dissensus.experiments.pipeline import new_ensemble
    from dissensus.training import methods
    from dissensus.training._fit import fit

    recipe = methods.METHODS[method]
    if not features or not out:
        raise DissensusError("features and --out must name something; got an empty name")
    given, suite = inputs.find_features(features)
    where = None if disagreement is None else inputs.find_features(disagreement)[0]
    if where is None and suite is not None and recipe.takes_set:
        where = suite.disagreement
    count = members if members is not None else recipe.members or 5
    ensemble = new_ensemble(given, count, tail=tail, init=init, seed=seed)
    fabric = inputs.launch(accelerator, devices, num_nodes, precision)
    with inputs.first_speaks(fabric):
        fit(
            ensemble, given, method, diversity=diversity, active=active, main=main, hardness=hardness, epochs=epochs,
            member_epochs=member_epochs,
            lr=lr, batch_size=batch_size, weight_decay=weight_decay, label_smoothing=label_smoothing,
            optimizer=optimizer, schedule=schedule, clip=clip, disagreement=where, confidence=confidence,
            seed=seed, out=out, resume=resume, checkpoint_seconds=checkpoint_seconds,
            log_every=log_every, tensorboard=tensorboard, progress=progress,
            fabric=fabric,
        )  # fmt: skip
    if fabric.is_global_zero:
        how = "--id FEATURES --ood NAME=FEATURES" if suite is None else f"--suite {features}"
        say(f"trained {count} members by {method}; evaluate them with: dissensus evaluate {shlex.quote(out)} {how}")
        print(out)
