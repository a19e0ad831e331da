"""dissensus extract: images through a frozen backbone into a feature folder."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say, share

EXAMPLE = "dissensus extract photos --backbone lite0 --out features/photos"
PLAIN: Arguments = {
    "images": {
        "help": "a folder of class folders, a flat folder, a list (.txt), a table (.csv), a tar or a folder of tars"
    },
    "--group_columns": {"nargs": "+", "metavar": "COLUMN", "help": "columns of a table whose combinations are groups"},
    "--only": {"nargs": "+", "metavar": "COLUMN=VALUE", "help": "rows of a table to keep"},
}


def extract_images(
    images: str,
    out: str,
    backbone: str = "lite0",
    weights: str | None = None,
    layers: int = 2,
    size: int | None = None,
    crop: float | None = None,
    classes_of: str | None = None,
    unlabelled: bool = False,
    base: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    group_columns: list[str] | None = None,
    only: list[str] | None = None,
    shrink: int | None = None,
    augment: int = 0,
    corruption: str | None = None,
    severity: int = 1,
    seed: int = 0,
    batch_size: int = 64,
    workers: int | None = None,
    engine: Literal["eager", "onnx"] = "eager",
    dtype: Literal["float16", "float32"] = "float16",
    shard_images: int = 4096,
    max_bad: str = "1%",
    strict: bool = False,
    progress: bool = True,
    accelerator: str = "auto",
    devices: int = 1,
    num_nodes: int = 1,
    precision: str = "32-true",
) -> None:
    """Run images through a frozen backbone once and keep the features. Killed or stopped, the same command goes on.

    Images that cannot be read are left out, counted, and listed in OUT/bad.tsv.

    Args:
        images: where they are.
        out: the feature folder to write.
        backbone: lite0, lite1, lite2 (weights by pip), or any name that timm knows: dissensus list backbones.
        weights: a local file (safetensors, or a pickle of tensors), or random; by default the pretrained ones.
        layers: how much of the backbone every member will own: 1, the classifier; 2, the layer before it too.
        size: pixels a side; by default what the weights were trained for.
        crop: share of the shorter side that is seen; by default what the weights were tested with.
        classes_of: number the labels as in this feature folder: that of the training set.
        unlabelled: take every image beneath, whatever its folder, without a label.
        base: folder of the paths in a list or table; by default its own.
        image_column: the column of a table that names the images.
        label_column: the column of a table that holds the labels.
        group_columns: columns of a table whose combinations are groups.
        only: rows of a table to keep, each as COLUMN=VALUE.
        shrink: first make larger images this small (the shorter side), lest sharpness tell a set apart.
        augment: store so many passes of random crops and flips instead of the centre; training takes one an epoch.
        corruption: one of the 15 of ImageNet-C.
        severity: of the corruption, 1 to 5.
        seed: decides crops, flips and corruptions.
        batch_size: images at once through the trunk.
        workers: processes that read images; by default one a core, at most 8.
        engine: how the trunk runs: eager PyTorch, or onnx, which is faster on CPUs.
        dtype: of the features on disk.
        shard_images: images a shard; a kill costs the shard in flight at most.
        max_bad: share of images that may be unreadable, such as 1% or 0.01.
        strict: fail at the first unreadable image.
        progress: show a progress bar when stderr is a terminal.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        devices: processes on this machine, which share the work.
        num_nodes: machines.
        precision: 32-true or bf16-mixed.
    """
    from dissensus import backbones
    from dissensus.cli import inputs
    from dissensus.features import FeatureSet, check_backbone
    from dissensus.features._extract import extract as run
    from dissensus.images import ImageSet

    if not images or not out:
        raise DissensusError("images and --out must name something; got an empty name")
    allowed = share("--max-bad", max_bad)
    rows = inputs.pairs("--only", only or [])
    named = None if classes_of is None else FeatureSet.open(classes_of)
    found = ImageSet.find(
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
        found = found.shrunk(shrink)
    made = backbones.create(backbone, weights, layers, size=size, crop=crop)
    if named is not None:
        check_backbone(made.describe(), named, f"--classes-of {classes_of}")
    fabric = inputs.launch(accelerator, devices, num_nodes, precision)
    if fabric.is_global_zero:
        inputs.announce(found, made, layers, max(1, augment), dtype)
    begun = Path(out).is_dir() and any(Path(out).iterdir())
    start = time.monotonic()
    with inputs.first_speaks(fabric):
        features = run(
            found, made, out, augment=augment, corruption=corruption, severity=severity, seed=seed,
            batch_size=batch_size, workers=workers, engine=engine, dtype=dtype, shard_images=shard_images,
            max_bad=allowed, strict=strict, progress=progress, fabric=fabric,
        )  # fmt: skip
    if fabric.is_global_zero:
        seconds, bad = time.monotonic() - start, features.provenance["bad"]
        rate = "" if begun else f" ({len(features) / seconds:.0f} a second)"  # some were there already
        told = f"; {bad} could not be read: {Path(out) / 'bad.tsv'}" if bad else ""
        say(f"features of {len(features):,} images in {seconds:.0f} s{rate}{told}")
        if features.labels is not None:
            say(f"train on them with: dissensus train {shlex.quote(out)} --out runs/mine")
        print(out)
