"""TrainOptions: how an ensemble is trained.

The one list of training options: `fit`, the command line, the `training` of suites, the estimator and the commands of
a report are generated from these fields. An option of yours is one more field here and the code that uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

from dissensus._core.errors import DissensusError
from dissensus._core.options import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SEED, Rule, check, documented, listed, option
from dissensus.training.methods import METHODS

Extent = Literal["active", "all"]
Precision = Literal["32-true", "bf16-mixed"]
MEMBERS = 5  # where nobody says how many
# Where nobody says how much: without label smoothing, the largest weight that docs/results.md finds to cost little on
# data that members fit to the last sample.
DIVERSITY = 0.03


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The options that decide the result of training, besides the method, the data and the initial weights."""

    diversity: float | None = option(
        None,
        f"weight of the disagreement term, the paper's lambda; by default {DIVERSITY:g} where the method has such a "
        "term. Use 0.03 to 0.1 where members can fit every training sample, up to 1 where the loss stays high; the "
        "paper's runs have 0 to 10",
        AT_LEAST_0,
    )
    active: int | None = option(
        None, "members drawn for each batch; by default 2 for SED and two-stage, all for the others"
    )
    main: Extent = option(
        "active", "which members learn the labels in a step: the active ones, or all as the paper writes it"
    )
    hardness: Extent = option(
        "active", "whose mean logits give a sample's hardness: the active members', or all as the paper writes it"
    )
    epochs: int | None = option(
        None, "passes over the training set; by default as many as give every member `member_epochs`", AT_LEAST_1
    )
    lr: float = option(1e-3, "peak learning rate", ABOVE_0)
    batch_size: int = option(256, "samples per step, over all devices", AT_LEAST_1)
    weight_decay: float = option(0.01, "decoupled for adamw, an L2 term for sgd", AT_LEAST_0)
    label_smoothing: float = option(
        0.0,
        "share of the label that is spread over all classes",
        Rule("within [0, 1)", lambda value: 0 <= value < 1),
    )
    optimizer: str = option("adamw", "adamw or sgd")
    schedule: Literal["cosine", "constant"] = option(
        "cosine", "the learning rate over time: cosine to zero, or constant"
    )
    clip: float | None = option(None, "largest norm of a member's gradient; by default no limit", ABOVE_0)
    confidence: float = option(
        0.2,
        "two-stage disagrees on the training samples whose first-stage confidence is below this; must be above 1 / "
        "classes",
        Rule("within (0, 1]", lambda value: 0 < value <= 1),
    )
    seed: int = option(0, "decides batches, draws of members and dropout", SEED)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Hyperparameters):
    """How `fit` trains an ensemble.

    Args:
        {options}

    Raises:
        DissensusError: for a value that breaks its rule, such as lr=-1.
    """

    member_epochs: int = option(
        10,
        "with no `epochs`: passes over the training set per member. Where members are drawn, epochs are longer by "
        "members / active, so that every member makes as many updates as in a deep ensemble",
        AT_LEAST_1,
    )
    resume: bool = option(True, "continue the run that the folder holds, if it is the same", group="output")
    checkpoint_seconds: float = option(
        60.0, "time between checkpoints; a kill costs at most this much", AT_LEAST_0, group="output"
    )
    log_every: int = option(50, "steps between lines of metrics.jsonl", AT_LEAST_1, group="output")
    tensorboard: bool = option(False, "write TensorBoard events into the run folder too", group="output")

    def __post_init__(self) -> None:
        check(self)

    def suited(self, method: str) -> Self:
        """The same options for another method: what that method does not use is left at its default."""
        recipe, unused = METHODS[method], dict[str, Any]()
        if recipe.regulariser is None:
            unused["diversity"] = None
        if recipe.disagree_on != "unsure":
            unused["confidence"] = TrainOptions.confidence
        return replace(self, **unused)

    def resolve(self, method: str, members: int, precision: str = "32-true") -> Settings:
        """Fill in what the method decides, and check what depends on several options.

        Args:
            method: A name in `METHODS`.
            members: How many members are trained.
            precision: Of Lightning Fabric.

        Raises:
            DissensusError: for options that do not go with the method or the number of members.
        """
        from dissensus.functional.losses import REGULARISERS  # here: options load without PyTorch
        from dissensus.training import optim

        optim.OPTIMISERS.check(self.optimizer)
        recipe, diversity, active, epochs = METHODS[method], self.diversity, self.active, self.epochs
        if recipe.members is not None and members != recipe.members:
            raise DissensusError(
                f"{method} trains {recipe.members} member; got members={members}: use deep-ensemble for several"
            )
        if recipe.regulariser is None:
            if diversity:
                raise DissensusError(
                    f"{method} has no disagreement term; got diversity={diversity:g}: use sed-a2d, or leave it out"
                )
            diversity = 0.0
        else:
            REGULARISERS.check(recipe.regulariser)
            diversity = DIVERSITY if diversity is None else diversity
        if active is None:
            active = members if recipe.active is None else min(recipe.active, members)
        if not 1 <= active <= members:
            raise DissensusError(f"active must be within 1..members; got active={active} with members={members}")
        if active == 1 and diversity > 0:
            raise DissensusError(
                f"one active member has nobody to disagree with; got active=1 with members={members} and "
                f"diversity={diversity:g}: use active=2 or more, or diversity=0"
            )
        if epochs is None:
            moved = members if self.main == "all" else active
            epochs = math.ceil(self.member_epochs * members / moved)
        kept = {field.name: getattr(self, field.name) for field in fields(Hyperparameters)}
        filled = {"diversity": diversity, "active": active, "epochs": epochs}
        return Settings(method=method, members=members, precision=precision, **{**kept, **filled})  # type: ignore[arg-type]


documented(listed(TrainOptions))(TrainOptions)

# what a suite may recommend and the estimator exposes: all but the seed and what concerns the run folder
TUNABLE = tuple(each.name for each in listed(TrainOptions) if each.group != "output" and each.name != "seed")


@dataclass(frozen=True, kw_only=True)
class Settings(Hyperparameters):
    """Hyperparameters with every choice made: what run.json records and training reads."""

    method: str
    members: int
    precision: Precision
    diversity: float
    active: int
    epochs: int

    def __post_init__(self) -> None:
        check(self)

    def factor(self, step: int, steps: int) -> float:
        """What the schedule multiplies learning rates by at `step` of `steps`."""
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * step / max(steps, 1)))
