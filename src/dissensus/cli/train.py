"""dissensus train: an ensemble from features."""

from __future__ import annotations

import shlex
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.command import Flags, Given, command, say
from dissensus.cli.options import DeviceOptions
from dissensus.training.methods import DEFAULT_METHOD
from dissensus.training.options import TrainOptions


@command(
    "train",
    "dissensus train digits --method sed-a2d --label-smoothing 0.1 --lr 2e-3 --batch-size 64 --out runs/mine",
    training=Flags(TrainOptions),
    devices=Flags(DeviceOptions),
)
def train(
    features: str,
    *,
    out: str,
    method: str = DEFAULT_METHOD,
    members: int | None = None,
    tail: str | None = None,
    norm: str | None = None,
    init: Literal["random", "pretrained"] = "random",
    disagreement: str | None = None,
    progress: bool = True,
    training: Given,
    devices: Given,
) -> None:
    """Train an ensemble on features. If it is killed or stopped, the same command continues.

    Args:
        features: a feature folder, an .npz file with arrays named features and labels, or the name of a suite.
        out: the run folder to write, one per run.
        method: a row of the paper's tables: dissensus list methods.
        members: how many members; by default 5, for single 1.
        tail: the layers that every member owns: linear, mlp as in the paper, conv, or backbone for those that were cut
            off; by default these if they are more than the classifier, else linear.
        norm: what the tail does to features first: l2, layer or none; by default l2 for linear, none for the others.
        init: how members start: random, as in the paper, or from the backbone's weights where they fit.
        disagreement: for a2d and divdis, a folder or .npz of features to disagree on; a suite has its own.
        progress: show a progress bar when stderr is a terminal.
    """
    from dissensus.cli import inputs
    from dissensus.training import METHODS, fit, new_ensemble
    from dissensus.training.options import MEMBERS

    recipe = METHODS[method]
    if not features or not out:
        raise DissensusError("features and --out must name something; got an empty name")
    options = TrainOptions(**training)
    train_set, suite = inputs.find_features(features)
    other = None if disagreement is None else inputs.find_features(disagreement)[0]
    if other is None and suite is not None and recipe.takes_set:
        other = suite.disagree_on
    count = members if members is not None else recipe.members or MEMBERS
    ensemble = new_ensemble(train_set, count, tail=tail, norm=norm, init=init, seed=options.seed)
    fabric = inputs.launch(**devices)
    with inputs.first_speaks(fabric):
        fit(ensemble, train_set, method, options, disagreement=other, out=out, progress=progress, fabric=fabric)
    if fabric.is_global_zero:
        how = "--id FEATURES --ood NAME=FEATURES" if suite is None else f"--suite {features}"
        say(f"trained {count} members by {method}; evaluate them with: dissensus evaluate {shlex.quote(out)} {how}")
        print(out)
