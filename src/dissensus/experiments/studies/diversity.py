"""Table 1: how diverse ensembles are, #unique and PDS, as detectors of covariate and of semantic shift."""

from __future__ import annotations

from dissensus.evaluation.outcomes import Column, Row, Table
from dissensus.experiments.studies.contenders import contenders
from dissensus.experiments.studies.lab import Lab
from dissensus.experiments.studies.measures import Measures

ROWS = ("deep-ensemble", "diverse-hps", "divdis", "a2d", "sed-a2d")


def diversity(lab: Lab) -> list[Table]:
    """Of each method, the weight that detects shifts best and the one that detects ood sets best."""
    groups = contenders(lab, ROWS)
    measures = Measures(lab.run([trial for trials in groups.values() for trial in trials]), lab.suite())
    tables = []
    for kind, role in (("covariate", "shift"), ("semantic", "ood")):
        families = [*measures.families("id"), *measures.families(role)]
        columns = [Column(what, name, best="") for name in families for what in ("#unique", "PDS")]
        rows = []
        for method, trials in groups.items():
            best = measures.best([trial.name for trial in trials], [role])
            cells = [measures.diversity(best, name, s) for name in families for s in ("unique", "pds")]
            rows.append(Row((method, best), tuple(cells)))
        tables.append(Table(f"{kind} detector", ("method", "trial"), tuple(columns), tuple(rows)))
    return tables
