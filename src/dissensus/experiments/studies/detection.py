"""Table 3: OOD detection, AUROC of BMA and PDS, beside the accuracy of ensemble and members."""

from __future__ import annotations

from collections.abc import Callable

from dissensus.evaluation.results import Results
from dissensus.evaluation.tables import Column, Row, Table
from dissensus.experiments.studies.contenders import contenders, fixed, weight_of
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.experiments.studies.measures import best
from dissensus.training.options import DIVERSITY

Choice = Callable[[list[Trial], str, str], str]  # (trials, role, score) -> name of the chosen trial


def detection(lab: Lab) -> list[Table]:
    """Two tables: with the best weight for each kind of shift, as in the paper, and with one fixed weight."""
    groups = contenders(lab)
    results = Results(lab.run([trial for trials in groups.values() for trial in trials]))
    inside = results.inside
    kinds = [(kind, role) for kind, role in (("covariate", "shift"), ("semantic", "ood")) if results.families(role)]
    columns = [Column(f"{what} %", kind, percent=True) for what in ("accuracy", "members") for kind, _ in kinds]
    columns += [Column("AUROC", name) for _, role in kinds for name in results.families(role)]

    def table(title: str, choose: Choice, note: str) -> Table:
        rows = []
        for score in ("bma", "pds"):
            for method, trials in groups.items():
                if method == "single" and score == "pds":
                    continue  # one member predicts one class
                chosen = {role: choose(trials, role, score) for _, role in kinds}
                cells = [
                    results.accuracy(trial, inside, what)
                    for what in ("prediction", "members")
                    for trial in chosen.values()
                ]
                cells += [
                    results.auroc(chosen[role], name, score) for _, role in kinds for name in results.families(role)
                ]
                rows.append(Row((method, score, weight_of(method, *chosen.values())), tuple(cells)))
        return Table(title, ("method", "score", "weight"), tuple(columns), tuple(rows), note)

    return [
        table(
            "oracle: the best weight for each kind of shift",
            lambda trials, role, score: best(results, [trial.name for trial in trials], [role], score),
            "Chosen with the OOD sets, as in the paper: impossible in use.",
        ),
        table(
            "fixed: one weight for all, chosen without OOD data",
            lambda trials, role, score: fixed(lab, trials).name,
            f"The suite's own weight, {lab.training.get('diversity', DIVERSITY):g}, or the nearest that was trained.",
        ),
    ]
