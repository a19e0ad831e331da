"""Joined runs: finished runs on several backbones as one, in a folder that is a run like any other.

run.json                 settings of the first part, the data of all
ensemble/joined.json     where the parts are; their weights are not copied
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dissensus._core import documents
from dissensus._core.digests import digest
from dissensus._core.errors import RunError, some
from dissensus._core.files import is_temporary, make_folder
from dissensus._core.places import place
from dissensus.backbones import joined as backbones
from dissensus.models import joined as ensembles
from dissensus.training.run import INFO, Data, Run, RunInfo, versions, writing_run

PARTS = "parts"  # the folder of runs that were trained to be joined


def join(
    runs: Sequence[Run | str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    shapes: Sequence[Sequence[int]] | None = None,
) -> Run:
    """Join finished runs on different backbones, or on different layers of one.

    Args:
        runs: Two or more runs, trained on the same images with the same classes. They stay where they are: the joined
            run names them by their relative paths, or by their URLs if they are on other storage.
        out: The folder to write: a new one, one that holds this joined run, or one with nothing but its parts.
        shapes: The shape of one sample's features for each run; None: it is measured, which loads the backbones.

    Returns:
        The joined run; calibrate it before use.

    Raises:
        RunError: If a run is not finished, does not name its backbone, or does not fit the others; or if `out` holds
            something else.
    """
    parts = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    names = check(parts)
    about = [part.settings["backbone"] for part in parts]
    info = _info(parts, about, names)
    with writing_run(out):
        return _write(place(out), parts, names, about, info, shapes)


def _write(
    folder: Path,
    parts: Sequence[Run],
    names: Sequence[str],
    about: Sequence[Mapping[str, Any]],
    info: RunInfo,
    shapes: Sequence[Sequence[int]] | None,
) -> Run:
    """Write the joined run, if it is not there yet."""
    if _holds(folder, info):
        return Run.open(folder)
    if shapes is None:
        shapes = [backbones.restore(each).shape for each in about]
    make_folder(folder)
    places = {name: part.ensemble_folder for name, part in zip(names, parts, strict=True)}
    ensembles.write(folder / "ensemble", places, dict(zip(names, shapes, strict=True)))
    documents.write(folder / INFO, info)  # last: without it there is no run
    return Run.open(folder)


def check(parts: Sequence[Run]) -> tuple[str, ...]:
    """Return a name for each run; raise `RunError` if they cannot be joined."""
    if len(parts) < 2:
        raise RunError(f"join takes two or more runs; got {len(parts)}: add a run on another backbone")
    first = parts[0]
    for part in parts:
        settings = part.settings
        if part.parts:
            raise RunError(f"runs to join are on one backbone each; {part.folder} is joined already: give its parts")
        if settings["backbone"] is None:
            raise RunError(
                f"runs to join must name their backbones; {part.folder} was trained on features without one: extract "
                "the images with dissensus extract and train on that"
            )
        if settings["classes"] != first.settings["classes"]:
            order = set(settings["classes"]) == set(first.settings["classes"])
            reason = "has them in another order" if order else f"has {some(settings['classes'])}"
            raise RunError(
                f"runs to join must have the same classes; {first.folder} has {some(first.settings['classes'])}, "
                f"{part.folder} {reason}: train both on the same classes"
            )
        if (settings["images"], settings["samples"]) != (first.settings["images"], first.settings["samples"]):
            raise RunError(
                f"runs to join must be trained on the same images; those of {part.folder} are not those of "
                f"{first.folder}: train both on one training set, or held-out images of one are known to the other"
            )
    return backbones.part_names([part.settings["backbone"] for part in parts])


def _info(parts: Sequence[Run], about: Sequence[Mapping[str, Any]], names: Sequence[str]) -> RunInfo:
    first = parts[0].info
    each = [part.settings for part in parts]
    method = " + ".join(dict.fromkeys(settings["method"] for settings in each))
    data = Data(
        train=digest([settings["train"] for settings in each]),
        samples=first.data.samples,
        images=first.data.images,
        classes=first.data.classes,
        disagreement=_all_of(each, "disagreement"),
        sample_weight=_all_of(each, "sample_weight"),
        backbone=backbones.JoinedDescription.model_validate_json(json.dumps(backbones.describe(about))),
        tail=None,
        start=digest([settings["start"] for settings in each]),
    )
    return RunInfo(
        status="finished",
        settings={**first.settings, "method": method, "members": sum(settings["members"] for settings in each)},
        data=data,
        versions=versions(),
        notes=tuple(f"{name}: {note}" for name, part in zip(names, parts, strict=True) for note in part.info.notes),
    )


def _all_of(settings: Sequence[Mapping[str, Any]], name: str) -> str | None:
    values = [each[name] for each in settings]
    return None if all(value is None for value in values) else digest(values)


def _holds(folder: Path, info: RunInfo) -> bool:
    """Whether a folder holds this joined run already; raise if it holds something else."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"the output must be a folder; {folder} is a file: choose another --out")
    if (folder / INFO).is_file():
        there = Run.join(folder)
        if there.info.data == info.data and there.info.settings == info.settings:
            return _complete(there)
        raise RunError(f"{folder} holds another run; choose another --out, or remove it yourself")
    inside = [path.name for path in folder.iterdir()] if folder.exists() else []
    if any(name not in (PARTS, "ensemble") and not is_temporary(name) for name in inside):
        raise RunError(f"{folder} holds files that are not of a run; choose another --out, or empty it yourself")
    return False


def _complete(run: Run) -> bool:
    """Whether the parts of a joined run are where it names them, unchanged."""
    try:
        return bool(run.parts) and len(ensembles.JoinedEnsemble.load(run.ensemble_folder)) > 0
    except RunError:
        return False


def check_free(folder: Path, names: Sequence[str]) -> None:
    """Raise `RunError` if a folder holds a run that does not join these backbones: before the work, not after it."""
    if (folder / INFO).is_file() and tuple(Run.join(folder).parts) != tuple(names):
        raise RunError(
            f"{folder} holds a run that does not join {' and '.join(names)}; choose another --out, or remove it "
            "yourself"
        )
