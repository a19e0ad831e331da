"""Figure 4: detection and accuracy against the number of members."""

from __future__ import annotations

from dissensus.evaluation.outcomes import Curve
from dissensus.evaluation.results import Results
from dissensus.experiments.studies.lab import Lab, Trial

SIZES = (2, 3, 5, 10, 20, 50)
QUICK_SIZES = (2, 5, 10)


def ensemble_size(lab: Lab) -> list[Curve]:
    """SED-A2D at the suite's diversity weight; every member makes the same number of updates, whatever M."""
    sizes = QUICK_SIZES if lab.quick else SIZES
    trials = [Trial(f"sed-a2d M={size}", "sed-a2d", size) for size in sizes]
    results = Results(lab.run(trials))
    auroc = {f: tuple(results.auroc(trial.name, f) for trial in trials) for f in results.families("shift", "ood")}
    accuracy = {f: tuple(results.accuracy(trial.name, f) for trial in trials) for f in results.families("id", "shift")}
    return [
        Curve("detection against ensemble size", "M", "AUROC pds", sizes, auroc),
        Curve("accuracy against ensemble size", "M", "accuracy", sizes, accuracy),
    ]
