"""dissensus extract: images through a frozen backbone into a feature folder."""

from __future__ import annotations

import shlex
import time
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus._core.terminal import show
from dissensus.cli.command import Flags, Given, PartOf, command, say
from dissensus.cli.options import BackboneOptions, DeviceOptions
from dissensus.features.options import ExtractOptions


@command(
    "extract",
    "dissensus extract photos --backbone lite0 --out features/photos",
    backbone=Flags(BackboneOptions, "By default lite0 with two layers."),
    extraction=Flags(ExtractOptions),
    devices=Flags(DeviceOptions),
)
def extract(
    images: str,
    *,
    out: str,
    classes_of: str | None = None,
    unlabelled: bool = False,
    base: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    group_columns: list[str] | None = None,
    only: list[str] | None = None,
    shrink: int | None = None,
    random_order: bool = False,
    on: Literal["local", "ray"] = "local",
    part: PartOf | None = None,
    progress: bool = True,
    backbone: Given,
    extraction: Given,
    devices: Given,
) -> None:
    """Run images through a frozen backbone once and keep the features. If it is killed, the same command continues.

    Images that cannot be read are left out, counted, and listed in OUT/bad.tsv.

    Args:
        images: a folder of class folders, a flat folder, a list (.txt), a table (.csv), a tar or a folder of tars; or
            tars that are read as a stream, as a pattern such as 'train-{000..999}.tar'. A path or a URL: s3://, gs://.
        out: the feature folder to write, a path or a URL.
        classes_of: number the labels as in this feature folder, that of the training set.
        unlabelled: take every image in all subfolders, without labels.
        base: folder of the paths in a list or table; by default its own.
        image_column: the column of a table that names the images.
        label_column: the column of a table that holds the labels.
        group_columns: columns of a table whose combinations are groups.
        only: rows of a table to keep, each as COLUMN=VALUE.
        shrink: first shrink larger images to this many pixels (the shorter side), so that a set cannot
            be detected by its sharpness.
        random_order: store the images in random order, by --seed, instead of sorted by class: for training sets of more
            than 4 GiB of features, which are shuffled in blocks of consecutive rows.
        on: local, or ray for the Ray cluster at RAY_ADDRESS; all its nodes must have access to the images and OUT.
        part: write only the K-th of N parts, counted from 1, for job arrays; dissensus merge joins them.
        progress: show a progress bar when stderr is a terminal.
    """
    import numpy as np

    from dissensus import backbones
    from dissensus._core import cluster
    from dissensus.backbones import engines
    from dissensus.cli import inputs
    from dissensus.features import FeatureSet, check_backbone
    from dissensus.features import extract as run
    from dissensus.images import ImageSet, ImageStream, is_stream, standins

    if not images or not out:
        raise DissensusError("images and --out must name something; got an empty name")
    place(out)  # raise for an unknown protocol before anything is listed
    cluster.check(on)
    options = ExtractOptions(**extraction)
    engines.ENGINES.check(options.engine)
    if options.view is not None:
        standins.VIEWS.check(options.view)
    rows = inputs.pairs("--only", only or [])
    named = None if classes_of is None else FeatureSet.open(classes_of)
    image_set: ImageSet | ImageStream
    if is_stream(images):
        inputs.check_stream(images, classes_of, base, image_column, label_column, group_columns, only)
        image_set = ImageStream.find(images, unlabelled=unlabelled)
    else:
        image_set = ImageSet.find(
            images,
            unlabelled=unlabelled,
            base=base,
            image_column=image_column,
            label_column=label_column,
            group_columns=tuple(group_columns or ()),
            only=rows or None,
            classes=None if named is None else named.classes,
        )
    if shrink is not None:
        image_set = image_set.shrunk(shrink)
    if random_order:
        if isinstance(image_set, ImageStream):
            raise DissensusError(
                "--random-order is for images that are listed; a stream is read as it is: leave it out"
            )
        image_set = image_set.subset(np.random.default_rng(options.seed).permutation(len(image_set)))
    choice = {"backbone": "lite0", "layers": 2, **backbone}
    trunk = backbones.create(choice.pop("backbone"), **choice)
    if named is not None:
        check_backbone(trunk.describe(), named, f"--classes-of {classes_of}")
    fabric = inputs.launch(**devices)
    if fabric.is_global_zero:
        inputs.announce(image_set, trunk, choice["layers"], max(1, options.augment), options.dtype)
    begun = place(out).is_dir() and any(place(out).iterdir())
    start = time.monotonic()
    with inputs.first_speaks(fabric):
        features = run(image_set, trunk, out, options, on=on, part=part, progress=progress, fabric=fabric)
    if fabric.is_global_zero:
        seconds, bad = time.monotonic() - start, features.provenance["bad"]
        rate = "" if begun else f" ({len(features) / seconds:.0f} per second)"  # a resumed run has features already
        unread = f"; {bad} could not be read: {place(out) / 'bad.tsv'}" if bad else ""
        say(f"features of {len(features):,} images in {seconds:.0f} s{rate}{unread}")
        if part is not None:
            say(f"join all {part[1]} parts with: dissensus merge PARTS --out FEATURES")
        elif features.has_labels:
            say(f"train on them with: dissensus train {shlex.quote(out)} --out runs/mine")
        show(out)
