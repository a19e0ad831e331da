"""Figure 2: the images that members disagree on most and least, with the prediction of each member."""

from __future__ import annotations

from dissensus.evaluation.examples import Example, find_examples
from dissensus.evaluation.predictions import predict
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run


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


def _shown(suite: Suite) -> list[SuiteSet]:
    shifts, inside, outside = (
        [s for s in suite.sets if s.role == role and s.images is not None] for role in ("shift", "id", "ood")
    )
    return [*(shifts or inside)[:1], *outside[:1]]
