"""Studies: the tables and figures of the paper, for any suite that has the sets they need.

dissensus study detection --suite digits --seeds 3
dissensus study all --suite digits --quick
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dissensus._core.errors import DissensusError
from dissensus._core.registry import Registry
from dissensus.evaluation.examples import Example
from dissensus.evaluation.outcomes import Curve, Outcome
from dissensus.evaluation.tables import Table
from dissensus.experiments import paper
from dissensus.experiments.studies import ablations, few_labels, figures, tables
from dissensus.experiments.studies.lab import Lab

__all__ = ["STUDIES", "Lab", "Outcome", "Study", "check", "run"]

Findings = Sequence[Table | Curve | str] | dict[str, tuple[Example, ...]]  # a str is a note


class Study(NamedTuple):
    """A function that runs trials in a lab, where the paper reports them, and what it needs of a suite."""

    function: Callable[[Lab], Findings]
    paper: str
    summary: str
    needs: tuple[str, ...] = ()  # roles; "images"; "backbone": a suite that can be extracted through others


STUDIES: Registry[Study] = Registry(
    "study",
    {
        "diversity": Study(tables.diversity, "Table 1", "#unique and PDS of every method, in and out of distribution"),
        "generalization": Study(
            tables.generalization,
            "Table 2",
            "accuracy by oracle member, ensemble and soups, small and large",
            ("shift",),
        ),
        "detection": Study(
            tables.detection, "Table 3", "AUROC of BMA and PDS beside accuracy; weight by oracle and fixed", ("ood",)
        ),
        "diversity-weight": Study(
            figures.diversity_weight, "Figure 3", "PDS, #unique, AUROC and accuracy against lambda", ("ood",)
        ),
        "ensemble-size": Study(
            figures.ensemble_size, "Figure 4", "AUROC and accuracy against the number of members", ("ood",)
        ),
        "examples": Study(
            figures.examples, "Figure 2", "the images that members disagree on most and least", ("images",)
        ),
        "layers": Study(ablations.layers, "Table 4", "members that own one layer against two", ("backbone",)),
        "backbones": Study(ablations.backbones, "Table 5", "two backbones side by side", ("backbone",)),
        "scores": Study(ablations.scores, "Table 6", "AUROC of every score", ("ood",)),
        "geometry": Study(
            ablations.geometry,
            "beyond the paper",
            "AUROC of every score by the norm that linear members apply to features",
            ("ood",),
        ),
        "two-stage": Study(ablations.two_stage, "Table 7", "joint training against two stages"),
        "groups": Study(ablations.groups, "Table 8", "worst-group accuracy of ensembles of four", ("groups",)),
        "few-labels": Study(
            few_labels.few_labels,
            "beyond the paper",
            "worst-group accuracy against the number of labels, random or asked for",
            ("groups", "labels"),
        ),
        "disagreement-data": Study(
            ablations.disagreement_data, "Table 9", "A2D and DivDis with different sets to disagree on", ("ood",)
        ),
        "active": Study(ablations.active, "Table 10", "how many members are drawn: time, accuracy, AUROC", ("ood",)),
    },
)
"""Every study by name."""


def run(name: str, lab: Lab) -> Outcome:
    """Run a study and save its outcome in OUT/NAME.json.

    Args:
        name: A name in `STUDIES`.
        lab: Trains and evaluates the trials; those that it has are not repeated.

    Raises:
        DissensusError: If the name is unknown, or the suite lacks what the study needs.
    """
    study = STUDIES[name]
    check(name, lab)
    findings = study.function(lab)
    suite = lab.suite()
    parts = [] if isinstance(findings, dict) else findings
    outcome = Outcome(
        study=name,
        paper=study.paper,
        suite=suite.name,
        title=suite.title,
        summary=study.summary,
        tables=tuple(
            replace(part, rows=part.rows + paper.rows(name, suite.name, part))
            for part in parts
            if isinstance(part, Table)
        ),
        curves=tuple(part for part in parts if isinstance(part, Curve)),
        examples=findings if isinstance(findings, dict) else {},
        notes=tuple(part for part in parts if isinstance(part, str)),
    )
    outcome.save(lab.out / f"{name}.json")
    return outcome


def check(name: str, lab: Lab) -> None:
    """Raise if the suite of a lab lacks what a study needs."""
    suite = lab.suite()
    available = {
        *(s.role for s in suite.sets),
        *(["labels"] if suite.labels is not None else []),
        *(["images"] if any(s.images is not None for s in suite.sets) else []),
        *(["backbone"] if suite.train.provenance.get("backbone") is not None else []),
    }
    if lacking := [need for need in STUDIES[name].needs if need not in available]:
        remedy = {
            "groups": "use waterbirds or dominoes, or add a set of role groups",
            "labels": "use dominoes or pacs-tied",
            "images": "use a suite of images",
            "backbone": "use a suite of images",
        }.get(lacking[0], f"add a set of role {lacking[0]}")
        raise DissensusError(f"study {name} needs {' and '.join(lacking)}; suite {suite.name} has none: {remedy}")
