"""Table 2: accuracy in and out of distribution, by oracle member, prediction ensemble and uniform soup."""

from __future__ import annotations

from dissensus.evaluation.results import Results
from dissensus.evaluation.tables import Column, Row, Table
from dissensus.experiments.studies.contenders import ROWS, contenders, fixed
from dissensus.experiments.studies.lab import Lab
from dissensus.functional.aggregates import AGGREGATES

LARGE_ROWS = ("deep-ensemble", "diverse-hps", "sed-a2d")


def generalization(lab: Lab) -> list[Table]:
    """Every method at its fixed diversity weight, in small and large ensembles."""
    large = 10 if lab.quick else 50
    rows = [(name, 5, fixed(lab, trials)) for name, trials in contenders(lab, ROWS).items()]
    for name, trials in contenders(lab, LARGE_ROWS, members=large).items():
        trial = fixed(lab, trials)
        rows.append((name, large, trial.with_name(f"{trial.name} M={large}")))
    results = Results(lab.run([trial for _, _, trial in rows]))
    families = results.families("id", "shift", "groups")
    kinds = ("oracle", "prediction", "soup")
    columns = [Column(f"{AGGREGATES[kind].heading} %", name, percent=True) for kind in kinds for name in families]
    table_rows = [
        Row(
            (name, str(1 if name == "single" else members)),
            tuple(results.accuracy(trial.name, family, kind) for kind in kinds for family in families),
        )
        for name, members, trial in rows
    ]
    note = "oracle: the best member, chosen with the labels of the test set."
    return [Table("accuracy", ("method", "M"), tuple(columns), tuple(table_rows), note)]
