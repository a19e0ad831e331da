"""Tables 4 to 10, of the paper's appendix, which compare a few ensembles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dissensus._core.errors import DissensusError
from dissensus.evaluation._evaluate import COMBINED
from dissensus.evaluation.results import DETECTED, LABELLED, Measure, Results
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.experiments.studies import few_labels
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.functional import scores as registry

BACKBONES = ("lite0", "lite1")
NORMS = ("l2", "layer", "none")


def layers(lab: Lab) -> list[Table]:
    """SED-A2D whose members own one layer or two."""
    tables = []
    for count in (1, 2):
        suite = lab.suite(layers=count)
        trial = Trial(f"{count}", "sed-a2d", tail="backbone")
        tables.append(_overview(Results(lab.run([trial], suite)), "", ("layers",), [((str(count),), trial.name)]))
    return [_join("layers that members own", tables)]


def backbones(lab: Lab) -> list[Table]:
    """Deep ensemble and SED-A2D on two backbones."""
    tables = []
    for name in BACKBONES:
        suite = lab.suite(backbone=name)
        trials = [Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
        results = Results(lab.run(trials, suite))
        tables.append(_overview(results, "", ("backbone", "method"), [((name, t.name), t.name) for t in trials]))
    return [_join("backbones", tables)]


def scores(lab: Lab) -> list[Table]:
    """Every score on the same models: of logits, of features, and detectors' default combination of both."""
    trials = [Trial("single", "single"), Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
    results = Results(lab.run(trials))
    return [_by_score(results, trial.name, f"scores of {trial.name}") for trial in trials]


def geometry(lab: Lab) -> list[Table]:
    """Every score of a deep ensemble by what its linear members do to features first."""
    trials = [Trial(f"norm {norm}", "deep-ensemble", tail="linear", norm=norm) for norm in NORMS]
    results = Results(lab.run(trials))
    rows = [((norm,), trial.name) for norm, trial in zip(NORMS, trials, strict=True)]
    overview = _overview(results, "norms", ("norm",), rows)
    return [overview, *(_by_score(results, trial.name, f"scores with {trial.name}") for trial in trials)]


def _by_score(results: Results, trial: str, title: str) -> Table:
    """AUROC of every score of one trial."""
    families = results.families(*DETECTED)
    columns = tuple(Column("AUROC", name) for name in families)
    rows = [Row((s,), tuple(results.auroc(trial, f, s) for f in families)) for s in (*registry.SCORES, COMBINED)]
    return Table(title, ("score",), columns, tuple(row for row in rows if any(row.cells)))


def two_stage(lab: Lab) -> list[Table]:
    """Disagreement on samples chosen in a first stage, against weights computed during training."""
    trials = [Trial("two-stage", "two-stage"), Trial("joint", "sed-a2d")]
    results = Results(lab.run(trials))
    return [_overview(results, "two-stage against joint", ("type",), [((t.name,), t.name) for t in trials])]


def groups(lab: Lab) -> list[Table]:
    """Worst-group accuracy of ensembles of four, all members active, as in the paper."""
    suite = lab.suite()
    rows = {"ERM": "deep-ensemble", "DivDis": "divdis", "A2D": "a2d", "SED": "sed-a2d"}
    trials = [
        Trial(name, method, 4, active=4 if method.startswith("sed") else None)
        for name, method in rows.items()
        if suite.disagree_on is not None or method not in ("divdis", "a2d")
    ]
    frame = lab.run(trials)
    results = Results(frame)
    family = results.families("groups")[0]
    columns = (
        Column("worst group %", "ensemble", percent=True),
        Column("worst group %", "oracle", percent=True),
        Column("accuracy %", family, percent=True),
        Column("accuracy %", results.inside, percent=True),
    )
    measures = [Measure("worst_group", family, kind) for kind in ("prediction", "oracle")]
    measures += [Measure("accuracy", name, "prediction") for name in (family, results.inside)]
    table = replace(results.table("worst group, M = 4", measures), columns=columns)
    selected = few_labels.selected(lab, suite, frame)
    if not selected:
        return [table]
    column = Column("worst group %", f"{few_labels.LABELS} labels", percent=True)
    note = f"{column.name}: adapted with so many random labels of the pool; mean and deviation over draws."
    wider = tuple(replace(r, cells=(*r.cells[:2], selected[r.names[0]], *r.cells[2:])) for r in table.rows)
    return [replace(table, columns=(*columns[:2], column, *columns[2:]), rows=wider, note=note)]


def disagreement_data(lab: Lab) -> list[Table]:
    """A2D and DivDis with different disagreement sets, which they see in training."""
    suite = lab.suite()
    sets = {} if suite.disagree_on is None else {"the suite's own": suite.disagree_on}
    sets |= {s.family or s.name: s.features for s in suite.sets if s.role in ("shift", "ood")}  # one per family
    trials = [
        Trial(f"{method} on {name}", method, disagreement=features)
        for method in ("a2d", "divdis")
        for name, features in sets.items()
    ]
    results = Results(lab.run(trials))
    rows = [((trial.method, trial.name.partition(" on ")[2]), trial.name) for trial in trials]
    note = "A set that members disagreed on in training no longer tests detection: mind the diagonal."
    return [_overview(results, "sets to disagree on", ("method", "disagrees on"), rows, note)]


def active(lab: Lab) -> list[Table]:
    """Time, accuracy and detection against the number of members drawn per batch."""
    small = [(5, i) for i in ((2, 5) if lab.quick else (2, 3, 4, 5))]
    large = [(10, 2)] if lab.quick else [(50, 2), (50, 5), (50, 10)]
    trials = [Trial(f"M={m} I={i}", "sed-a2d", m, active=i) for m, i in small + large]
    frame = lab.run(trials)
    results = Results(frame)
    rows = [((str(trial.members), str(trial.active)), trial.name) for trial in trials]
    table = _overview(results, "members drawn per batch", ("M", "I"), rows, "Epoch: seconds, deviation over epochs.")
    times = {name: _epoch_time(Path(runs.iloc[0])) for name, runs in frame.groupby("row")["run"]}
    columns = (Column("", "epoch s", better="lower", digits=1), *table.columns)
    seconds = [times[trial.name] for trial in trials] + [None] * (len(table.rows) - len(trials))  # of baselines: none
    timed = [replace(row, cells=(value, *row.cells)) for row, value in zip(table.rows, seconds, strict=True)]
    return [replace(table, columns=columns, rows=tuple(timed))]


def _overview(
    results: Results, title: str, heads: Sequence[str], rows: Sequence[tuple[Sequence[str], str]], note: str = ""
) -> Table:
    """Accuracy of ensemble and members, and AUROC of PDS, of rows (names, trial)."""
    measures = [Measure("accuracy", family, "prediction") for family in results.families(*LABELLED)]
    measures += [Measure("accuracy", family, "members", heading="members") for family in results.families("id")]
    for score in dict.fromkeys([results.headline, "pds"]):
        heading = f"AUROC {score}"
        measures += [Measure("auroc", family, score=score, heading=heading) for family in results.families(*DETECTED)]
    return results.table(title, measures, heads=heads, rows=rows, note=note, baselines=True)


def _epoch_time(run: Path) -> Value | None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return Value.of(line["seconds"] for line in lines if line["kind"] == "epoch")


def _join(title: str, tables: list[Table]) -> Table:
    if any(table.columns != tables[0].columns for table in tables):
        raise DissensusError("a suite must have the same sets through every backbone: give the same --root for all")
    return replace(tables[0], title=title, rows=tuple(row for table in tables for row in table.rows))
