"""The demo: every method on the embedded digits, from features to a table and a page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dissensus import methods, report, suites, tables, tails
from dissensus.ensemble import Ensemble
from dissensus.errors import RunError
from dissensus.evaluate import Suite, evaluate
from dissensus.features import FeatureSet
from dissensus.files import make_folder
from dissensus.runs import Run
from dissensus.train import fit

MEMBERS = 5
PASSES = 20  # how often every member sees the training set


@dataclass(frozen=True)
class _Job:
    """One suite of the demo, and which methods it shows."""

    suite: str
    methods: tuple[str, ...]


JOBS = (
    _Job("digits", tuple(methods.METHODS)),
    _Job("dominoes", ("single", "deep-ensemble", "a2d", "divdis", "sed-a2d")),
)


def settings_for(method: str) -> dict[str, Any]:
    """How the demo trains a method: the same for all, as far as methods allow.

    Members of SED are drawn two at a time, so their epochs are more by as much: everybody makes the same number of
    steps (the first stage of two-stage comes on top). Digits are fitted to the last, where hardness (1 / loss)
    explodes; label smoothing and a small diversity keep it in bounds.
    """
    recipe = methods.get(method)
    chosen: dict[str, Any] = {"epochs": PASSES, "lr": 1e-2, "batch_size": 64, "label_smoothing": 0.1}
    if recipe.active is not None:
        chosen["epochs"] = PASSES * MEMBERS // recipe.active
    if recipe.regulariser is not None:
        chosen["diversity"] = 0.1
    if recipe.disagree_on == "unsure":
        chosen["confidence"] = 0.9
    return chosen


def run_demo(out: Path, *, seed: int = 0, epochs: int | None = None, progress: bool = True) -> str:
    """Train, judge and report everything into `out`; the tables as text for the terminal."""
    make_folder(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # problems this small gain nothing from a second one, and lose minutes on a busy machine
    try:
        return _run_jobs(out, seed, epochs, progress)
    finally:
        torch.set_num_threads(threads)


def _run_jobs(out: Path, seed: int, epochs: int | None, progress: bool) -> str:
    texts, sections = [], []
    for job in JOBS:
        suite = suites.load(job.suite, seed=seed)
        _save_features(suite, out / "features" / suite.name)
        frame = _run_job(job, suite, out, seed, epochs, progress)
        table = tables.summary(frame, suite.families)
        texts.append(f"{suite.name}: {suite.summary}\n\n{tables.as_text(table)}")
        sections.append(report.Section(suite.name, suite.summary, frame, suite.families))
    named = [s.frame.assign(dataset=s.title + "/" + s.frame["dataset"]) for s in sections]
    tables.write(pd.concat(named, ignore_index=True), out / "results.csv")
    report.write(sections, out / "report.html")
    _say(f"wrote {out / 'results.csv'}, {out / 'report.html'} and the trained ensembles beside them")
    return "\n".join(texts)


def _run_job(job: _Job, suite: Suite, out: Path, seed: int, epochs: int | None, progress: bool) -> pd.DataFrame:
    frames = []
    for number, name in enumerate(job.methods, start=1):
        _say(f"{suite.name} {number}/{len(job.methods)}: {name}")
        recipe = methods.get(name)
        chosen = settings_for(name) | ({} if epochs is None else {"epochs": epochs})
        members = recipe.members or MEMBERS
        ensemble = Ensemble(
            tails.create("mlp", suite.train.width, len(suite.train.classes)), members=members, seed=seed
        )
        where = suite.disagreement if recipe.takes_set else None
        folder = out / suite.name / name
        fit(ensemble, suite.train, name, **chosen, disagreement=where, seed=seed, out=folder, progress=progress)
        frames.append(
            evaluate(ensemble, suite.sets, about=Run.open(folder).about, held_out=suite.held_out, progress=progress)
        )
    return pd.concat(frames, ignore_index=True)


def _save_features(suite: Suite, folder: Path) -> None:
    """Leave the features on disk too, to play with: dissensus train OUT/features/digits/train ..."""
    named: dict[str, FeatureSet | None] = {
        "train": suite.train,
        "held-out": suite.held_out,
        "disagreement": suite.disagreement,
    }
    named |= {s.name: s.features for s in suite.sets}
    for name, features in named.items():
        if features is None:
            continue
        if not (folder / name / "index.json").exists():
            features.save(folder / name)
        elif FeatureSet.open(folder / name).provenance != features.provenance:
            raise RunError(f"{folder / name} holds features of another seed or version; choose another --out")


def _say(message: str) -> None:
    print(message, file=sys.stderr)
