"""How a run was made: its exact settings, and the commands that make it again."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dissensus.report.sources import EvaluatedRun
from dissensus.training import methods
from dissensus.training._fit import fit
from dissensus.training.options import DIVERSITY, Settings

SPECIAL = ("method", "members", "active", "diversity")  # whose defaults depend on the method


def configuration(found: EvaluatedRun) -> list[tuple[str, str]]:
    """Every setting of a run, nested ones by dotted name."""
    return [("folder", str(found.run.folder)), *_flat(found.run.settings)]


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            rows += _flat(value, f"{before}{key}.")
        else:
            rows.append((before + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return rows


def commands(found: EvaluatedRun) -> list[str]:
    """Train and evaluate, with the settings that differ from the defaults; FEATURES is the training set."""
    out = shlex.quote(str(found.run.folder))
    train = [
        "dissensus train FEATURES",
        *(f"--{flag.replace('_', '-')} {value}" for flag, value in changes(found.run.settings)),
    ]
    return [
        " ".join([*train, f"--out {out}"]),
        f"dissensus evaluate {out} --suite {shlex.quote(found.evaluation.about.suite)}",
    ]


def changes(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flags of train whose values are not what it would choose by itself."""
    own = methods.METHODS.get(settings["method"])
    members = settings["members"]
    flags = [("method", settings["method"])]
    if members != ((own and own.members) or 5):
        flags.append(("members", members))
    if tail := _tail(settings):
        flags.append(("tail", tail))
    usual = DIVERSITY if own is not None and own.regulariser is not None else 0.0
    if settings["diversity"] != usual:
        flags.append(("diversity", settings["diversity"]))
    if settings["active"] != (min(own.active, members) if own is not None and own.active else members):
        flags.append(("active", settings["active"]))
    defaults = inspect.signature(fit).parameters
    usual_ones = [f.name for f in fields(Settings) if f.name in defaults and f.name not in SPECIAL]
    flags += [(k, settings[k]) for k in usual_ones if k in settings and settings[k] != defaults[k].default]
    if settings.get("precision", "32-true") != "32-true":
        flags.append(("precision", settings["precision"]))
    if settings.get("disagreement"):
        flags.append(("disagreement", "DISAGREEMENT"))
    return [(flag, shlex.quote(str(value))) for flag, value in flags]


def _tail(settings: Mapping[str, Any]) -> str | None:
    """The tail, where train would choose another by itself."""
    own, about = settings.get("tail") or {}, settings.get("backbone") or {}
    cut_off = {**about.get("tail", {}), "classes": own.get("classes")}
    if about.get("layers", 1) > 1:
        return None if own == cut_off else own.get("name")
    return None if own.get("name") in ("linear", None) else own["name"]
