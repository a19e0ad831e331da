"""dissensus train: an ensemble from features."""

from __future__ import annotations

import shlex
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus._core.terminal import show
from dissensus.cli.command import Flags, Given, command, hold, say
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
    images: str | None = None,
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
        disagreement: for a2d and divdis, and for SED besides the hard samples: a folder or .npz of features to disagree
            on, or self for jigsaws of the training images; a suite has its own for a2d and divdis.
        images: with --disagreement self, the images that the features were extracted from, as for extract.
        progress: show a progress bar when stderr is a terminal.
    """
    from dissensus._core.files import check_output
    from dissensus.cli import inputs
    from dissensus.images import ImageSet
    from dissensus.training import METHODS, fit, new_ensemble
    from dissensus.training.options import MEMBERS
    from dissensus.training.run import writing_run

    recipe = METHODS[method]
    if not features or not out or images == "":
        raise DissensusError("features, --out and --images must name something; got an empty name")
    if images is not None and disagreement != inputs.SELF:
        raise DissensusError("--images are for --disagreement self; got them without: leave them out, or add it")
    inputs.check_takes_set([method], disagreement)
    check_output(out)
    options = TrainOptions(**training)
    train_set, suite = inputs.find_features(features)
    count = members if members is not None else recipe.members or MEMBERS
    ensemble = new_ensemble(train_set, count, tail=tail, norm=norm, init=init, seed=options.seed)
    fabric = inputs.launch(**devices)
    with inputs.first_speaks(fabric):
        hold(writing_run(out, fabric))
        known = ImageSet.find(images) if images is not None else None if suite is None else suite.train_images
        other = inputs.find_disagreement(
            disagreement, train_set, known, "add --images DIR", progress=progress, fabric=fabric
        )
        if other is None and suite is not None and recipe.takes_set:
            other = suite.disagree_on
        fit(ensemble, train_set, method, options, disagreement=other, out=out, progress=progress, fabric=fabric)
    if fabric.is_global_zero:
        how = "--id FEATURES --ood NAME=FEATURES" if suite is None else f"--suite {features}"
        say(f"trained {count} members by {method}; evaluate them with: dissensus evaluate {shlex.quote(out)} {how}")
        show(out)
