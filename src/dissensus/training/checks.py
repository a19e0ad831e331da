"""Checks of the data before training touches anything."""

from __future__ import annotations

from dissensus._core.errors import DataError
from dissensus.features import FeatureSet, backbone_of, check_backbone
from dissensus.models.ensemble import Ensemble
from dissensus.training.methods import METHODS
from dissensus.training.options import Settings

# Of larger sets no part is taken: it would need a list of row numbers, and a billion of them do not fit into memory.
LISTED = 2**24


def check_data(ensemble: Ensemble, train: FeatureSet, disagreement: FeatureSet | None, settings: Settings) -> None:
    """Raise `DataError` for features that this ensemble cannot be trained on with these settings."""
    if not train.has_labels:
        raise DataError("training features need labels; got an unlabelled set: give labels when making it")
    samples = len(train) // train.passes
    if settings.early_stop > 0:
        check_listed(samples, "early_stop holds samples out", "leave it out, or train on a subset")
    if METHODS[settings.method].disagree_on == "unsure" and settings.diversity > 0:
        check_listed(samples, "two-stage divides the training set", "use sed-a2d, or train on a subset")
    present = train.class_counts.nonzero().squeeze(1)
    if len(present) < 2:
        raise DataError(f"training needs at least two classes; all {len(train)} samples are of class {int(present[0])}")
    ensemble.check_features(train.shape, "the training set")
    classes = ensemble.classes
    if classes is not None and int(present.max()) >= classes:
        raise DataError(
            f"the tail has {classes} classes, 0..{classes - 1}; the training set has label {int(present.max())}"
        )
    recipe = METHODS[settings.method]
    if recipe.takes_set and disagreement is None and settings.diversity > 0:
        raise DataError(
            f"{settings.method} disagrees on a set of unlabelled features; none was given: "
            f"pass one as disagreement, or use sed-{settings.method}"
        )
    if recipe.disagree_on == "unsure" and settings.diversity > 0 and settings.confidence <= 1 / len(train.classes):
        raise DataError(
            f"confidence must be above 1/{len(train.classes)}, which the top class of {len(train.classes)} always has; "
            f"got {settings.confidence:g}: raise it"
        )
    if disagreement is not None and not recipe.accepts_set:
        raise DataError(f"{settings.method} takes no disagreement set; leave it out, or use a2d, divdis or SED")
    if disagreement is not None:
        check_backbone(backbone_of(train), disagreement, "the disagreement set")
    if disagreement is not None and disagreement.shape != train.shape:
        raise DataError(
            f"the disagreement set must have the training set's features, {_shape(train)}; got {_shape(disagreement)}: "
            "extract both with the same backbone"
        )


def check_listed(samples: int, what: str, remedy: str) -> None:
    """Raise if a set has too many samples to take a part of it."""
    if samples > LISTED:
        raise DataError(f"{what} of at most {LISTED:,} samples; got {samples:,}: {remedy}")


def _shape(features: FeatureSet) -> str:
    return f"width {features.shape[0]}" if len(features.shape) == 1 else f"shape {features.shape}"
