"""The demo: every method on the embedded digits, from images to a table and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from dissensus import report, suites
from dissensus._core.files import make_folder
from dissensus.evaluation.outcomes import Outcome
from dissensus.evaluation.suite import Suite
from dissensus.experiments import pipeline
from dissensus.experiments.runner import Job, threads, training_options
from dissensus.experiments.studies import few_labels
from dissensus.experiments.studies.lab import Lab
from dissensus.training import METHODS
from dissensus.training.run import AUTO


class Part(NamedTuple):
    """One suite of the demo: what is trained on it."""

    suite: str
    methods: tuple[str, ...]
    tail: str


PARTS = (
    Part("digits", (*METHODS, AUTO), "linear"),
    Part("dominoes", ("single", "deep-ensemble", "a2d", "divdis", "sed-a2d"), "mlp"),
)


def run_demo(out: Path, *, seed: int = 0, member_epochs: int | None = None, progress: bool = True) -> str:
    """Extract, train, evaluate and report everything into `out`, and return the tables as text."""
    make_folder(out)
    sections, stories = list[report.Section](), list[Outcome]()
    given: dict[str, Any] = {"seed": seed} | ({} if member_epochs is None else {"member_epochs": member_epochs})
    for name, methods, tail in PARTS:
        extraction = {"features": out / "features", "progress": progress} if suites.uses_backbone(name) else {}
        suite = suites.load(name, seed=seed, **extraction)
        jobs = [Job(method, training_options(name, given), tail=tail) for method in methods]
        with threads(1):  # tails this small gain nothing from a second one, and lose minutes on a busy machine
            frame = pipeline.run_methods(suite, jobs, out / suite.name, progress=progress)
            if suite.labels is not None:
                stories.append(_few_labels(suite, tail, given, out / suite.name, progress))
        sections.append(report.Section(suite.name, suite.summary, frame))
    return "\n".join([pipeline.write_results(sections, out), *(f"{story.text()}\n" for story in stories)])


def _few_labels(suite: Suite, tail: str, given: dict[str, Any], out: Path, progress: bool) -> Outcome:
    """What labels of the pool are worth, with and without diverse members; the suite's page shows it as a study."""
    pipeline.say(f"{suite.name}: what {few_labels.LABELS} labels are worth")
    options = training_options(suite.name, given)
    lab = Lab(lambda: suite, out, options, seeds=(options.seed,), progress=progress, tail=tail)
    table, sentence = few_labels.story(lab)
    outcome = Outcome(
        study="few-labels", paper="beyond the paper", suite=suite.name,
        summary="a few labels choose among members that disagree", tables=(table,), notes=(sentence,),
    )  # fmt: skip
    outcome.save(out / "few-labels.json")
    return outcome
