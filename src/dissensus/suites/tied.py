"""The suite `pacs-tied`: two classes of PACS, each of them in one style in all training images.

    suite = suites.load("pacs-tied", root="data")                                # elephant photos, giraffe sketches
    suite = suites.load("pacs-tied:dog-art+horse-cartoon", root="data")          # any two classes in any two styles
    all_pairs = [suites.load(f"pacs-tied:{pair}", root="data") for pair in suites.PAIRS]

Style and class predict the label equally well in training. The groups, class x style, show which of them members use.
Features are extracted once per style, whatever pairs are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dissensus._core.errors import DataError, DissensusError, UnknownNameError, some
from dissensus._core.places import place
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.images import ImageSet

if TYPE_CHECKING:
    from dissensus.backbones import Backbone
    from dissensus.suites._locate import Status

PathLike = str | os.PathLike[str]

NAME = "pacs-tied"
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
STYLES = {"photo": "photo", "art": "art_painting", "cartoon": "cartoon", "sketch": "sketch"}  # style -> folder
PAIRS = tuple(f"{a}-photo+{b}-sketch" for a, b in zip(CLASSES, CLASSES[1:] + CLASSES[:1], strict=True))
"""Seven pairs by a rule: each class is tied to photos once, and the next one of the alphabet to sketches."""
DEFAULT = "elephant-photo+giraffe-sketch"
SUMMARY = "Two classes of PACS, each in its own style in training; a test of all four pairs of class and style."
TRAINING: dict[str, Any] = {"confidence": 0.9}
GET = "unpack PACS (Li et al. 2017) as pacs/photo/dog/..., pacs/art_painting, pacs/cartoon, pacs/sketch"
SETS = ("train", "held-out", "id", "groups", "labels")  # named by their roles
# Shares of a group's images: those of the groups that occur in training, and those of the others.
TIED = {"train": (0.0, 0.5), "held-out": (0.5, 0.6), "test": (0.6, 0.8), "pool": (0.8, 1.0)}
MIXED = {"test": (0.0, 0.5), "pool": (0.5, 1.0)}
LEAST = 10  # images of a group, such that no share is empty


class Pair(NamedTuple):
    """Two classes, sorted by name, and the style that each is tied to."""

    classes: tuple[str, str]
    styles: tuple[str, str]

    @property
    def name(self) -> str:
        """Such as elephant-photo+giraffe-sketch."""
        return "+".join(map("-".join, zip(*self, strict=True)))

    @classmethod
    def parse(cls, text: str) -> Pair:
        """Read CLASS-STYLE+CLASS-STYLE.

        Raises:
            DissensusError: If it is not of this form, or its classes or styles are unknown or equal.
        """
        parts = [part.partition("-") for part in text.split("+")]
        if len(parts) != 2 or not all(dash for _, dash, _ in parts):
            raise DissensusError(f"a pair of {NAME} is CLASS-STYLE+CLASS-STYLE, such as {DEFAULT}; got {text!r}")
        for name, _, style in parts:
            if name not in CLASSES:
                raise UnknownNameError(f"class of {NAME}", name, CLASSES)
            if style not in STYLES:
                raise UnknownNameError(f"style of {NAME}", style, STYLES)
        (first, _, one), (second, _, other) = sorted(parts)
        if first == second or one == other:
            raise DissensusError(f"a pair of {NAME} has two classes and two styles; got {text!r}: change one of them")
        return cls((first, second), (one, other))


def pair_of(name: str) -> Pair | None:
    """Return the pair of a suite's name; None if it is that of another suite."""
    head, separator, rest = name.partition(":")
    return None if head != NAME else Pair.parse(rest if separator else DEFAULT)


def check(pair: Pair, root: Path) -> list[Status]:
    """Look for the images of a pair: one status per set of the suite."""
    from dissensus.suites._locate import Status

    def all_sets(state: Literal["found", "missing", "unusable"], text: str) -> list[Status]:
        return [Status(name, name, " and ".join(pair.styles), state, text) for name in SETS]

    try:
        images = _grouped(pair, ImageSet.joined(_find(pair, root)))
        rows = split(images, seed=0)
    except FileNotFoundError as error:
        return all_sets("missing", f"{error}: {GET}")
    except DataError as error:
        return all_sets("unusable", str(error))
    return [replace(status, images=len(rows[status.name]), classes=2) for status in all_sets("found", "")]


