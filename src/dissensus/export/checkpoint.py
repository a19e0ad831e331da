"""The soup as a timm checkpoint: one model with the mean of the members' weights, trunk included.

The model that timm loads from the file is compared with soup(trunk(x)) before the file is moved into place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus._core.outputs import assembling
from dissensus.backbones import LITES, Backbone, surgery, weights
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection.detector import Detector
from dissensus.export.parity import TOLERANCE
from dissensus.export.targets import MARK, Written, check_file, register
from dissensus.models import tails
from dissensus.training.run import Run

SAMPLES = 4  # images on which the model must agree with soup(trunk(x))
REMEDY = "export it to onnx or hub"


@register("timm")
def to_timm(run: Run, out: Path) -> Written:
    """A timm checkpoint of the soup, the mean of the members' weights; it classifies, but detects nothing."""
    detector = Detector.load(run.folder)
    code = write(detector, out)
    usage = f"the mean of {len(detector.ensemble)} members' weights, checked against PyTorch"
    return Written(out, usage, code)


def write(detector: Detector, out: Path) -> str:
    """Write trunk and soup as a .safetensors file; return the lines of Python that load it."""
    check_file(out, ".safetensors", _is_export)
    if detector.backbone_info is None:
        raise DissensusError(
            f"a timm checkpoint holds trunk and tail; this run was trained on features that name no backbone: {REMEDY}"
        )
    backbone = detector.to("cpu").backbone
    soup = detector.ensemble.soup().eval()
    known, tail = tails.describe(backbone.tail), detector.ensemble.about
    norm = "none" if tail is None else tail.get("norm", "none")
    if norm != "none":  # dividing by a length cannot be folded into weights
        raise _cannot_hold(
            f"{backbone.name} has no place for norm {norm}, which this run's members begin with",
            f"train with --norm none, or {REMEDY}",
        )
    if _shape(known) != _shape(tail):
        raise _cannot_hold(f"{backbone.name} ends in {_words(known)}, this run's members in {_words(tail)}")
    architecture = LITES[backbone.name][0] if backbone.name in LITES else backbone.name
    options = {"num_classes": len(detector.classes), **_sized(backbone)}
    model = weights.build(architecture, **options)
    try:
        surgery.join(model, backbone.trunk, soup)
    except DissensusError as error:
        raise _cannot_hold(f"timm's {error}") from error
    with assembling(out) as path:
        tensors = {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}
        about = {"format": "pt", MARK: __version__, "classes": json.dumps(detector.classes)}
        save_file(tensors, path, about | {"preprocessing": json.dumps(backbone.transform.describe())})
        loaded = weights.build(architecture, **options, checkpoint_path=str(path)).eval()
        difference = _difference(loaded, backbone, soup)
        if not difference <= TOLERANCE:
            raise _cannot_hold(f"with it, timm's {architecture} differs from the soup by {difference:.1g}")
    return _code(out, architecture, options, backbone.transform)


def _code(path: Path, architecture: str, options: Mapping[str, Any], t: Preprocessing) -> str:
    arguments = "".join(f", {name}={value!r}" for name, value in options.items())
    squash = ', crop_mode="squash"' if t.squash else ""
    return (
        f"model = timm.create_model({architecture!r}{arguments}, checkpoint_path={str(path)!r}).eval()\n"
        f"transform = timm.data.create_transform((3, {t.size}, {t.size}), mean={t.mean}, std={t.std}, "
        f"interpolation={t.interpolation!r}, crop_pct={t.crop:g}{squash})"
    )


@torch.inference_mode()
def _difference(loaded: nn.Module, backbone: Backbone, soup: nn.Module) -> float:
    side = backbone.transform.size
    x = torch.randn(SAMPLES, 3, side, side, generator=torch.Generator().manual_seed(0))
    expected = soup(backbone.trunk(x))
    return float((loaded(x) - expected).abs().max() / expected.abs().max().clamp(min=1))


def _sized(backbone: Backbone) -> dict[str, int]:
    """The options of a timm model for images that are not of its usual size."""
    config = None if backbone.name in LITES else timm.get_pretrained_cfg(backbone.name)
    size = backbone.transform.size
    fixed = config is not None and config.fixed_input_size and tuple(config.input_size[1:]) != (size, size)
    return {"img_size": size} if fixed else {}


def _shape(about: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What must agree of two tails; their number of classes and initial gamma may differ."""
    if about is None:
        return None
    kept = {key: value for key, value in about.items() if key not in ("classes", "gamma")}
    return kept | {"scaled": about.get("gamma") is not None}


def _words(about: Mapping[str, Any] | None) -> str:
    if about is None:
        return "a custom module"
    hidden = f" over {about['hidden']}" if "hidden" in about else ""
    scale = ", scaled" if about.get("gamma") is not None else ""
    return f"{about['name']} ({about['features']}{hidden}{scale})"


def _cannot_hold(reason: str, remedy: str = REMEDY) -> DissensusError:
    return DissensusError(f"timm is an export target that cannot hold the tail; {reason}: {remedy}")


def _is_export(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return MARK in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False
