"""Reading a detector from a folder that was made for the Hugging Face hub, or from the hub itself.

config.json              classes, backbone, settings, fingerprints
ensemble/                the members
trunk.safetensors        the trunk, where the detector takes images
detector.*               the calibration, where there is one

Everything is safetensors and JSON: no code is ever unpickled, whoever made the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file

from dissensus import backbones
from dissensus._core.errors import RunError
from dissensus._core.files import read_json
from dissensus.backbones import Backbone, weights
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection.threshold import Threshold
from dissensus.models.ensemble import Ensemble

FORMAT = "dissensus-hub-1"
CONFIG, ENSEMBLE, TRUNK = "config.json", "ensemble", "trunk.safetensors"
NEEDED = {"classes": list, "aggregate": str, "fingerprint": str, "calibrated": bool, "trained_on": dict}
FETCHED = [CONFIG, TRUNK, f"{ENSEMBLE}/*", "detector.*"]


@dataclass(frozen=True)
class Parts:
    """What a detector is made of."""

    ensemble: Ensemble
    classes: tuple[str, ...]
    aggregate: str
    backbone: Backbone | None
    threshold: Threshold | None
    trained_on: Mapping[str, Any]


def read(where: str | os.PathLike[str], revision: str | None = None) -> Parts:
    """The parts in a folder, or in a repository of the hub as OWNER/NAME; weights are checked by fingerprint."""
    folder = _find(where, revision)
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise RunError(
            f"{where} is not a detector from the hub: config.json is missing or foreign; export one with dissensus "
            "export RUN --to hub, or read a run folder with Detector.load"
        )
    if wrong := [key for key, kind in NEEDED.items() if not isinstance(config.get(key), kind)]:
        raise RunError(f"config.json in {where} is damaged: {wrong[0]} is missing; export it again")
    ensemble = Ensemble.load(folder / ENSEMBLE)
    if ensemble.fingerprint != config["fingerprint"]:
        raise RunError(f"the members' weights in {where} are not those that were exported; export it again")
    classes, about = tuple(map(str, config["classes"])), config.get("backbone")
    if ensemble.classes is not None and len(classes) != ensemble.classes:
        raise RunError(
            f"a class needs a name; {folder} names {len(classes)}, the tail has {ensemble.classes}: get it anew"
        )
    backbone = None if about is None else _backbone(folder, about, ensemble, classes)
    identity = {"ensemble": config["fingerprint"], "backbone": (about or {}).get("fingerprint")}
    threshold = Threshold.load(folder, identity)
    if config["calibrated"] and threshold is None:
        raise RunError(f"the calibration in {where} is missing: detector.json is not there; export it again")
    return Parts(ensemble, classes, config["aggregate"], backbone, threshold, config["trained_on"])


def _find(where: str | os.PathLike[str], revision: str | None) -> Path:
    name = os.fspath(where)
    if os.path.isdir(name):
        return Path(name)
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        raise RunError(f"no detector at {name}: there is no such folder; give one, or OWNER/NAME on the hub")
    try:
        with weights.offline_unless_reachable():
            return Path(snapshot_download(name, revision=revision, allow_patterns=FETCHED))
    except Exception as error:  # whatever the network, the hub's client or its cache may raise
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


def _backbone(folder: Path, about: Mapping[str, Any], ensemble: Ensemble, classes: Sequence[str]) -> Backbone:
    """The trunk with the weights that are in the folder; what became of the backbone's own tail is the soup."""
    try:
        bare = backbones.create(about["name"], weights.RANDOM, about["layers"], size=about["size"], crop=about["crop"])
        bare.trunk.load_state_dict(load_file(folder / TRUNK))
        transform = Preprocessing(
            about["size"],
            tuple(about["mean"]),
            tuple(about["std"]),
            about["interpolation"],
            about["crop"],
            about.get("squash", False),
        )
        expected = about["fingerprint"]
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise RunError(f"the trunk in {folder} cannot be read ({reason}); export it again") from error
    # a new one, for what was computed of the weights before
    made = replace(
        bare,
        tail=ensemble.soup().eval().requires_grad_(False),
        transform=transform,
        classes=tuple(classes),
        source=str(folder.resolve()),
    )
    if made.fingerprint != expected:
        raise RunError(
            f"the trunk in {folder} is not the one that made the training features: its weights or preprocessing "
            "differ; export it again"
        )
    return made
