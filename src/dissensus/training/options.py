"""TrainOptions: how an ensemble is trained.

The one list of training options: `fit`, the command line, the `training` of suites, the estimator and the commands of
a report are generated from these fields. An option of yours is one more field here and the code that uses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from dissensus._core.errors import DissensusError
from dissensus._core.options import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SEED, Rule, check, documented, listed, option
from dissensus.training.methods import METHODS

if TYPE_CHECKING:
    from dissensus.features import FeatureSet
    from dissensus.models.ensemble import Ensemble

Extent = Literal["active", "all"]
Precision = Literal["32-true", "bf16-mixed"]
Shuffle = Literal["auto", "full", "blocks"]
MEMBERS = 5  # Default number of members.
# Default weight of the disagreement term. Hardness grows as training samples are fitted: at convergence 0.003 raises
# detection on PACS and costs neither accuracy nor calibration, and 0.03 is too much (docs/results.md).
DIVERSITY = 0.003
SET_DIVERSITY = 0.03  # of methods that do not weigh by hardness
# With no `epochs`: what every member makes, whatever the number of samples, the batch, the members and the active ones.
PASSES, UPDATES = 10, 1000
BATCHES = 8  # per epoch, as far as the batch stays within SMALLEST and LARGEST
SMALLEST, LARGEST = 16, 256
# How fast a linear tail on features of norm sqrt(D) learns, and the share of its weights that decays in a step: see
# "Defaults" in docs/training.md.
LINEAR_LR, LINEAR_DECAY = 0.12, 0.002
LR, WEIGHT_DECAY = 1e-3, 1.0  # of the other tails
# Larger sets of features are shuffled in blocks by default: they may not fit into the page cache, and rows at random
# positions then cost a disk access each.
FULL_BYTES = 2**32


class Task(NamedTuple):
    """What the defaults of training depend on besides the options."""

    samples: int  # of the training set, each once however many passes there are
    tail: str | None = None  # a name in TAILS; None: a module of the user's
    width: int | None = None  # of the features that the tail takes
    nbytes: int = 0  # of the training set's features as stored

    @classmethod
    def of(cls, ensemble: Ensemble, train: FeatureSet) -> Task:
        """The task of training this ensemble on these features."""
        about = ensemble.about or {}
        return cls(len(train) // train.passes, about.get("name"), about.get("features"), train.nbytes)


def default_diversity(method: str) -> float:
    """Weight of the disagreement term of a method; 0 without one."""
    recipe = METHODS[method]
    if recipe.regulariser is None:
        return 0.0
    return DIVERSITY if recipe.disagree_on == "hard" else SET_DIVERSITY


def default_rates(task: Task) -> dict[str, float]:
    """Learning rate and weight decay of a task, by option."""
    if task.tail != "linear" or task.width is None:
        return {"lr": LR, "weight_decay": WEIGHT_DECAY}
    lr = LINEAR_LR / task.width ** (2 / 3)
    return {"lr": lr, "weight_decay": LINEAR_DECAY / lr}


def default_shuffle(nbytes: int) -> Literal["full", "blocks"]:
    """How to shuffle features of so many bytes."""
    return "full" if nbytes <= FULL_BYTES else "blocks"


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """The options that decide the result of training, besides the method, the data and the initial weights."""

    diversity: float | None = option(
        None,
        f"weight of the disagreement term, the paper's lambda; by default {DIVERSITY:g} for SED, {SET_DIVERSITY:g} for "
        "other methods with such a term. Use 0.001 to 0.01 where members can fit every training sample, up to 1 where "
        "the loss stays high; the paper's runs have 0 to 10",
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
        None,
        f"passes over the training set; by default as many as every member needs for `member_epochs`, or for {PASSES} "
        f"passes and {UPDATES} updates",
        AT_LEAST_1,
    )
    lr: float | None = option(
        None,
        f"peak learning rate; by default {LINEAR_LR:g} / features^(2/3) for linear tails, {LR:g} for the others",
        ABOVE_0,
    )
    batch_size: int | None = option(
        None,
        f"samples per step, over all devices; by default an eighth of the samples, as a power of two within {SMALLEST} "
        f"to {LARGEST}",
        AT_LEAST_1,
    )
    weight_decay: float | None = option(
        None,
        f"decoupled for adamw, an L2 term for sgd; by default {LINEAR_DECAY:g} / the default lr for linear "
        f"tails, {WEIGHT_DECAY:g} for the others",
        AT_LEAST_0,
    )
    early_stop: float = option(
        0.0,
        "share of the training samples that is held out to watch the members' cross-entropy: training stops when it no "
        "longer falls, and the best weights are kept",
        Rule("within [0, 0.5]", lambda value: 0 <= value <= 0.5),
    )
    label_smoothing: float = option(
        0.0,
        "share of the label that is spread over all classes",
        Rule("within [0, 1)", lambda value: 0 <= value < 1),
    )
    optimizer: str | None = option(
        None, "adamw, adam-mini or sgd; by default adam-mini for linear tails, adamw for the others"
    )
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
    shuffle: Shuffle = option(
        "auto",
        "how an epoch orders the training set: full, one permutation of all samples; blocks, for sets that are larger "
        f"than memory, which reads long runs of the files; auto: full up to {FULL_BYTES >> 30} GiB of features",
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

    member_epochs: int | None = option(
        None,
        "with no `epochs`: passes over the training set per member. Where members are drawn, epochs are longer by "
        "members / active, so that every member makes as many updates as in a deep ensemble",
        AT_LEAST_1,
    )
    resume: bool = option(True, "continue the run that the folder holds, if it is the same", group="output")
    checkpoint_seconds: float = option(
        60.0, "time between checkpoints; a kill costs at most this much", AT_LEAST_0, group="output"
    )
    log_every: int = option(50, "steps between lines of metrics.jsonl", AT_LEAST_1, group="output")
    logger: Literal["tensorboard", "wandb", "mlflow"] | None = option(
        None,
        "log metrics, results and report to tensorboard, wandb or mlflow, too; metrics.jsonl is always written",
        group="output",
    )

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

    def resolve(self, method: str, members: int, task: Task, precision: str = "32-true") -> Settings:
        """Fill in what method, tail and training set decide, and check what depends on several options.

        Args:
            method: A name in `METHODS`.
            members: How many members are trained.
            task: What they are trained on.
            precision: Of Lightning Fabric.

        Raises:
            DissensusError: for options that do not go with the method or the number of members.
        """
        diversity, active = self.check_method(method, members)
        batch_size = self.batch_size
        if batch_size is None:
            batch_size = 2 ** round(math.log2(min(max(task.samples / BATCHES, SMALLEST), LARGEST)))
        epochs = self.epochs
        if epochs is None:
            updated = members if self.main == "all" else active
            epochs = math.ceil(self._member_epochs(math.ceil(task.samples / batch_size)) * members / updated)
        rates = default_rates(task)
        kept = {field.name: getattr(self, field.name) for field in fields(Hyperparameters)}
        filled = {
            "diversity": diversity, "active": active, "epochs": epochs, "batch_size": batch_size,
            "optimizer": self.optimizer or ("adam-mini" if task.tail == "linear" else "adamw"),
            "shuffle": default_shuffle(task.nbytes) if self.shuffle == "auto" else self.shuffle,
            **{name: rate for name, rate in rates.items() if getattr(self, name) is None},
        }  # fmt: skip
        return Settings(method=method, members=members, precision=precision, **{**kept, **filled})  # type: ignore[arg-type]

    def _member_epochs(self, per_epoch: int) -> int:
        """Passes per member, with so many steps per epoch."""
        if self.member_epochs is not None:
            return self.member_epochs
        return max(PASSES, math.ceil(UPDATES / per_epoch))

    def longer(self, per_epoch: int) -> str:
        """How to train longer than with these options, for a message: which option to raise, and its value."""
        if self.epochs is not None:
            return f"raise epochs, or leave it out (now {self.epochs})"
        return f"raise member_epochs (now {self._member_epochs(per_epoch)})"

    def check_method(self, method: str, members: int) -> tuple[float, int]:
        """Check what depends on several options; return diversity and the number of active members.

        Raises:
            DissensusError: for options that do not go with the method or the number of members.
        """
        from dissensus.functional.losses import REGULARISERS  # here: options load without PyTorch
        from dissensus.training import optim

        if self.optimizer is not None:
            optim.OPTIMISERS.check(self.optimizer)
        recipe, diversity, active = METHODS[method], self.diversity, self.active
        if recipe.members is not None and members != recipe.members:
            raise DissensusError(
                f"{method} trains {recipe.members} member; got members={members}: use deep-ensemble for several"
            )
        if recipe.regulariser is None:
            if diversity:
                raise DissensusError(
                    f"{method} has no disagreement term; got diversity={diversity:g}: use sed-a2d, or leave it out"
                )
        else:
            REGULARISERS.check(recipe.regulariser)
        diversity = default_diversity(method) if diversity is None else diversity
        if active is None:
            active = members if recipe.active is None else min(recipe.active, members)
        if not 1 <= active <= members:
            raise DissensusError(f"active must be within 1..members; got active={active} with members={members}")
        if active == 1 and diversity > 0:
            raise DissensusError(
                f"one active member has nobody to disagree with; got active=1 with members={members} and "
                f"diversity={diversity:g}: use active=2 or more, or diversity=0"
            )
        return diversity, active


documented(listed(TrainOptions))(TrainOptions)

# what a suite may recommend and the estimator exposes: all but the seed and what concerns the run folder
TUNABLE = tuple(each.name for each in listed(TrainOptions) if each.group != "output" and each.name != "seed")


@dataclass(frozen=True, kw_only=True)
class Settings(Hyperparameters):
    """Hyperparameters with every choice made: what run.json records and training reads."""

    method: str
    # with their rules again: run.json is checked by them
    members: int = option(None, "", AT_LEAST_1)
    precision: Precision
    optimizer: str
    diversity: float = option(None, "", AT_LEAST_0)
    active: int = option(None, "", AT_LEAST_1)
    epochs: int = option(None, "", AT_LEAST_1)
    lr: float = option(None, "", ABOVE_0)
    batch_size: int = option(None, "", AT_LEAST_1)
    weight_decay: float = option(None, "", AT_LEAST_0)
    shuffle: Literal["full", "blocks"] = option("full", "")

    def __post_init__(self) -> None:
        check(self)

    def factor(self, step: int, steps: int) -> float:
        """What the schedule multiplies learning rates by at `step` of `steps`."""
        if self.schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * step / max(steps, 1)))

    def travelled(self, share: float) -> float:
        """Share of the total learning rate spent after a share of the steps (the integral of `factor`)."""
        return share if self.schedule == "constant" else share + math.sin(math.pi * share) / math.pi
