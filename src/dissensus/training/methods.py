"""METHODS: the rows of the paper's tables.

A method says what members disagree on and how they are drawn; `TrainOptions` say how long and how fast they train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dissensus._core.registry import Registry

DEFAULT_METHOD = "sed-a2d"


@dataclass(frozen=True)
class Method:
    """How an ensemble is trained, beyond cross-entropy for every member."""

    summary: str
    regulariser: str | None = None  # the disagreement term, a name in REGULARISERS; None: cross-entropy only
    disagree_on: Literal["hard", "set", "unsure"] = "hard"
    """hard: training samples weighed by hardness (SED); set: an unlabelled feature set of the user's;
    unsure: training samples on which a first member's confidence stays below a threshold."""
    active: int | None = None  # members drawn for a batch; None: all of them
    order: Literal["shared", "own"] = "shared"  # own: every member shuffles the training set its own way
    spread: bool = False  # every member draws its own learning rate, weight decay and label smoothing
    members: int | None = None  # the only number of members that makes sense, where there is one

    @property
    def takes_set(self) -> bool:
        """Whether it needs a disagreement set from the user."""
        return self.regulariser is not None and self.disagree_on == "set"

    @property
    def accepts_set(self) -> bool:
        """Whether it can use a disagreement set: it needs one, or it disagrees on hard training samples besides."""
        return self.regulariser is not None and self.disagree_on != "unsure"


METHODS: Registry[Method] = Registry(
    "method",
    {
        "single": Method("one member, cross-entropy: the baseline", members=1),
        "deep-ensemble": Method("members trained apart, each from its own start in its own batch order", order="own"),
        "diverse-hps": Method("a deep ensemble whose members differ in hyper-parameters too", order="own", spread=True),
        "a2d": Method("all pairs disagree (A2D) on a disagreement set", regulariser="a2d", disagree_on="set"),
        "divdis": Method(
            "all pairs are independent (DivDis) on a disagreement set", regulariser="divdis", disagree_on="set"
        ),
        "sed-a2d": Method("drawn pairs disagree (A2D) on the hard training samples", regulariser="a2d", active=2),
        "sed-divdis": Method(
            "drawn pairs are independent (DivDis) on the hard samples", regulariser="divdis", active=2
        ),
        "two-stage": Method(
            "drawn pairs disagree (A2D) on samples a first model is unsure of",
            regulariser="a2d",
            disagree_on="unsure",
            active=2,
        ),
    },
)
"""Every method by name."""
