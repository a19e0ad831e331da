"""Pretrained detectors: a folder written by `Detector.save_pretrained`, or a repository on the Hugging Face hub.

README.md                the model card
config.json              classes, backbone, settings, fingerprints
ensemble/                the members, and the scores that are fitted to features (scores.safetensors)
trunk.safetensors        the trunk, if the detector takes images
detector.*               the calibration, if there is one

Everything is safetensors and JSON; no code is unpickled.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from huggingface_hub import CommitInfo
from pydantic import Field, JsonValue

from dissensus import __version__, backbones
from dissensus._core import documents, tensors
from dissensus._core.documents import Document, Part
from dissensus._core.errors import DissensusError, RunError, UnknownNameError
from dissensus._core.files import check_folder, make_folder, replacing
from dissensus._core.outputs import assembling
from dissensus.backbones import Backbone, BackboneDescription, joined, weights
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection import card, hub
from dissensus.detection.threshold import DOCUMENT, Identity, Threshold
from dissensus.functional import aggregates
from dissensus.models.ensemble import Ensemble

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector

CONFIG, ENSEMBLE, TRUNK, README = "config.json", "ensemble", "trunk.safetensors", "README.md"
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


def write(detector: Detector, out: Path, repo_id: str, **about: Any) -> None:
    """Write a detector into a new folder, with everything it needs to predict elsewhere.

    Args:
        detector: The detector.
        out: A new or empty folder.
        repo_id: The repository that it is for, OWNER/NAME.
        about: What the card says besides, see `card.create`.

    Raises:
        RunError: If the detector joins several backbones, or the folder cannot be written.
    """
    check_folder(out)
    if parts := joined.parts_of(detector.backbone_info):
        names = " and ".join(part["name"] for part in parts)
        raise RunError(f"a pretrained detector has one backbone; this one joins {names}: give the run of one of them")
    document = _config(detector)
    with assembling(out) as folder:
        make_folder(folder)
        detector.ensemble.save(folder / ENSEMBLE)
        if detector.backbone_info is not None:
            state = detector.backbone.trunk.state_dict()
            tensors.write(folder / TRUNK, {name: value.clone() for name, value in state.items()})
        if detector.threshold is not None:
            detector.threshold.save(folder, detector.identity)
        documents.write(folder / CONFIG, document)
        with replacing(folder / README) as path:
            card.create(detector, document, repo_id=repo_id, **about).save(path)
        read(folder)  # a folder that cannot be read back is not published


def push(
    detector: Detector,
    repo_id: str,
    *,
    out: Path | None = None,
    license: str | None = None,
    datasets: Sequence[str] = (),
    **options: Any,
) -> CommitInfo:
    """Push a detector to the hub; arguments as for `Detector.push_to_hub`.

    With `out`, a new or empty folder, what is pushed stays there. It is written before it is pushed, and moved there
    afterwards: a full disk is noticed before the hub has anything, and a push that fails leaves no folder.

    Raises:
        RunError: If it cannot be written, or the hub does not take it.
    """
    if out is not None:
        check_folder(out)
    name = hub.name_of(repo_id, options.get("token"))
    with _temporary() if out is None else assembling(out) as folder:
        write(detector, folder, name, license=license, datasets=datasets)
        return hub.push(folder, name, replace=FETCHED, **options)


@contextmanager
def _temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dissensus-") as folder:
        yield Path(folder) / "detector"


def _config(detector: Detector) -> HubDocument:
    about = detector.backbone_info
    if about is not None:  # the weights' file name only: its folder is private
        about = {**about, "weights": Path(about["weights"]).name}
    return HubDocument(
        version=__version__,
        classes=detector.classes,
        aggregate=detector.aggregate,
        fingerprint=detector.ensemble.fingerprint,
        scores=detector.ensemble.score_digests,
        calibrated=detector.threshold is not None,
        backbone=None if about is None else BackboneDescription.model_validate(about, strict=False),
        trained_on=TrainedOn(**detector.trained_on),
        training=detector.training,
    )


def read(where: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Return the arguments of `Detector` from a folder or a hub repository; weights are checked by fingerprint.

    Args:
        where: The folder, or OWNER/NAME.
        options: How to fetch it, see `hub.fetch`.

    Raises:
        RunError: If there is no detector, or it is damaged.
    """
    folder = _find(where, options)
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
        "training": config.training,
    }


@contextmanager
def _exported() -> Iterator[None]:
    """Name the remedy for an export in errors about an ensemble."""
    try:
        yield
    except RunError as error:
        raise RunError(f"{str(error).rpartition(': ')[0]}: {REMEDY}") from error


def _find(where: str | os.PathLike[str], options: Mapping[str, Any]) -> Path:
    name = os.fspath(where)
    if os.path.isdir(name):
        return Path(name)
    if not hub.is_repository(name):
        raise RunError(f"no detector at {name}: there is no such folder; give one, or OWNER/NAME on the hub")
    return hub.fetch(name, FETCHED, **options)


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
