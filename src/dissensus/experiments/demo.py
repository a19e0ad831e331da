"""The demo: every method on the embedded digits, from images to a table and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dissensus import report, suites
from dissensus._core.files import make_folder
from dissensus.experiments import pipeline
from dissensus.training import methods

MEMBERS = 5


@dataclass(frozen=True)
class _Job:
    """One suite of the demo, and how it is shown."""

    suite: str
    methods: tuple[str, ...]
    tail: str


JOBS = (
    _Job("digits", tuple(methods.METHODS), "linear"),
    _Job("dominoes", ("single", "deep-ensemble", "a2d", "divdis", "sed-a2d"), "mlp"),
)


def run_demo(out: Path, *, seed: int = 0, member_epochs: int | None = None, progress: bool = True) -> str:
    """Extract, train, evaluate and report everything into `out`; the tables as text for the terminal."""
    make_folder(out)
    sections = []
    for entry in JOBS:
        images = suites.uses_backbone(entry.suite)
        options = {"features": out / "features", "progress": progress} if images else {}
        suite = suites.load(entry.suite, seed=seed, **options)
        training = suites.training(entry.suite) | ({} if member_epochs is None else {"member_epochs": member_epochs})
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # tails this small gain nothing from a second one, and lose minutes on a busy machine
        try:
            frame = pipeline.run_methods(
                suite, entry.methods, out / suite.name, members=MEMBERS, tail=entry.tail, training=training, seed=seed,
                progress=progress,
            )  # fmt: skip
        finally:
            torch.set_num_threads(threads)
        sections.append(report.Section(suite.name, suite.summary, frame))
    return pipeline.write_results(sections, out)
