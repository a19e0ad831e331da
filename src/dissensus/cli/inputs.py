"""What the command line names: features, the sets to evaluate on, the devices to run on."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException

from dissensus import suites
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.backbones import Backbone
from dissensus.cli.command import say
from dissensus.cli.options import DeviceOptions
from dissensus.evaluation.suite import Role, Suite, SuiteSet
from dissensus.features import FeatureSet
from dissensus.features.store import Store
from dissensus.images import ImageSet, walk
from dissensus.training.methods import METHODS
from dissensus.training.run import Run

SELF = "self"  # as a disagreement set: views of the training images themselves


def find_features(where: str) -> tuple[FeatureSet, Suite | None]:
    """Return the features that the user named, and the suite if it was the name of one.

    Args:
        where: a feature folder, an .npz file, or the name of an embedded suite, for its training set.
    """
    path = Path(where)
    if path.is_dir() and not Store(path).finished and next(walk([where]), None) is not None:
        raise DataError(
            f"features are expected; {where} is a folder of images: extract them first with "
            f"dissensus extract {shlex.quote(where)} --out FEATURES"
        )
    if path.exists() or os.sep in where or path.suffix == ".npz":
        return FeatureSet.open(path), None
    if where not in suites.SUITES and not suites.needs_root(where):
        raise UnknownNameError("features (neither a folder, an .npz file nor a suite)", where, suites.SUITES)
    if suites.needs_root(where):
        raise DissensusError(
            f"{where} is a suite of images: train on it with dissensus run --suite {where} --root DIR, or give the "
            "features that dissensus extract wrote"
        )
    suite = suites.load(where)
    return suite.train, suite


def find_disagreement(
    which: str | None, train: FeatureSet, images: ImageSet | None, lacking: str, **options: Any
) -> FeatureSet | None:
    """Return the disagreement set that the user named.

    Args:
        which: `SELF`, a feature folder or an .npz file; None: none.
        train: the training set, for `SELF`.
        images: the images of the training set, row by row; None if they are not known.
        lacking: the remedy where they are not.
        options: of `destroyed_views`.
    """
    if which is None:
        return None
    if which != SELF:
        return find_features(which)[0]
    if images is None:
        raise DissensusError(f"--disagreement {SELF} makes views of the training images; there are none: {lacking}")
    from dissensus.suites.destroyed import destroyed_views

    return destroyed_views(train, images, **options)


def check_takes_set(methods: Sequence[str], disagreement: str | None) -> None:
    """Raise if a disagreement set was given and no method takes one, before it is extracted."""
    if disagreement is not None and not any(name in METHODS and METHODS[name].accepts_set for name in methods):
        raise DissensusError(
            f"{', '.join(methods)} take no disagreement set; got --disagreement {disagreement}: leave it out, or use "
            "a2d, divdis or SED"
        )


def load_suite(
    name: str, run: Run, root: str | None, features: str | None, load: Callable[..., Suite] = suites.load
) -> Suite:
    """Load a suite through the backbone of a run, split as in its training.

    Splits depend on the seed: with another one, the test and held-out sets would have training images of the run. A
    suite that the run was not trained on is loaded with seed 0.
    """
    options = suite_options(run, name, root, features)
    for seed in dict.fromkeys([run.settings["seed"], 0]):
        suite = load(name, seed=seed, **options)
        if (suite.train.images or suite.train.fingerprint) in (run.settings["images"], run.settings["train"]):
            break
    return suite


def held_out(run: str, suite: str, root: str | None, features: str | None) -> FeatureSet:
    """Return the held-out set of a suite, through the backbone of a run."""
    loaded = load_suite(suite, Run.open(run), root, features)
    if loaded.held_out is None:
        raise DataError(f"suite {suite} has no held-out set to calibrate on: give ID samples with --id")
    return loaded.held_out


def find_sets(
    suite: str | None,
    inside: str | None,
    others: Mapping[Role, Sequence[str] | None],
    held_out: str | None,
    load: Callable[[str], Suite],
) -> tuple[list[SuiteSet], FeatureSet | None]:
    """Return the sets of a suite, loaded by `load`, or those that NAME=FEATURES flags give; and the held-out set."""
    if (suite is None) == (inside is None):
        got = "neither" if suite is None else "both"
        raise DissensusError(f"evaluate needs either --suite NAME or --id FEATURES; got {got}")
    kept = None if held_out is None else find_features(held_out)[0]
    if suite is not None:
        given = ", ".join(f"--{role}" for role, entries in others.items() if entries)
        if given:
            raise DissensusError(f"a suite has its own sets; got --suite with {given}: use --id with those")
        loaded = load(suite)
        return list(loaded.sets), kept or loaded.held_out
    sets = [SuiteSet("id", "id", find_features(cast(str, inside))[0])]
    for role, entries in others.items():
        for entry in entries or []:
            name, separator, where = entry.partition("=")
            if not (name and separator and where):
                raise DissensusError(
                    f"--{role} takes NAME=FEATURES; got {entry!r}: write --{role} NAME={where or name}"
                )
            sets.append(SuiteSet(name, role, find_features(where)[0]))
    return sets, kept


def pairs(flag: str, entries: Sequence[str]) -> dict[str, str]:
    """Split COLUMN=VALUE entries, by column."""
    values: dict[str, str] = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not (name and separator):
            raise DissensusError(f"{flag} takes COLUMN=VALUE; got {entry!r}: write {flag} {name or 'COLUMN'}=VALUE")
        values[name] = value
    return values


def suite_options(run: Run, suite: str | None, root: str | None, features: str | None) -> dict[str, Any]:
    """Return the options to load a suite that a run can be evaluated on: through its backbone."""
    asked = {"root": root, "features": features}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if options and suite is None:
        raise DissensusError(
            f"--root and --features are about a suite; got {', '.join(options)} without --suite: add it"
        )
    about = run.settings.get("backbone")
    if suite == "digits" and about is None:
        return {**options, "backbone": "pixels"}
    accepted = () if suite is None else suites.accepted_options(suite)
    if about is not None and (accepted is None or "backbone" in accepted):
        weights = None if about["weights"] in ("package", "hub") else about["weights"]
        options |= {name: about[key] for name, key in (("backbone", "name"), ("layers", "layers"), ("size", "size"))}
        options |= {"crop": about["crop"], "engine": about.get("engine", "eager")}
        options |= {} if weights is None else {"weights": weights}
    return options


@contextmanager
def first_speaks(fabric: Fabric) -> Iterator[None]:
    """Report an error that all processes meet once, by the first process."""
    try:
        yield
    except (DissensusError, KeyboardInterrupt) as error:
        if fabric.is_global_zero:
            raise
        # with another exit code Fabric might kill the first process before it prints
        raise SystemExit(0) from error


def announce(images: ImageSet, backbone: Backbone, layers: int, passes: int, dtype: str) -> None:
    """Print what is about to be extracted, and how large the features will be."""
    each = math.prod(backbone.shape) * (2 if dtype == "float16" else 4)
    labels = "unlabelled" if images.labels is None else f"{len(images.classes)} classes"
    say(
        f"{len(images):,} images ({labels}) through {backbone.name} at {backbone.transform.size} px: features "
        f"{'x'.join(map(str, backbone.shape))}, {each * len(images) * passes / 1e6:,.1f} MB in all"
    )
    if images.labels is not None and len(images.classes) < 2:
        say(f"there is one class only, {images.classes[0]!r}: training needs two, so use this as an ood set")
    if backbone.layers < layers:
        say(
            f"{backbone.name} has no layer before its classifier that can be cut off alone: members own the classifier "
            "(layers 1)"
        )


def launch(**devices: Any) -> Fabric:
    """Launch Lightning Fabric on the devices asked for, by the fields of `DeviceOptions`."""
    options = DeviceOptions(**devices)
    try:
        fabric = Fabric(**asdict(options))
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(
            f"cannot run on accelerator={options.accelerator}, devices={options.devices}: {reason}"
        ) from error
    fabric.launch()
    return fabric
