"""An untrained ensemble for a set of features: which tail, with which norm, from which weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.features import FeatureSet
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training.options import MEMBERS

INITS = ("random", "pretrained")


def new_ensemble(
    features: FeatureSet,
    members: int = MEMBERS,
    *,
    tail: str | None = None,
    norm: str | None = None,
    init: str = "random",
    seed: int = 0,
) -> Ensemble:
    """Create an untrained ensemble for these features.

    Args:
        features: What it is to be trained on.
        members: How many members.
        tail: A name in `TAILS`, or "backbone" for the layers that were cut off; None: those, if they are more than the
            classifier, else linear.
        norm: What the tail does to features first, a name in `NORMS`; None: the tail's default, l2 for linear, but
            "none" for tail "backbone" and init "pretrained", whose weights expect features as they are.
        init: "random", or "pretrained" to start from the backbone's weights as far as they fit.
        seed: Decides the initial weights.

    Raises:
        DissensusError: If there is no such tail, norm or init.
        DataError: If the tail does not fit the features, or they name no backbone where one is needed.

    >>> from dissensus import suites
    >>> new_ensemble(suites.load("digits", backbone="pixels").train, members=3)
    Ensemble(3 members, linear tail, 64 features -> 8 classes, 1,560 parameters)
    """
    about = features.provenance.get("backbone")
    if tail is None:
        tail = "backbone" if about is not None and about["layers"] > 1 else "linear"
    check_tail(tail, norm)
    if init not in INITS:
        raise DissensusError(f"init must be random or pretrained; got {init!r}")
    if about is None and (tail == "backbone" or init == "pretrained"):
        raise DataError(
            f"tail {tail} with init {init} needs a backbone; these features name none: extract them with one"
        )
    description = {**_description(tail, features, about), "classes": max(2, len(features.classes))}
    if norm is None and (tail == "backbone" or init == "pretrained"):
        norm = "none"
    if norm is not None and tails.default_norm(description["name"]) is not None:
        description["norm"] = norm
    ensemble = Ensemble(tails.build(description), members=members, seed=seed)
    if init == "pretrained":
        assert about is not None  # refused above
        if not ensemble.start_from(backbones.restore(about).tail):
            raise DataError(
                f"init pretrained needs a tail like the backbone's; tail {tail} has nothing of it: use backbone"
            )
    return ensemble


def check_tail(tail: str, norm: str | None = None) -> None:
    """Raise if `new_ensemble` does not know the tail or the norm, or if that tail takes none."""
    names = (*tails.TAILS, "backbone")
    if tail not in names:
        raise UnknownNameError("tail", tail, names)
    # a tail that was cut off is a built-in one, and these take all norms
    tails.check_norm("linear" if tail == "backbone" else tail, norm)


def _description(tail: str, features: FeatureSet, about: Mapping[str, Any] | None) -> dict[str, Any]:
    description = (about or {}).get("tail")
    if tail != "backbone":
        description = {"name": tail, "features": tails.width(tail, features.shape)}
    if description is None or not tails.fits(description, features.shape):
        raise DataError(
            f"tail {tail} does not take rows of shape {features.shape}: use tail backbone, or extract with layers 1"
        )
    return dict(description)
