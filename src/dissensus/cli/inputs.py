"""What the command line names: features, the sets to evaluate on, the devices to run on."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, cast

from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException

from dissensus import suites
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus._core.places import is_url, place
from dissensus.adaptation import questionnaire
from dissensus.backbones import Backbone
from dissensus.backbones.joined import parts_of
from dissensus.cli.command import hold, say
from dissensus.cli.options import DeviceOptions
from dissensus.cli.ranks import watching
from dissensus.detection.members import Members
from dissensus.evaluation.suite import Role, Suite, SuiteSet, join_suites
from dissensus.features import FeatureSet, JoinedFeatures, check_backbone, is_features
from dissensus.features.joined import open_features, several
from dissensus.images import ImageSet, ImageStream, walk
from dissensus.training.methods import METHODS
from dissensus.training.run import Run

SELF = "self"  # as a disagreement set: views of the training images themselves


def find_features(where: str) -> tuple[FeatureSet, Suite | None]:
    """Return the features that the user named, and the suite if it was the name of one.

    Args:
        where: a feature folder, an .npz file, or the name of an embedded suite, for its training set.
    """
    path = place(where)
    if path.is_dir() and not is_features(where) and _has_images(where):
        raise DataError(
            f"features are expected; {where} is a folder of images: extract them first with "
            f"dissensus extract {shlex.quote(where)} --out FEATURES"
        )
    if is_url(where) or path.exists() or os.sep in where or path.suffix == ".npz":
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


def _has_images(folder: str) -> bool:
    return next(walk([folder]), folder) != folder  # a URL without images is walked as itself


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
    """Load a suite through the backbone of a run, or those of a joined run, split as in its training.

    Splits depend on the seed: with another one, the test and held-out sets would have training images of the run. A
    suite that the run was not trained on is loaded with seed 0.
    """
    options = suite_options(run, name, root, features)
    for seed in dict.fromkeys([run.settings["seed"], 0]):
        suite = join_suites([load(name, seed=seed, **each) for each in options])
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
) -> tuple[list[SuiteSet], FeatureSet | None, Suite | None]:
    """Return the sets of a suite, loaded by `load`, or those that NAME=FEATURES flags give; held-out set and suite."""
    if (suite is None) == (inside is None):
        got = "neither" if suite is None else "both"
        raise DissensusError(f"evaluate needs either --suite NAME or --id FEATURES; got {got}")
    kept = None if held_out is None else _find_test_features(held_out)
    if suite is not None:
        given = ", ".join(f"--{role}" for role, entries in others.items() if entries)
        if given:
            raise DissensusError(f"a suite has its own sets; got --suite with {given}: use --id with those")
        loaded = load(suite)
        return list(loaded.sets), kept or loaded.held_out, loaded
    sets = [SuiteSet("id", "id", _find_test_features(cast(str, inside)))]
    for role, entries in others.items():
        for entry in entries or []:
            name, separator, where = entry.partition("=")
            if not (name and separator and where):
                raise DissensusError(
                    f"--{role} takes NAME=FEATURES; got {entry!r}: write --{role} NAME={where or name}"
                )
            sets.append(SuiteSet(name, role, _find_test_features(where)))
    return sets, kept, None


def _find_test_features(where: str) -> FeatureSet:
    """Return the features that the user named; of several backbones, with commas between them."""
    return cast(FeatureSet, open_features(where)) if several(where) else find_features(where)[0]


def find_pool(where: str) -> FeatureSet | ImageSet:
    """Return samples without their labels: a feature folder, an .npz file, or images as for predict."""
    return _one_set(where) if is_features(where) else ImageSet.find(where, unlabelled=True)


def _one_set(where: str) -> FeatureSet:
    """Open features that ask and adapt take: of one backbone."""
    features = open_features(where)
    if isinstance(features, JoinedFeatures):
        raise DataError(
            f"ask and adapt take features of one backbone; {where} is features of {len(features.parts)}: give those of "
            "the run's backbone"
        )
    return features


def find_labelled(where: str, pool: str | None, members: Members, classes: Sequence[str], progress: bool) -> FeatureSet:
    """Return labelled samples as features: a table that was filled in, images with labels, or features with labels.

    Args:
        where: The table, the images or the features.
        pool: The pool that a table of rows is about.
        members: Those of the run, whose trunk runs over images.
        classes: Names of the run's classes.
        progress: Show a progress bar if stderr is a terminal.

    Raises:
        DataError: If there are no labels, or the samples do not fit the run.
    """
    if questionnaire.is_table(where):
        answers = questionnaire.read(where, classes)
        if answers.paths:
            _check_unused(pool, where)
            return members.encode(answers.paths, progress=progress)[0].labelled(answers.labels)
        if pool is None:
            raise DataError(f"{where} has rows of a pool; it was not given: add --pool and what ask was given")
        source = find_pool(pool)
        chosen = source.subset(questionnaire.choose(answers, source, pool))
        features = chosen if isinstance(chosen, FeatureSet) else members.encode(chosen, progress=progress)[0]
        check_backbone(members.backbone_info, features, pool)
        return features.labelled(answers.labels)
    _check_unused(pool, where)
    if is_features(where):
        features = _one_set(where)
        check_backbone(members.backbone_info, features, where)
        return features
    images = ImageSet.find(where)
    if images.labels is None:
        raise DataError(
            f"adapt needs labels; the images of {where} have none: give class folders, a table with a column label, "
            "or the table of dissensus ask"
        )
    return members.encode(images, progress=progress)[0].labelled([images.classes[c] for c in images.labels.tolist()])


def _check_unused(pool: str | None, where: str) -> None:
    if pool is not None:
        raise DissensusError(f"--pool is for a table of rows; {where} is none, got --pool {pool}: leave it out")


def pairs(flag: str, entries: Sequence[str]) -> dict[str, str]:
    """Split COLUMN=VALUE entries, by column."""
    values: dict[str, str] = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not (name and separator):
            raise DissensusError(f"{flag} takes COLUMN=VALUE; got {entry!r}: write {flag} {name or 'COLUMN'}=VALUE")
        values[name] = value
    return values


def suite_options(run: Run, suite: str | None, root: str | None, features: str | None) -> list[dict[str, Any]]:
    """Return the options to load a suite that a run can be evaluated on, once for each of its backbones."""
    about = run.settings.get("backbone")
    each: list[Mapping[str, Any] | None] = [*parts_of(about)] or [about]
    return [_suite_options(one, suite, root, features) for one in each]


def _suite_options(
    about: Mapping[str, Any] | None, suite: str | None, root: str | None, features: str | None
) -> dict[str, Any]:
    asked = {"root": root, "features": features}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if options and suite is None:
        raise DissensusError(
            f"--root and --features are about a suite; got {', '.join(options)} without --suite: add it"
        )
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


def check_stream(images: str, *others: object) -> None:
    """Raise if an option is given that does not apply to a stream."""
    if any(others):
        raise DissensusError(
            f"{images} is read as a stream, whose labels are beside its images: leave out --classes-of, --base, --only "
            "and the columns"
        )


def announce(images: ImageSet | ImageStream, backbone: Backbone, layers: int, passes: int, dtype: str) -> None:
    """Print what is about to be extracted, and how large the features will be."""
    each = math.prod(backbone.shape) * (2 if dtype == "float16" else 4)
    through = f"through {backbone.name} at {backbone.transform.size} px: features {'x'.join(map(str, backbone.shape))}"
    if isinstance(images, ImageStream):
        say(f"a stream of {len(images):,} shards {through}, {each * passes / 1e3:,.1f} kB per image")
    else:
        labels = "unlabelled" if images.labels is None else f"{len(images.classes)} classes"
        say(f"{len(images):,} images ({labels}) {through}, {each * len(images) * passes / 1e6:,.1f} MB in all")
    if isinstance(images, ImageSet) and images.labels is not None and len(images.classes) < 2:
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
        fabric = Fabric(**{name: value for name, value in asdict(options).items() if name != "rank_timeout"})
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(
            f"cannot run on accelerator={options.accelerator}, devices={options.devices}: {reason}"
        ) from error
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else a process whose peer dies prints a stack of C++
    fabric.launch()
    hold(watching(fabric, options.rank_timeout))
    return fabric
