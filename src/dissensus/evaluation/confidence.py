"""What to change where the confidence of runs is far from their accuracy, of the options that they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dissensus._core.errors import DissensusError
from dissensus.training.options import Task, TrainOptions

Runs = Sequence[Mapping[str, Any]]  # settings as run.json has them; those that are unknown are left out


def too_high(runs: Runs) -> str:
    """The remedy for confidence above accuracy, as the end of a sentence."""
    stop = any(not run.get("early_stop") for run in runs)
    return ": use more label_smoothing or weight_decay" + (", or stop early" if stop else "")


def too_low(runs: Runs) -> str:
    """The remedy for confidence below accuracy, as the end of a sentence.

    It names the options that lower confidence and that a run has: label smoothing and diversity above 0, and more
    weight decay or fewer epochs than the default.
    """
    usual = [_defaults(run) for run in runs]
    options = [name for name in ("label_smoothing", "weight_decay", "diversity") if _above(name, runs, usual)]
    remedies = [f"use less {' or '.join(options)}".replace(" or ", ", ", len(options) - 2)] if options else []
    if any(run.get("epochs", 0) < each.get("epochs", 1) for run, each in zip(runs, usual, strict=True)):
        remedies.append("train longer")
    if remedies:
        return f": {', or '.join(remedies)}"
    return (
        ", which no option of these runs explains. Thresholds are set on held-out samples, so their false-alarm rate "
        "does not depend on it"
    )


def _above(name: str, runs: Runs, usual: Runs) -> bool:
    """Whether an option of a run is unknown, or above 0 and, of weight decay, above the default."""
    return any(name not in run or run[name] > each.get(name, 0) for run, each in zip(runs, usual, strict=True))


def _defaults(run: Mapping[str, Any]) -> dict[str, Any]:
    """Weight decay and epochs that a run would have by default; none where its settings are unknown."""
    tail = run.get("tail") or {}
    with suppress(DissensusError, KeyError):  # a method that is not registered; settings that are not known
        options = TrainOptions(active=run["active"], main=run["main"], batch_size=run["batch_size"])
        task = Task(run["samples"], tail.get("name"), tail.get("features"))
        settings = options.resolve(run["method"], run["members"], task)
        return {"weight_decay": settings.weight_decay, "epochs": settings.epochs}
    return {}
