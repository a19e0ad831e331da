"""The tables of the paper's appendix that compare a few ensembles side by side."""

from __future__ import annotations

import json
from pathlib import Path

from dissensus._core.errors import DissensusError
from dissensus.evaluation.results import Results
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.experiments.studies.measures import overview
from dissensus.functional import scores as registry

BACKBONES = ("lite0", "lite1")


def layers(lab: Lab) -> list[Table]:
    """SED-A2D with members that own one layer, or two."""
    tables = []
    for count in (1, 2):
        suite = lab.suite(layers=count)
        trial = Trial(f"{count}", "sed-a2d", tail="backbone")
        tables.append(overview(Results(lab.run([trial], suite)), "", ("layers",), [((str(count),), trial.name)]))
    return [_joined("layers that members own", tables)]


def backbones(lab: Lab) -> list[Table]:
    """Deep ensemble and SED-A2D on two backbones."""
    tables = []
    for name in BACKBONES:
        suite = lab.suite(backbone=name)
        trials = [Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
        results = Results(lab.run(trials, suite))
        tables.append(overview(results, "", ("backbone", "method"), [((name, t.name), t.name) for t in trials]))
    return [_joined("backbones", tables)]


def scores(lab: Lab) -> list[Table]:
    """Every score on the same ensembles."""
    trials = [Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
    results = Results(lab.run(trials))
    families = results.families("shift", "ood")
    columns = tuple(Column("AUROC", name) for name in families)
    return [
        Table(
            f"scores of {trial.name}",
            ("score",),
            columns,
            tuple(
                Row((name,), tuple(results.auroc(trial.name, f, name) for f in families)) for name in registry.SCORES
            ),
        )
        for trial in trials
    ]


def two_stage(lab: Lab) -> list[Table]:
    """Disagreement on samples chosen beforehand against weights found while training."""
    trials = [Trial("two-stage", "two-stage"), Trial("joint", "sed-a2d")]
    results = Results(lab.run(trials))
    return [overview(results, "two-stage against joint", ("type",), [((t.name,), t.name) for t in trials])]


def groups(lab: Lab) -> list[Table]:
    """Worst-group accuracy of ensembles of four, all members active, as in the paper."""
    suite = lab.suite()
    rows = {"ERM": "deep-ensemble", "DivDis": "divdis", "A2D": "a2d", "SED": "sed-a2d"}
    trials = [
        Trial(name, method, 4, active=4 if method.startswith("sed") else None)
        for name, method in rows.items()
        if suite.disagreement is not None or method not in ("divdis", "a2d")
    ]
    results = Results(lab.run(trials))
    family = results.families("groups")[0]
    columns = (
        Column("worst group %", "ensemble", percent=True),
        Column("worst group %", "oracle", percent=True),
        Column("accuracy %", family, percent=True),
        Column("accuracy %", results.inside, percent=True),
    )
    table_rows = [
        Row(
            (trial.name,),
            (
                results.value(trial.name, family, "worst_group", aggregate="prediction"),
                results.value(trial.name, family, "worst_group", aggregate="oracle"),
                results.accuracy(trial.name, family),
                results.accuracy(trial.name, results.inside),
            ),
        )
        for trial in trials
    ]
    return [Table("worst group, M = 4", ("method",), columns, tuple(table_rows))]


def disagreement_data(lab: Lab) -> list[Table]:
    """A2D and DivDis with different sets to disagree on; a set that is disagreed on is seen in training."""
    suite = lab.suite()
    where = {} if suite.disagreement is None else {"the suite's own": suite.disagreement}
    where |= {s.family or s.name: s.features for s in suite.sets if s.role in ("shift", "ood")}  # one of a family
    trials = [
        Trial(f"{method} on {name}", method, disagreement=features)
        for method in ("a2d", "divdis")
        for name, features in where.items()
    ]
    results = Results(lab.run(trials))
    rows = [((trial.method, trial.name.partition(" on ")[2]), trial.name) for trial in trials]
    note = "A set that members disagreed on in training no longer tests detection: mind the diagonal."
    return [overview(results, "sets to disagree on", ("method", "disagrees on"), rows, note)]


def active(lab: Lab) -> list[Table]:
    """How many members are drawn for a batch: time, accuracy, detection."""
    small = [(5, i) for i in ((2, 5) if lab.quick else (2, 3, 4, 5))]
    large = [(10, 2)] if lab.quick else [(50, 2), (50, 5), (50, 10)]
    trials = [Trial(f"M={m} I={i}", "sed-a2d", m, active=i) for m, i in small + large]
    frame = lab.run(trials)
    results = Results(frame)
    rows = [((str(trial.members), str(trial.active)), trial.name) for trial in trials]
    table = overview(results, "members drawn for a batch", ("M", "I"), rows, "Epoch: seconds, deviation over epochs.")
    times = {name: _epochs(Path(runs.iloc[0])) for name, runs in frame.groupby("row")["run"]}
    return [
        Table(
            table.title,
            table.heads,
            (Column("", "epoch s", better="lower", digits=1), *table.columns),
            tuple(Row(r.names, (times[t.name], *r.cells)) for r, t in zip(table.rows, trials, strict=True)),
            table.note,
        )
    ]


def _epochs(run: Path) -> Value | None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return Value.of(line["seconds"] for line in lines if line["kind"] == "epoch")


def _joined(title: str, tables: list[Table]) -> Table:
    if any(table.columns != tables[0].columns for table in tables):
        raise DissensusError("the forms of a suite must have the same sets: give the same --root for all")
    return Table(title, tables[0].heads, tables[0].columns, tuple(row for table in tables for row in table.rows))
