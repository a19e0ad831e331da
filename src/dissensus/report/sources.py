"""What a page is made of: judged runs and studies, found in the folders that the user names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dissensus._core.errors import DissensusError, RunError
from dissensus.evaluation import records
from dissensus.evaluation.outcomes import Outcome
from dissensus.evaluation.records import Judged
from dissensus.training import methods
from dissensus.training.run import Run

DEPTH = 2  # OUT/SUITE/METHOD/run.json
HOW = "judge one with: dissensus evaluate RUN --suite SUITE"


@dataclass(frozen=True)
class JudgedRun:
    """A run with what was found of it. `group` names it among others up to its seed, `name` with it."""

    run: Run
    judged: Judged
    group: str = ""
    name: str = ""


@dataclass(frozen=True)
class Sources:
    """Runs and studies of one suite."""

    suite: str
    runs: tuple[JudgedRun, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    left_out: tuple[str, ...] = ()  # runs that have not been judged


def gather(paths: Sequence[str | Path]) -> Sources:
    """Read run folders, folders of run folders and study folders; whatever does not belong together is refused."""
    runs, outcomes, left_out = dict[Path, JudgedRun](), list[Outcome](), list[str]()
    suites = dict[str, set[str]]()
    for path in dict.fromkeys(map(Path, paths)):
        own, studies, skipped = _read(path)
        runs |= {found.run.folder.resolve(): found for found in own}
        outcomes += [found for found in studies if found not in outcomes]
        left_out += skipped
        for found in own:
            suites.setdefault(str(found.run.folder), set()).add(found.judged.suite)
        if studies:
            suites.setdefault(str(path), set()).update(outcome.suite for outcome in studies)
    suite = _one_suite(suites)
    _check_classes(list(runs.values()))
    return Sources(suite, tuple(named(list(runs.values()))), tuple(outcomes), tuple(left_out))


def _read(path: Path) -> tuple[list[JudgedRun], list[Outcome], list[str]]:
    """What one folder holds."""
    if not path.is_dir():
        raise RunError(f"no folder at {path}: give a run folder, a folder of runs, or a study folder")
    if (path / "run.json").exists():
        return [_open(path)], [], []
    studies = [found for file in sorted(path.glob("*.json")) if (found := _outcome(file)) is not None]
    folders = _runs_below(path)
    there = [folder for folder in folders if (folder / records.FOLDER / "judged.json").exists()]
    if not there and not studies:
        if folders:
            raise RunError(f"no run in {path} has been judged yet, such as {folders[0]}; {HOW}")
        raise RunError(f"{path} holds neither judged runs nor results of a study; {HOW}, or run: dissensus study")
    # a study keeps its trials as runs; their numbers are in its tables
    skipped = [] if studies else [str(folder) for folder in folders if folder not in there]
    return [_open(folder) for folder in there], studies, skipped


def _runs_below(path: Path, depth: int = DEPTH) -> list[Path]:
    found: list[Path] = []
    for folder in sorted(child for child in path.iterdir() if child.is_dir()):
        if (folder / "run.json").exists():
            found.append(folder)  # what is inside a run belongs to it, such as the first of two stages
        elif depth > 1:
            found += _runs_below(folder, depth - 1)
    return sorted(found, key=lambda folder: (folder.parent, _place(folder.name)))


def _place(method: str) -> tuple[int, str]:
    """Folders named by methods come in the methods' order, others after them."""
    names = list(methods.METHODS)
    return (names.index(method) if method in names else len(names), method)


def _open(folder: Path) -> JudgedRun:
    run = Run.open(folder)
    try:
        found = records.read(folder)
        roles = [s["role"] for s in found.sets if {"name", "family", "count", "examples"} <= set(s)]
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{folder / records.FOLDER} is damaged ({type(error).__name__}: {error}); evaluate the run again"
        ) from error
    if roles.count("id") != 1:
        raise RunError(f"{folder / records.FOLDER} is damaged (it has no id set); evaluate the run again")
    return JudgedRun(run, found)


def _outcome(file: Path) -> Outcome | None:
    try:
        return Outcome.load(file)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunError(f"the study result {file} is damaged ({error}); remove it and run the study again") from error


def _one_suite(suites: Mapping[str, set[str]]) -> str:
    """The suite that all folders share; a study may bring a companion's results along."""
    common: set[str] = set.intersection(*suites.values())
    if common:
        return sorted(common)[0]
    examples = {suite: folder for folder, found in suites.items() for suite in found}
    shown = ", ".join(f"{folder} is of {suite}" for suite, folder in sorted(examples.items()))
    raise DissensusError(f"a page is about one suite, whose sets all runs share; {shown}: make a page of each")


def _check_classes(runs: Sequence[JudgedRun]) -> None:
    for found in runs[1:]:
        if found.judged.classes != runs[0].judged.classes:
            raise DissensusError(
                f"runs of one page need the same classes; {runs[0].run.folder} has {len(runs[0].judged.classes)}, "
                f"{found.run.folder} has others or another order: make a page of each"
            )


def named(runs: Sequence[JudgedRun]) -> list[JudgedRun]:
    """The same runs with names: the method, what tells it from others of that method, and the seed where it varies."""
    plain = [_plain(found.run.settings) for found in runs]
    keys = [json.dumps({k: v for k, v in own.items() if k != "seed"}, sort_keys=True) for own in plain]
    done = []
    for found, own, key in zip(runs, plain, keys, strict=True):
        same = [other for other in plain if other["method"] == own["method"]]
        differing = [k for k in own if k != "seed" and len({json.dumps(other.get(k)) for other in same}) > 1]
        group = " ".join([own["method"], *(f"{k}={_short(own[k])}" for k in differing)])
        seeds = [other["seed"] for other, k in zip(plain, keys, strict=True) if k == key]
        if seeds.count(own["seed"]) > 1:  # they differ in data or initial weights
            group = f"{group} ({found.run.folder})"
        name = f"{group}, seed {own['seed']}" if len(set(seeds)) > 1 else group
        done.append(replace(found, group=group, name=name))
    return done


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a person tells runs apart by."""
    hidden = ("start", "train", "disagreement", "classes")
    own = {k: v for k, v in settings.items() if k not in hidden and not isinstance(v, dict | list)}
    if isinstance(about := settings.get("tail"), dict):
        own["tail"] = about.get("name")
    if isinstance(about := settings.get("backbone"), dict):
        own["backbone"] = "-".join(str(about.get(k, "")) for k in ("name", "layers", "size"))
    return own


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