def load(
    pair: Pair,
    *,
    name: str,
    root: PathLike,
    seed: int = 0,
    features: PathLike | None = None,
    backbone: str | Backbone | None = None,
    weights: PathLike | None = None,
    size: int | None = None,
    crop: float | None = None,
    layers: int | None = None,
    notify: Callable[[str], None] | None = None,
    **options: Any,
) -> Suite:
    """Find the images of a pair, extract their styles and split them.

    Args:
        pair: The classes and their styles in training.
        name: The name of the suite.
        root: The folder that holds pacs/photo/dog/..., or photo/dog/...
        seed: Decides splits.
        features: Folder for the features; None: the user's cache.
        backbone: A name or a backbone; None: lite0.
        weights: A local file; None: the pretrained weights.
        size: Pixels per side; None: 128.
        crop: Share of the shorter side that is seen; None: 1.
        layers: How many layers each member owns, 1 or 2; None: 1.
        notify: Not called: a pair has no set that may be missing.
        options: Further options of `extract`, but `augment`.

    Raises:
        DataError: If images are missing or too few.
    """
    from dissensus import backbones  # here: listing suites does not wait for timm
    from dissensus.features import FeatureSet
    from dissensus.suites._build import check_outside, extract_sources, readable
    from dissensus.suites._locate import Source

    if options.get("augment"):
        raise DissensusError(f"{NAME} shares features between sets and pairs; got --augment: leave it out")
    try:
        styles = _find(pair, Path(root))
    except FileNotFoundError as error:
        raise DataError(f"suite {NAME} needs the styles of its pair; missing: {error}: {GET}") from error
    split(_grouped(pair, ImageSet.joined(styles)), seed)  # raise for too few images before they are extracted
    if features is not None:
        check_outside(place(features), [Path(root) / each for folder in STYLES.values() for each in _places(folder)])
    if not isinstance(backbone, backbones.Backbone):
        backbone = backbones.create(backbone or "lite0", weights, layers or 1, size=size or 128, crop=crop or 1.0)
    sources = [Source(style, "style", images) for style, images in styles.items()]
    extracted = extract_sources(NAME, sources, backbone, features, seed=seed, **options)
    read = {style: readable(images, extracted[style]) for style, images in styles.items()}
    whole = ImageSet.joined(read)
    images = _grouped(pair, whole)
    position = {name: i for i, name in enumerate(whole.names)}
    values = np.concatenate([extracted[style].rows(slice(None)).numpy() for style in styles])
    first = next(iter(extracted.values()))
    about = {key: value for key, value in first.provenance.items() if key != "images"}
    samples = FeatureSet.from_arrays(
        values[[position[name] for name in images.names]],
        images.labels,
        classes=images.classes,
        groups=images.groups,
        group_names=images.group_names,
        provenance={**about, "bad": 0, "pair": pair.name},
    )
    rows = split(images, seed)
    parts = {part: samples.subset(at) for part, at in rows.items()}
    return Suite(
        name=name,
        summary=f"PACS: {' and '.join(_plural(pair))} in training; the other pairs of class and style in the test.",
        train=parts["train"],
        sets=tuple(SuiteSet(part, part, parts[part], images=images.subset(rows[part])) for part in ("id", "groups")),
        held_out=parts["held-out"],
        pool=parts["labels"].unlabelled(),
        labels=parts["labels"],
        train_images=images.subset(rows["train"]),
    )


def split(images: ImageSet, seed: int) -> dict[str, list[int]]:
    """Return the rows of each set, given images whose groups 0 and 3 are those of training; see `_grouped`.

    The id set has the test images of the tied groups, which are in the groups set as well. All other sets differ.
    """
    assert images.groups is not None
    row = {name: i for i, name in enumerate(images.names)}
    cells = [images.subset(images.groups == group) for group in range(4)]
    shares = (TIED, MIXED, MIXED, TIED)
    sizes = [len(cell.part(*share["pool"], seed)) for cell, share in zip(cells, shares, strict=True)]

    def rows(part: str, groups: tuple[int, ...] = (0, 3)) -> list[int]:
        chosen: list[int] = []
        for group in groups:
            low, high = shares[group][part]
            if part == "pool":  # as many images of every group as the smallest has
                high = min(1.0, low + min(sizes) / len(cells[group]))
            chosen += [row[name] for name in cells[group].part(low, high, seed).names]
        return sorted(chosen)

    everywhere = (0, 1, 2, 3)
    return {
        "train": rows("train"),
        "held-out": rows("held-out"),
        "id": rows("test"),
        "groups": rows("test", everywhere),
        "labels": rows("pool", everywhere),
    }


def _places(folder: str) -> tuple[str, str]:
    return f"pacs/{folder}", folder


def _find(pair: Pair, root: Path) -> dict[str, ImageSet]:
    """Return all images of the styles of a pair; raise FileNotFoundError if there are none."""
    if not root.is_dir():
        raise DissensusError(f"--root must be a folder; {root} is not: check the path")
    styles = {}
    for style in sorted(pair.styles):
        places = _places(STYLES[style])
        found = next((root / each for each in places if (root / each).exists()), None)
        if found is None:
            raise FileNotFoundError(" or ".join(str(root / each) for each in places))
        styles[style] = ImageSet.find(found)
    return styles


def _grouped(pair: Pair, images: ImageSet) -> ImageSet:
    """Return the images of the two classes; groups 0 and 3 are the classes in the styles that they are tied to.

    `images` have class names and, as groups, styles.
    """
    if missing := [name for name in pair.classes if name not in images.classes]:
        raise DataError(
            f"suite {NAME} needs class folders {' and '.join(pair.classes)}; {missing[0]} is not among those there, "
            f"{some(images.classes, 8)}: {GET}"
        )
    assert images.labels is not None
    assert images.groups is not None
    kept = images.subset(np.isin(images.classes, pair.classes)[images.labels]).relabelled(pair.classes)
    assert kept.labels is not None
    assert kept.groups is not None
    style = np.array([pair.styles.index(name) for name in images.group_names])[kept.groups]
    groups = 2 * kept.labels + style
    names = tuple(f"{name}, {style}" for name in pair.classes for style in pair.styles)
    counts = np.bincount(groups, minlength=4)
    if counts.min() < LEAST:
        few = names[int(counts.argmin())]
        raise DataError(
            f"suite {NAME} needs {LEAST} images of every class in every style; there are {counts.min()} of {few}: {GET}"
        )
    return replace(kept, groups=groups, group_names=names)


def _plural(pair: Pair) -> list[str]:
    words = {"art": "paintings", "photo": "photos", "cartoon": "cartoons", "sketch": "sketches"}
    return [f"{name} {words[style]}" for name, style in zip(*pair, strict=True)]
