"""Table 1: how diverse ensembles are, #unique and PDS, as detectors of covariate and of semantic shift."""

from __future__ import annotations

from dissensus.evaluation.results import Results
from dissensus.evaluation.tables import Column, Row, Table
from dissensus.experiments.studies.contenders import contenders, weight_of
from dissensus.experiments.studies.lab import Lab
from dissensus.experiments.studies.measures import best

ROWS = ("deep-ensemble", "diverse-hps", "divdis", "a2d", "sed-a2d")


def diversity(lab: Lab) -> list[Table]:
    """For each method, the weight that detects shifts best and the weight that detects OOD sets best."""
    groups = contenders(lab, ROWS)
    results = Results(lab.run([trial for trials in groups.values() for trial in trials]))
    tables = []
    for kind, role in (("covariate", "shift"), ("semantic", "ood")):
        families = [*results.families("id"), *results.families(role)]
        columns = [Column(what, name, better="") for name in families for what in ("#unique", "PDS")]
        rows = []
        for method, trials in groups.items():
            trial = best(results, [trial.name for trial in trials], [role])
            cells = [results.diversity(trial, name, s) for name in families for s in ("unique", "pds")]
            rows.append(Row((method, weight_of(method, trial)), tuple(cells)))
        tables.append(Table(f"{kind} detector", ("method", "weight"), tuple(columns), tuple(rows)))
    return tables
