"""How a run was trained: its settings, and the commands that repeat it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from dissensus._core.errors import DissensusError
from dissensus._core.options import combine, given
from dissensus.models import tails
from dissensus.report.sources import EvaluatedRun
from dissensus.training import adaptation as adaptations
from dissensus.training.methods import METHODS
from dissensus.training.options import FULL_BYTES, MEMBERS, Hyperparameters, Settings, Task, TrainOptions
from dissensus.training.run import Run


def configuration(entry: EvaluatedRun) -> list[tuple[str, str]]:
    """Every setting of a run, nested ones by dotted name."""
    return [("folder", str(entry.run.folder)), *_flat(entry.run.settings)]


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{before}{key}.")
        else:
            rows.append((before + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return rows


def commands(entry: EvaluatedRun) -> list[str]:
    """Train, or adapt, perhaps join, and evaluate, with the settings that differ from the defaults.

    FEATURES is the training set, LABELLED what `adapt` was given.
    """
    out = shlex.quote(str(entry.run.folder))
    parts = [Run.open(folder) for folder in entry.run.parts.values()]
    made = [_made(run) for run in parts or [entry.run]]
    if parts:
        places = " ".join(shlex.quote(str(part.folder)) for part in parts)
        made.append(f"dissensus join {places} --out {out}")
    return [*made, f"dissensus evaluate {out} --suite {shlex.quote(entry.evaluation.about.suite)}"]


def _made(run: Run) -> str:
    """The command that trained or adapted a run."""
    adaptation = adaptations.read(run)
    if adaptation is not None:
        by = "" if adaptation.by == "auto" else f"--by {adaptation.by} "
        made = [f"dissensus adapt {shlex.quote(adaptation.run or 'RUN')} --labelled LABELLED {by}".rstrip()]
    else:
        flags = (f"--{flag.replace('_', '-')} {value}" for flag, value in changes(run.settings))
        made = ["dissensus train FEATURES", *flags]
    return " ".join([*made, f"--out {shlex.quote(str(run.folder))}"])


def changes(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flags of train whose values are not the ones it would choose by itself."""
    method, members = settings["method"], settings["members"]
    flags = [("method", method)]
    if members != (METHODS[method].members or MEMBERS if method in METHODS else None):
        flags.append(("members", members))
    flags += _tail(settings)
    tail = settings.get("tail") or {}
    task = Task(settings["samples"], tail.get("name"), tail.get("features"))
    flags += given(
        _shortest(Settings(**{field.name: settings[field.name] for field in fields(Settings)}), task)
    ).items()
    if settings["precision"] != "32-true":
        flags.append(("precision", settings["precision"]))
    if settings.get("disagreement"):
        flags.append(("disagreement", "DISAGREEMENT"))
    return [(flag, shlex.quote(str(value))) for flag, value in flags]


def _shortest(settings: Settings, task: Task) -> TrainOptions:
    """The options that lead to these settings, with as many defaults among them as possible."""
    options = TrainOptions(**{field.name: getattr(settings, field.name) for field in fields(Hyperparameters)})
    # the size of the files, which decides how to shuffle, is not recorded: name it unless the set is surely small
    large = settings.shuffle == "blocks" or 4 * task.samples * (task.width or 1) > FULL_BYTES
    for field in fields(Hyperparameters):
        if field.name == "shuffle" and large:
            continue
        with suppress(DissensusError):  # a default that does not go with the others
            shorter = combine(TrainOptions, options, {field.name: field.default})
            if shorter.resolve(settings.method, settings.members, task, settings.precision) == settings:
                options = shorter
    return options


def _tail(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The tail and its norm, where train would choose others by itself."""
    tail, about = settings.get("tail") or {}, settings.get("backbone") or {}
    if not tail:  # a custom module
        return []
    name, norm, flags = tail["name"], tail.get("norm"), []
    cut_off = about.get("tail", {}) if about.get("layers", 1) > 1 else {}
    if {**cut_off, "classes": tail["classes"], "norm": norm} == tail:
        usual: str | None = "none"  # the tail that train takes by itself, perhaps with another norm
    else:
        flags = [] if name == "linear" and not cut_off else [("tail", name)]
        usual = tails.default_norm(name) if name in tails.TAILS else None
    return flags if norm in (None, usual) else [*flags, ("norm", norm)]
