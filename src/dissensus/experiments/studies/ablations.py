"""The tables of the paper's appendix that compare a few ensembles side by side."""

from __future__ import annotations

import json
from pathlib import Path

from dissensus._core.errors import DissensusError
from dissensus.evaluation.outcomes import Column, Row, Table, Value
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.experiments.studies.measures import Measures
from dissensus.functional import scores as registry

BACKBONES = ("lite0", "lite1")


def layers(lab: Lab) -> list[Table]:
    """SED-A2D with members that own one layer, or two."""
    tables = []
    for count in (1, 2):
        suite = lab.suite(layers=count)
        trial = Trial(f"{count}", "sed-a2d", tail="backbone")
        tables.append(Measures(lab.run([trial], suite), suite).overview("", ("layers",), [((str(count),), trial.name)]))
    return [_joined("layers that members own", tables)]


def backbones(lab: Lab) -> list[Table]:
    """Deep ensemble and SED-A2D on two backbones."""
    tables = []
    for name in BACKBONES:
        suite = lab.suite(backbone=name)
        trials = [Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
        measures = Measures(lab.run(trials, suite), suite)
        tables.append(measures.overview("", ("backbone", "method"), [((name, t.name), t.name) for t in trials]))
    return [_joined("backbones", tables)]


def scores(lab: Lab) -> list[Table]:
    """Every score on the same ensembles."""
    trials = [Trial("deep-ensemble", "deep-ensemble"), Trial("sed-a2d", "sed-a2d")]
    measures = Measures(lab.run(trials), lab.suite())
    told = measures.families("shift", "ood")
    columns = tuple(Column("AUROC", name) for name in told)
    return [
        Table(
            f"scores of {trial.name}",
            ("score",),
            columns,
            tuple(Row((name,), tuple(measures.auroc(trial.name, f, name) for f in told)) for name in registry.SCORES),
        )
        for trial in trials
    ]


def two_stage(lab: Lab) -> list[Table]:
    """Disagreement on samples chosen beforehand against weights found while training."""
    trials = [Trial("two-stage", "two-stage"), Trial("joint", "sed-a2d")]
    measures = Measures(lab.run(trials), lab.suite())
    return [measures.overview("two-stage against joint", ("type",), [((t.name,), t.name) for t in trials])]


def groups(lab: Lab) -> list[Table]:
    """Worst-group accuracy of ensembles of four, all members active, as in the paper."""
    suite = lab.suite()
    rows = {"ERM": "deep-ensemble", "DivDis": "divdis", "A2D": "a2d", "SED": "sed-a2d"}
    trials = [
        Trial(name, method, 4, active=4 if method.startswith("sed") else None)
        for name, method in rows.items()
        if suite.disagreement is not None or method not in ("divdis", "a2d")
    ]
    measures = Measures(lab.run(trials), suite)
    family = measures.families("groups")[0]
    inside = measures.families("id")[0]
    columns = (
        Column("worst group %", "ensemble", percent=True),
        Column("worst group %", "oracle", percent=True),
        Column("accuracy %", family, percent=True),
        Column("accuracy %", inside, percent=True),
    )
    made = [
        Row(
            (trial.name,),
            (
                measures.value(trial.name, family, "worst_group", aggregate="prediction"),
                measures.value(trial.name, family, "worst_group", aggregate="oracle"),
                measures.accuracy(trial.name, family),
                measures.accuracy(trial.name, inside),
            ),
        )
        for trial in trials
    ]
    return [Table("worst group, M = 4", ("method",), columns, tuple(made))]


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
    measures = Measures(lab.run(trials), suite)
    rows = [((trial.method, trial.name.partition(" on ")[2]), trial.name) for trial in trials]
    note = "A set that members disagreed on in training is no test of detection any more: mind the diagonal."
    return [measures.overview("sets to disagree on", ("method", "disagrees on"), rows, note)]


def active(lab: Lab) -> list[Table]:
    """How many members are drawn for a batch: time, accuracy, detection."""
    small = [(5, i) for i in ((2, 5) if lab.quick else (2, 3, 4, 5))]
    large = [(10, 2)] if lab.quick else [(50, 2), (50, 5), (50, 10)]
    trials = [Trial(f"M={m} I={i}", "sed-a2d", m, active=i) for m, i in small + large]
    frame = lab.run(trials)
    measures = Measures(frame, lab.suite())
    rows = [((str(trial.members), str(trial.active)), trial.name) for trial in trials]
    table = measures.overview("members drawn for a batch", ("M", "I"), rows, "Epoch: seconds, deviation over epochs.")
    times = {name: _epochs(Path(runs.iloc[0])) for name, runs in frame.groupby("trial")["run"]}
    return [
        Table(
            table.title,
            table.heads,
            (Column("", "epoch s", best="min", digits=1), *table.columns),
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
