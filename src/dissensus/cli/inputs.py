"""What the command line names: features, the sets to judge on, the devices to run on."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException

from dissensus import suites
from dissensus.errors import DataError, DissensusError, UnknownNameError
from dissensus.evaluate import Role, Suite, SuiteSet
from dissensus.features import FeatureSet
from dissensus.settings import PRECISIONS


class Judges(NamedTuple):
    """What to judge runs on."""

    sets: list[SuiteSet]
    families: dict[str, str]
    held_out: FeatureSet | None


def find_features(where: str) -> tuple[FeatureSet, Suite | None]:
    """A feature folder, an .npz file, or the training set of a suite by name (and then that suite)."""
    path = Path(where)
    if path.suffix == ".npz":
        return _npz(path), None
    if path.exists() or os.sep in where:
        return FeatureSet.open(path), None
    if where not in suites.SUITES:
        raise UnknownNameError("features (neither a folder, an .npz file nor a suite)", where, suites.SUITES)
    suite = suites.load(where)
    return suite.train, suite


def _npz(path: Path) -> FeatureSet:
    if not path.is_file():
        raise DataError(f"no such file: {path}; give an .npz with arrays `features` and `labels`, or a feature folder")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} cannot be read as .npz: damaged, or no arrays; write it with numpy.savez") from error
    if "features" not in found:
        names = ", ".join(found) or "none"
        raise DataError(f"{path} must hold `features` (N, D) and, where labelled, `labels` (N,); it holds {names}")
    return FeatureSet.from_arrays(found["features"], found.get("labels"), groups=found.get("groups"))


def find_judges(
    suite: str | None, inside: str | None, others: Mapping[Role, Sequence[str] | None], held_out: str | None
) -> Judges:
    """The sets of a suite, or those that NAME=FEATURES flags give, by role."""
    if (suite is None) == (inside is None):
        got = "neither" if suite is None else "both"
        raise DissensusError(f"evaluate needs either --suite NAME or --id FEATURES; got {got}")
    kept = None if held_out is None else find_features(held_out)[0]
    if suite is not None:
        given = ", ".join(f"--{role}" for role, entries in others.items() if entries)
        if given:
            raise DissensusError(f"a suite brings its own sets; got --suite with {given}: use --id with those")
        loaded = suites.load(suite)
        return Judges(list(loaded.sets), loaded.families, kept or loaded.held_out)
    found = [SuiteSet("id", "id", find_features(cast(str, inside))[0])]
    for role, entries in others.items():
        for entry in entries or []:
            name, separator, where = entry.partition("=")
            if not (name and separator and where):
                raise DissensusError(
                    f"--{role} takes NAME=FEATURES; got {entry!r}: write --{role} NAME={where or name}"
                )
            found.append(SuiteSet(name, role, find_features(where)[0]))
    return Judges(found, {}, kept)


def pairs(flag: str, entries: Sequence[str]) -> dict[str, str]:
    """COLUMN=VALUE entries by column."""
    found: dict[str, str] = {}
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not (name and separator):
            raise DissensusError(f"{flag} takes COLUMN=VALUE; got {entry!r}: write {flag} {name or 'COLUMN'}=VALUE")
        found[name] = value
    return found


def launch(accelerator: str, devices: int, num_nodes: int, precision: str) -> Fabric:
    """Lightning Fabric on the devices asked for, launched."""
    if devices < 1 or num_nodes < 1:
        raise DissensusError(f"devices and num_nodes must be at least 1; got devices={devices}, num_nodes={num_nodes}")
    if precision not in PRECISIONS:
        raise DissensusError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")
    try:
        fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=num_nodes, precision=precision)  # type: ignore[arg-type]
    except (ValueError, RuntimeError, ImportError, MisconfigurationException) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(f"cannot run on accelerator={accelerator}, devices={devices}: {reason}") from error
    fabric.launch()
    return fabric
