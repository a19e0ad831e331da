"""Pretrained detectors: a folder made by `dissensus export --to hub`, or a repository on the Hugging Face hub.

config.json              classes, backbone, settings, fingerprints
ensemble/                the members, and the scores that are fitted to features (scores.safetensors)
trunk.safetensors        the trunk, if the detector takes images
detector.*               the calibration, if there is one

Everything is safetensors and JSON; no code is unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from pydantic import Field, JsonValue

from dissensus import backbones
from dissensus._core import documents, tensors
from dissensus._core.documents import Document, Part
from dissensus._core.errors import DissensusError, RunError, UnknownNameError
from dissensus.backbones import Backbone, BackboneDescription, weights
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection.threshold import DOCUMENT, Identity, Threshold
from dissensus.functional import aggregates
from dissensus.models.ensemble import Ensemble

CONFIG, ENSEMBLE, TRUNK = "config.json", "ensemble", "trunk.safetensors"
FETCHED = [CONFIG, TRUNK, f"{ENSEMBLE}/*", "detector.*", "detector-*"]
REMEDY = "export it again: dissensus export RUN --to hub --out FOLDER"


class TrainedOn(Part):
    """Fingerprints of the training features and of the images they were extracted from, where known."""

    train: str | None = None
    images: str | None = None


class HubDocument(Document):
    """config.json."""

    remedy = REMEDY

    format: Literal["dissensus-hub-4"] = "dissensus-hub-4"
    library_name: Literal["dissensus"] = "dissensus"
    version: str
    classes: Annotated[tuple[str, ...], Field(min_length=1)]
    aggregate: str
    fingerprint: str  # of the members' weights
    scores: dict[str, str]  # of the fitted scores, by name
    calibrated: bool
    backbone: BackboneDescription | None
    trained_on: TrainedOn
    training: dict[str, JsonValue]


def read(where: str | os.PathLike[str], revision: str | None = None) -> dict[str, Any]:
    """Return the arguments of `Detector` from a folder or a hub repository; weights are checked by fingerprint.

    Raises:
        RunError: If there is no detector, or it is damaged.
    """
    folder = _find(where, revision)
    if not (folder / CONFIG).is_file():
        raise RunError(
            f"no detector at {where}: the folder has no {CONFIG}; make one with dissensus export RUN --to hub, or read "
            "a run folder with Detector.load"
        )
    config = documents.read(HubDocument, folder / CONFIG)
    with _exported():
        ensemble = Ensemble.load(folder / ENSEMBLE)
    if ensemble.fingerprint != config.fingerprint:
        raise RunError(f"the members' weights in {folder} are not those that were exported: {REMEDY}")
    if ensemble.score_digests != config.scores:
        raise RunError(f"the fitted scores in {folder} are not those that were exported: {REMEDY}")
    if ensemble.classes is not None and len(config.classes) != ensemble.classes:
        raise RunError(
            f"{folder / CONFIG} must name every class; the ensemble has {ensemble.classes}, it names "
            f"{len(config.classes)}: {REMEDY}"
        )
    try:
        aggregates.of_kind("logits").check(config.aggregate)
    except UnknownNameError as error:
        raise RunError(f"{folder / CONFIG} names an {error}; register it first, or {REMEDY}") from error
    about = config.backbone
    identity = Identity(
        ensemble=config.fingerprint,
        backbone=None if about is None else about.fingerprint,
        scores=ensemble.score_digests,
    )
    threshold = Threshold.load(folder, identity, remedy=REMEDY)
    if config.calibrated and threshold is None:
        raise RunError(f"the calibration in {folder} is missing: there is no {DOCUMENT}; {REMEDY}")
    for name in () if threshold is None else threshold.scores:
        with _exported():
            ensemble.fitted.get(name)  # a fitted score is read, and its digest compared
    return {
        "ensemble": ensemble,
        "classes": config.classes,
        "backbone": None if about is None else _backbone(folder, about, ensemble, config.classes),
        "aggregate": config.aggregate,
        "threshold": threshold,
        "trained_on": config.trained_on.model_dump(),
    }


@contextmanager
def _exported() -> Iterator[None]:
    """Name the remedy for an export in errors about an ensemble."""
    try:
        yield
    except RunError as error:
        raise RunError(f"{str(error).rpartition(': ')[0]}: {REMEDY}") from error


def _find(where: str | os.PathLike[str], revision: str | None) -> Path:
    name = os.fspath(where)
    if os.path.isdir(name):
        return Path(name)
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise RunError(f"no detector at {name}: there is no such folder; give one, or OWNER/NAME on the hub")
    try:
        with weights.offline_unless_reachable():
            return Path(snapshot_download(name, revision=revision, allow_patterns=FETCHED))
    except Exception as error:  # the network, the hub's client and its cache raise many kinds
        raise RunError(
            f"no detector at {name}: there is no such folder, and the hub does not give one ({_reason(error)}); check "
            "the name and the network"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, LocalEntryNotFoundError):
        return "it cannot be reached, and its cache has none"
    if isinstance(error, RevisionNotFoundError):
        return "the repository has no such revision"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or it is a private one"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120].rstrip(" .")


def _backbone(folder: Path, about: BackboneDescription, ensemble: Ensemble, classes: tuple[str, ...]) -> Backbone:
    """Return the backbone with the trunk's weights in the folder; the soup of the members is its tail."""
    state = tensors.read(folder / TRUNK, remedy=REMEDY)
    try:
        bare = backbones.create(about.name, weights.RANDOM, about.layers, size=about.size, crop=about.crop)
        bare.trunk.load_state_dict(state)
    except (DissensusError, RuntimeError) as error:  # load_state_dict raises RuntimeError where shapes differ
        reason = " ".join(str(error).split())[:160]
        raise RunError(f"{folder / TRUNK} does not fit the backbone of {CONFIG} ({reason}): {REMEDY}") from error
    transform = Preprocessing(about.size, about.mean, about.std, about.interpolation, about.crop, about.squash)
    backbone = replace(  # a new object: `bare` may have cached properties of its random weights
        bare,
        tail=ensemble.soup().eval().requires_grad_(False),
        transform=transform,
        classes=classes,
        source=str(folder.resolve()),
    )
    if backbone.fingerprint != about.fingerprint:
        raise RunError(
            f"the trunk in {folder} is not the one that made the training features, its weights or preprocessing "
            f"differ: {REMEDY}"
        )
    return backbone
