"""Figure 2: the images that members disagree on most and least, with the prediction of each member."""

from __future__ import annotations

from dissensus.evaluation.outcomes import Example
from dissensus.evaluation.predictions import predict
from dissensus.evaluation.saved import find_examples, votes_in_words
from dissensus.evaluation.suite import Suite, SuiteSet
from dissensus.experiments.studies.lab import Lab, Trial
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import Run


def examples(lab: Lab) -> dict[str, tuple[Example, ...]]:
    """Most and least divergent images by PDS, of the first shift (or the id set) and the first OOD set."""
    suite = lab.suite()
    frame = lab.run([Trial("sed-a2d", "sed-a2d")])
    ensemble = Ensemble.load(Run.open(frame["run"].iloc[0]).ensemble_folder)
    classes, examples = suite.train.classes, dict[str, tuple[Example, ...]]()
    for s in _shown(suite):
        predictions = predict(ensemble, s.features, ["pds"], labelled=s.role != "ood", subset=s.subset)
        for heading, chosen in find_examples(s, predictions).items():
            examples[f"{s.name}: {heading} divergent"] = tuple(
                Example(
                    picture=e.picture,
                    truth="none of these classes" if e.label is None else classes[e.label],
                    answer=classes[e.prediction],
                    votes=tuple(votes_in_words(e.votes, classes)),
                    score=e.pds,
                    place=f"{s.name}/{e.name}",
                )
                for e in chosen
            )
    return examples


def _shown(suite: Suite) -> list[SuiteSet]:
    shifts, inside, outside = (
        [s for s in suite.sets if s.role == role and s.images is not None] for role in ("shift", "id", "ood")
    )
    return [*(shifts or inside)[:1], *outside[:1]]
