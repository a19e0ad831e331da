"""Checks of what `tune` is given, before anything is trained."""

from __future__ import annotations

from dissensus._core.errors import DataError, DissensusError
from dissensus.features import FeatureSet, backbone_of, check_backbone
from dissensus.functional import conformal


def check(features: FeatureSet, members: int, false_alarms: float, calibration: float) -> None:
    """Raise for features or parameters that cannot be used."""
    conformal.check_rate(false_alarms)
    if members < 2:
        raise DissensusError(f"tune compares ensembles with a single model; got members={members}: use 2 or more")
    if not 0 < calibration < 1:
        raise DissensusError(f"calibration must be a share within (0, 1); got {calibration:g}: try 0.2")
    if features.labels is None:
        raise DataError("tune needs labelled features; got an unlabelled set: give labels when making it")
    if features.passes > 1:
        raise DataError(
            f"tune needs each image once, as in use; these features are {features.passes} augmented passes: extract "
            "them without --augment"
        )
    if int((features.class_counts > 0).sum()) < 2:
        raise DataError(f"tune needs at least two classes; all {len(features)} samples are of one: add another")
    if int(features.class_counts.max()) < 2:
        raise DataError(
            f"tune holds out samples of every class; each of {len(features)} classes has one sample: add samples"
        )


def check_count(count: int, total: int, share: float, false_alarms: float) -> None:
    """Raise if `count` samples, a share of a total, are too few to calibrate on."""
    if count < (needed := conformal.needed(false_alarms)):
        part = "" if share == 1 else f" ({share:g} of {total} samples)"
        raise DataError(
            f"a false-alarm rate of {false_alarms:g} needs {needed} samples to calibrate on; got {count}{part}: add "
            "samples, or allow more false alarms"
        )


def check_held_out(features: FeatureSet, held_out: FeatureSet, false_alarms: float) -> None:
    """Raise now for what calibration would raise after the search."""
    check_backbone(backbone_of(features), held_out, "the held-out set")
    if held_out.shape != features.shape:
        raise DataError(
            f"held-out features must be like the training features, {features.shape}; got {held_out.shape}: extract "
            "both with the same backbone"
        )
    if held_out.passes > 1:
        raise DataError(
            f"calibration needs each image once, as in use; the held-out features are {held_out.passes} augmented "
            "passes: extract them without --augment"
        )
    check_count(len(held_out), len(held_out), 1, false_alarms)
