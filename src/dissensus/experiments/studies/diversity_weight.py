"""Figure 3: diversity and detection against the diversity weight, the paper's lambda."""

from __future__ import annotations

from dissensus.evaluation.outcomes import Curve
from dissensus.evaluation.results import Results
from dissensus.experiments.studies.contenders import weighted
from dissensus.experiments.studies.lab import Lab, Trial

WEIGHTS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
QUICK_WEIGHTS = (0.0, 0.1, 1.0)


def diversity_weight(lab: Lab) -> list[Curve]:
    """SED-A2D over a range of weights; at 0, members differ only by their initial weights and batches."""
    values = QUICK_WEIGHTS if lab.quick else WEIGHTS
    trials: dict[float, Trial] = {weight: weighted("sed-a2d", weight) for weight in values}
    results = Results(lab.run(list(trials.values())))
    everywhere, detected = results.families("id", "shift", "ood", "groups"), results.families("shift", "ood")

    def curve(title: str, y_name: str, families: list[str], kind: str, **options: str) -> Curve:
        read = getattr(results, kind)
        lines = {name: tuple(read(trial.name, name, **options) for trial in trials.values()) for name in families}
        return Curve(title, "λ", y_name, values, lines)

    return [
        curve("diversity against λ", "PDS", everywhere, "diversity"),
        curve("#unique against λ", "#unique", everywhere, "diversity", score="unique"),
        curve("detection against λ", "AUROC pds", detected, "auroc"),
        curve("accuracy against λ", "accuracy", results.families("id", "shift"), "accuracy"),
    ]
