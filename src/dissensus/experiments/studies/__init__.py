"""STUDIES: every table and figure of the paper, to be run on any suite that has what it needs.

dissensus study detection --suite digits --seeds 3
dissensus study all --suite digits --quick
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dissensus._core.errors import DissensusError
from dissensus._core.registry import Registry
from dissensus.evaluation.outcomes import Curve, Example, Outcome
from dissensus.evaluation.tables import Table
from dissensus.experiments.studies import ablations, paper
from dissensus.experiments.studies.detection import detection
from dissensus.experiments.studies.diversity import diversity
from dissensus.experiments.studies.diversity_weight import diversity_weight
from dissensus.experiments.studies.ensemble_size import ensemble_size
from dissensus.experiments.studies.examples import examples
from dissensus.experiments.studies.generalization import generalization
from dissensus.experiments.studies.lab import Lab

__all__ = ["STUDIES", "Lab", "Outcome", "Study", "run"]

Findings = Sequence[Table] | Sequence[Curve] | dict[str, tuple[Example, ...]]


class Study(NamedTuple):
    """A study: what it finds, where the paper has it, and what a suite must have for it."""

    function: Callable[[Lab], Findings]
    paper: str
    summary: str
    needs: tuple[str, ...] = ()  # roles of sets; "images"; "backbone", for the suite to be made through another


STUDIES: Registry[Study] = Registry(
    "study",
    {
        "diversity": Study(diversity, "Table 1", "#unique and PDS of every method, in and out of distribution"),
        "generalization": Study(
            generalization, "Table 2", "accuracy by oracle member, ensemble and soup, small and large", ("shift",)
        ),
        "detection": Study(
            detection, "Table 3", "AUROC of BMA and PDS beside accuracy; weight by oracle and fixed", ("ood",)
        ),
        "diversity-weight": Study(
            diversity_weight, "Figure 3", "PDS, #unique, AUROC and accuracy against lambda", ("ood",)
        ),
        "ensemble-size": Study(ensemble_size, "Figure 4", "AUROC and accuracy against the number of members", ("ood",)),
        "examples": Study(examples, "Figure 2", "the images that members differ most and least on", ("images",)),
        "layers": Study(ablations.layers, "Table 4", "members that own one layer against two", ("backbone",)),
        "backbones": Study(ablations.backbones, "Table 5", "two backbones side by side", ("backbone",)),
        "scores": Study(ablations.scores, "Table 6", "AUROC of every score", ("ood",)),
        "two-stage": Study(ablations.two_stage, "Table 7", "joint training against two stages"),
        "groups": Study(ablations.groups, "Table 8", "worst-group accuracy of ensembles of four", ("groups",)),
        "disagreement-data": Study(
            ablations.disagreement_data, "Table 9", "A2D and DivDis with different sets to disagree on", ("ood",)
        ),
        "active": Study(ablations.active, "Table 10", "how many members are drawn: time, accuracy, AUROC", ("ood",)),
    },
)


def run(name: str, lab: Lab) -> Outcome:
    """Run a study and save its outcome in OUT/NAME.json."""
    study = STUDIES[name]
    check(name, lab)
    found = study.function(lab)
    suite = lab.suite()
    parts = [] if isinstance(found, dict) else found
    tables = [part for part in parts if isinstance(part, Table)]
    outcome = Outcome(
        study=name,
        paper=study.paper,
        suite=suite.name,
        summary=study.summary,
        tables=tuple(replace(t, rows=t.rows + paper.rows(name, suite.name, t)) for t in tables),
        curves=tuple(part for part in parts if isinstance(part, Curve)),
        examples=found if isinstance(found, dict) else {},
    )
    outcome.save(lab.out / f"{name}.json")
    return outcome


def check(name: str, lab: Lab) -> None:
    """Refuse a suite that lacks what the study needs."""
    suite, lacking = lab.suite(), []
    roles = {s.role for s in suite.sets}
    for need in STUDIES[name].needs:
        if need == "images":
            there = any(s.images is not None for s in suite.sets)
        elif need == "backbone":
            there = suite.train.provenance.get("backbone") is not None
        else:
            there = need in roles
        if not there:
            lacking.append(need)
    if lacking:
        remedy = {
            "groups": "use waterbirds or dominoes, or add a set of role groups",
            "images": "use a suite of images",
            "backbone": "use a suite of images",
        }.get(lacking[0], f"add a set of role {lacking[0]}")
        raise DissensusError(f"study {name} needs {' and '.join(lacking)}; suite {suite.name} has none: {remedy}")
