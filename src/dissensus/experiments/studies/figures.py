"""Figures 2 to 4 of the paper: divergent images, and curves against diversity weight and ensemble size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dissensus.evaluation.examples import Example, find_examples
from dissensus.evaluation.outcomes import Curve
from dissensus.evaluation.predictions import predict
from dissensus.evaluation.results import DETECTED, Results
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.evaluation.tables import Value
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.experiments.studies.tables import weighted
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run

WEIGHTS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
QUICK_WEIGHTS = (0.0, 0.1, 1.0)
SIZES = (2, 3, 5, 10, 20, 50)
QUICK_SIZES = (2, 5, 10)


def examples(lab: Lab) -> dict[str, tuple[Example, ...]]:
    """Most and least divergent images by PDS, of the first shift (or the id set) and the first OOD set."""
    suite = lab.suite()
    frame = lab.run([Trial("sed-a2d", "sed-a2d")])
    ensemble = Ensemble.load(Run.open(frame["run"].iloc[0]).ensemble_folder)
    examples: dict[str, tuple[Example, ...]] = {}
    for s in _shown(suite):
        predictions = predict(ensemble, s.features, ["pds"], labelled=s.role != "ood", subset=s.subset)
        chosen = find_examples(s, predictions, suite.train.classes)
        examples |= {f"{s.name}: {heading} divergent": images for heading, images in chosen.items()}
    return examples


def diversity_weight(lab: Lab) -> list[Curve]:
    """SED-A2D over a range of weights; at 0, members differ only by their initial weights and batches."""
    weights = QUICK_WEIGHTS if lab.quick else WEIGHTS
    trials = [weighted("sed-a2d", weight) for weight in weights]
    results = Results(lab.run(trials))

    def curve(title: str, y: str, families: Sequence[str], read: Callable[[str, str], Value | None]) -> Curve:
        lines = {family: tuple(read(trial.name, family) for trial in trials) for family in families}
        return Curve(f"{title} against λ", "λ", y, weights, lines)

    everywhere = results.families("id", "shift", "ood", "groups")
    return [
        curve("diversity", "PDS", everywhere, results.diversity),
        curve("#unique", "#unique", everywhere, lambda trial, family: results.diversity(trial, family, "unique")),
        curve("detection", "AUROC pds", results.families(*DETECTED), results.auroc),
        curve("accuracy", "accuracy", results.families("id", "shift"), results.accuracy),
    ]


def ensemble_size(lab: Lab) -> list[Curve]:
    """SED-A2D at the suite's diversity weight; every member makes the same number of updates, whatever M."""
    sizes = QUICK_SIZES if lab.quick else SIZES
    trials = [Trial(f"sed-a2d M={size}", "sed-a2d", size) for size in sizes]
    results = Results(lab.run(trials))
    auroc = {f: tuple(results.auroc(trial.name, f) for trial in trials) for f in results.families(*DETECTED)}
    accuracy = {f: tuple(results.accuracy(trial.name, f) for trial in trials) for f in results.families("id", "shift")}
    return [
        Curve("detection against ensemble size", "M", "AUROC pds", sizes, auroc),
        Curve("accuracy against ensemble size", "M", "accuracy", sizes, accuracy),
    ]


def _shown(suite: Suite) -> list[SuiteSet]:
    shifts, inside, outside = (
        [s for s in suite.sets if s.role == role and s.images is not None] for role in ("shift", "id", "ood")
    )
    return [*(shifts or inside)[:1], *outside[:1]]
