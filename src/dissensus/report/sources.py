"""What a page is made of: evaluated runs and studies, found in the folders that the user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dissensus._core.errors import DissensusError, RunError
from dissensus._core.places import place
from dissensus.evaluation import saved
from dissensus.evaluation.naming import name_runs
from dissensus.evaluation.outcomes import Outcome
from dissensus.evaluation.saved import Evaluation
from dissensus.training import methods
from dissensus.training.run import Run

DEPTH = 2  # OUT/SUITE/METHOD/run.json
HOW = "evaluate one with: dissensus evaluate RUN --suite SUITE"


@dataclass(frozen=True)
class EvaluatedRun:
    """A run with its evaluation. `row` names it among others up to its seed, `name` with it."""

    run: Run
    evaluation: Evaluation
    row: str = ""
    name: str = ""


@dataclass(frozen=True)
class Sources:
    """Runs and studies of one suite."""

    suite: str
    runs: tuple[EvaluatedRun, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    left_out: tuple[str, ...] = ()  # runs that have not been evaluated

    @property
    def title(self) -> str:
        """What to call the data: the suite's name, or that of the user's folder."""
        titles = [entry.evaluation.about.title for entry in self.runs] + [outcome.title for outcome in self.outcomes]
        return next(filter(None, titles), self.suite)


def gather(paths: Sequence[str | Path]) -> Sources:
    """Read run folders, folders of run folders and study folders.

    Raises:
        DissensusError: if they are not of one suite and the same classes, or cannot be read.
    """
    runs, outcomes, left_out = dict[Path, EvaluatedRun](), list[Outcome](), list[str]()
    suites = dict[str, set[str]]()
    for path in dict.fromkeys(map(place, paths)):
        evaluated, studies, skipped = _read(path)
        runs |= {entry.run.folder.resolve(): entry for entry in evaluated}
        outcomes += [study for study in studies if study not in outcomes]
        left_out += skipped
        for entry in evaluated:
            suites.setdefault(str(entry.run.folder), set()).add(entry.evaluation.about.suite)
        if studies:
            suites.setdefault(str(path), set()).update(outcome.suite for outcome in studies)
    suite = _one_suite(suites)
    entries = list(runs.values())
    _check_classes(entries)
    names = name_runs([entry.run.named for entry in entries], [str(entry.run.folder) for entry in entries])
    named = tuple(replace(entry, row=row, name=name) for entry, (row, name) in zip(entries, names, strict=True))
    return Sources(suite, named, tuple(outcomes), tuple(left_out))


def _read(path: Path) -> tuple[list[EvaluatedRun], list[Outcome], list[str]]:
    """The evaluated runs, the studies and the runs without an evaluation in one folder."""
    if not path.is_dir():
        raise RunError(f"no folder at {path}: give a run folder, a folder of runs, or a study folder")
    if (path / "run.json").exists():
        return [EvaluatedRun(Run.open(path), saved.load(path))], [], []
    studies = [study for file in sorted(path.glob("*.json")) if (study := Outcome.load(file)) is not None]
    folders = _runs_below(path)
    there = [folder for folder in folders if saved.is_saved(folder, predictions=True)]
    if not there and not studies:
        if folders:
            raise RunError(f"no run in {path} has been evaluated yet, such as {folders[0]}; {HOW}")
        raise RunError(f"{path} holds neither evaluated runs nor results of a study; {HOW}, or run: dissensus study")
    # a study keeps its trials as runs without predictions; their values are in its tables
    skipped = [] if studies else [str(folder) for folder in folders if folder not in there]
    return [EvaluatedRun(Run.open(folder), saved.load(folder)) for folder in there], studies, skipped


def _runs_below(path: Path, depth: int = DEPTH) -> list[Path]:
    runs: list[Path] = []
    for folder in sorted(child for child in path.iterdir() if child.is_dir()):
        if (folder / "run.json").exists():
            runs.append(folder)  # what is inside a run belongs to it, such as the first of two stages
        elif depth > 1:
            runs += _runs_below(folder, depth - 1)
    return sorted(runs, key=lambda folder: (folder.parent, _place(folder.name)))


def _place(method: str) -> tuple[int, str]:
    """Folders named by methods come in the methods' order, others after them."""
    names = list(methods.METHODS)
    return (names.index(method) if method in names else len(names), method)


def _one_suite(suites: Mapping[str, set[str]]) -> str:
    """The suite that all folders share; a study may bring a companion's results along."""
    common: set[str] = set.intersection(*suites.values())
    if common:
        return sorted(common)[0]
    examples = {suite: folder for folder, names in suites.items() for suite in names}
    shown = ", ".join(f"{folder} is of {suite}" for suite, folder in sorted(examples.items()))
    raise DissensusError(f"a page is about one suite, whose sets all runs share; {shown}: make a page of each")


def _check_classes(runs: Sequence[EvaluatedRun]) -> None:
    for entry in runs[1:]:
        first, classes = runs[0].run.folder, runs[0].evaluation.about.classes
        if entry.evaluation.about.classes != classes:
            raise DissensusError(
                f"runs of one page need the same classes; {first} has {len(classes)}, {entry.run.folder} has others or "
                "another order: make a page of each"
            )
