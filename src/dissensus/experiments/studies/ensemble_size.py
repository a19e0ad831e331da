"""Figure: detection against the number of members."""

from __future__ import annotations

from dissensus.evaluation.outcomes import Curve
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.experiments.studies.measures import Measures

SIZES = (2, 3, 5, 10, 20, 50)
QUICK_SIZES = (2, 5, 10)


def ensemble_size(lab: Lab) -> list[Curve]:
    """SED-A2D at the suite's weight, each member making as many steps whatever M is."""
    sizes = QUICK_SIZES if lab.quick else SIZES
    trials = [Trial(f"sed-a2d M={size}", "sed-a2d", size) for size in sizes]
    measures = Measures(lab.run(trials), lab.suite())
    told = measures.families("shift", "ood")
    lines = {name: tuple(measures.auroc(trial.name, name) for trial in trials) for name in told}
    judged = measures.families("id", "shift")
    accuracy = {name: tuple(measures.accuracy(trial.name, name) for trial in trials) for name in judged}
    return [
        Curve("detection against ensemble size", "M", "AUROC pds", sizes, lines),
        Curve("accuracy against ensemble size", "M", "accuracy", sizes, accuracy),
    ]
