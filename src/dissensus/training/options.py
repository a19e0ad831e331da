"""Settings: what a training run does, resolved and checked before anything is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dissensus._core.errors import DataError, DissensusError
from dissensus.features import FeatureSet, check_backbone
from dissensus.functional.losses import REGULARISERS
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import methods, optim

Extent = Literal["active", "all"]
Schedule = Literal["cosine", "constant"]
DIVERSITY = 0.5  # the default weight for methods with a disagreement term
PRECISIONS = ("32-true", "bf16-mixed")


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result of a run, besides data and initial weights."""

    method: str
    members: int
    active: int
    diversity: float
    main: Extent
    hardness: Extent
    epochs: int
    lr: float
    batch_size: int
    weight_decay: float
    label_smoothing: float
    optimizer: str
    schedule: Schedule
    clip: float | None
    confidence: float
    seed: int
    precision: str

    def factor(self, step: int, steps: int) -> float:
        """What the schedule multiplies learning rates by at `step` of `steps`."""
        return optim.cosine(step, steps) if self.schedule == "cosine" else 1.0


def resolve(method: str, members: int, *, diversity: float | None, active: int | None, **rest: object) -> Settings:
    """Fill in what the method decides and check every rule; each breach is one clear line."""
    recipe = methods.METHODS[method]
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
    settings = Settings(method=method, members=members, diversity=diversity, active=active, **rest)  # type: ignore[arg-type]
    _check(settings)
    return settings


def _check(s: Settings) -> None:
    _within("diversity", s.diversity, s.diversity >= 0 and math.isfinite(s.diversity), "at least 0")
    if not 1 <= s.active <= s.members:
        raise DissensusError(f"active must be within 1..members; got active={s.active} with members={s.members}")
    if s.active == 1 and s.diversity > 0:
        raise DissensusError(
            f"one active member has nobody to disagree with; got active=1 with members={s.members} and "
            f"diversity={s.diversity:g}: use active=2 or more, or diversity=0"
        )
    _within("epochs", s.epochs, s.epochs >= 1, "at least 1")
    _within("batch_size", s.batch_size, s.batch_size >= 1, "at least 1")
    _within("lr", s.lr, 0 < s.lr < math.inf, "above 0")
    _within("weight_decay", s.weight_decay, 0 <= s.weight_decay < math.inf, "at least 0")
    _within("label_smoothing", s.label_smoothing, 0 <= s.label_smoothing < 1, "within [0, 1)")
    _within("clip", s.clip, s.clip is None or 0 < s.clip < math.inf, "above 0, or left out")
    _within("confidence", s.confidence, 0 < s.confidence <= 1, "within (0, 1]")
    _within("seed", s.seed, 0 <= s.seed < 2**31, "within 0..2147483647")
    optim.OPTIMISERS.check(s.optimizer)
    for name, value, known in (
        ("schedule", s.schedule, ("cosine", "constant")),
        ("main", s.main, ("active", "all")),
        ("hardness", s.hardness, ("active", "all")),
        ("precision", s.precision, PRECISIONS),
    ):
        if value not in known:
            raise DissensusError(f"{name} must be one of {', '.join(known)}; got {value!r}")


def _within(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise DissensusError(f"{name} must be {rule}; got {value}")


def check_data(ensemble: Ensemble, train: FeatureSet, disagreement: FeatureSet | None, settings: Settings) -> None:
    """Refuse features that this ensemble cannot be trained on with these settings."""
    if train.labels is None:
        raise DataError("training features need labels; got an unlabelled set: give labels when making it")
    present = train.class_counts.nonzero().squeeze(1)
    if len(present) < 2:
        raise DataError(f"training needs at least two classes; all {len(train)} samples are of class {int(present[0])}")
    if not tails.fits(ensemble.about, train.shape):
        width = (ensemble.about or {})["features"]
        raise DataError(f"the tail takes features of width {width}; the training set has {_shape(train)}")
    classes = ensemble.classes
    if classes is not None and int(present.max()) >= classes:
        raise DataError(
            f"the tail has {classes} classes, 0..{classes - 1}; the training set has label {int(present.max())}"
        )
    recipe = methods.METHODS[settings.method]
    if recipe.takes_set and disagreement is None and settings.diversity > 0:
        raise DataError(
            f"{settings.method} disagrees on a set of its own; none was given: "
            f"pass one as disagreement, or use sed-{settings.method}"
        )
    if recipe.disagree_on == "unsure" and settings.diversity > 0 and settings.confidence <= 1 / len(train.classes):
        raise DataError(
            f"confidence must be above 1/{len(train.classes)}, which the top class of {len(train.classes)} always has; "
            f"got {settings.confidence:g}: raise it"
        )
    if disagreement is not None and not recipe.takes_set:
        raise DataError(f"{settings.method} takes no disagreement set; leave it out, or use a2d or divdis")
    if disagreement is not None:
        check_backbone(train.provenance.get("backbone"), disagreement, "the disagreement set")
    if disagreement is not None and disagreement.shape != train.shape:
        raise DataError(
            f"the disagreement set must have the training set's features, {_shape(train)}; got {_shape(disagreement)}: "
            "extract both with the same backbone"
        )


def _shape(features: FeatureSet) -> str:
    return f"width {features.shape[0]}" if len(features.shape) == 1 else f"shape {features.shape}"
