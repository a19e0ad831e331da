"""The soup as a plain timm checkpoint: one model with the mean of the members' weights, trunk included.

What `cuts` took off the timm model goes back into it, and the model that timm makes of the file is run against
soup(trunk(x)) before the file is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus._core.files import assembling
from dissensus.backbones import LITES, Backbone, weights
from dissensus.backbones.surgery import Tokens
from dissensus.backbones.transforms import Preprocessing
from dissensus.detection.detector import Detector
from dissensus.export import places
from dissensus.models import tails

TOLERANCE = 1e-4
TRIED = 4  # images on which the file's model must agree with soup and trunk
MARK = "dissensus"  # the key in the file's metadata that says who wrote it
REMEDY = "export it to onnx or hub"


@dataclass(frozen=True)
class Checkpoint:
    """A file that timm loads, and how."""

    path: Path
    architecture: str
    options: Mapping[str, Any]
    transform: Preprocessing

    @property
    def code(self) -> str:
        """The lines of Python that load it and make its input of an image."""
        t = self.transform
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        squash = ', crop_mode="squash"' if t.squash else ""
        return (
            f"model = timm.create_model({self.architecture!r}{options}, checkpoint_path={str(self.path)!r}).eval()\n"
            f"transform = timm.data.create_transform((3, {t.size}, {t.size}), mean={t.mean}, std={t.std}, "
            f"interpolation={t.interpolation!r}, crop_pct={t.crop:g}{squash})"
        )


def write(detector: Detector, out: Path) -> Checkpoint:
    """Write the soup of the detector's ensemble, on its trunk, as a .safetensors file that timm loads."""
    places.check_file(out, ".safetensors", _ours)
    if detector.about is None:
        raise DissensusError(
            f"a timm checkpoint holds trunk and tail; this run was trained on features that name no backbone: {REMEDY}"
        )
    backbone = detector.to("cpu").backbone
    soup = detector.ensemble.soup().eval()
    own, mine = tails.describe(backbone.tail), detector.ensemble.about
    if _shape(own) != _shape(mine):
        raise _cannot_hold(f"{backbone.name} ends in {_words(own)}, this run's members in {_words(mine)}")
    architecture = LITES[backbone.name][0] if backbone.name in LITES else backbone.name
    options = {"num_classes": len(detector.classes), **_sized(backbone)}
    model = weights.build(architecture, **options)
    trunk = backbone.trunk.model if isinstance(backbone.trunk, Tokens) else backbone.trunk
    if strange := model.load_state_dict(trunk.state_dict(), strict=False).unexpected_keys:
        raise _cannot_hold(f"timm's {architecture} has no {strange[0]}")
    _put_back(model, soup)
    with assembling(out) as path:
        tensors = {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}
        about = {"format": "pt", MARK: __version__, "classes": json.dumps(detector.classes)}
        save_file(tensors, path, about | {"preprocessing": json.dumps(backbone.transform.describe())})
        loaded = weights.build(architecture, **options, checkpoint_path=str(path)).eval()
        error = _difference(loaded, backbone, soup)
        if not error <= TOLERANCE:
            raise _cannot_hold(f"with it, timm's {architecture} differs from the soup by {error:.1g}")
    return Checkpoint(out, architecture, options, backbone.transform)


def _put_back(model: Any, soup: Any) -> None:
    """The soup's weights into the layers of the timm model that they were cut from."""
    if isinstance(soup, tails.Linear):
        _copy(soup, model.get_classifier())
    elif isinstance(soup, tails.MLP):
        block = model.blocks[-1]
        for name, target in {"norm1": block.norm2, "fc1": block.mlp.fc1, "fc2": block.mlp.fc2}.items():
            _copy(getattr(soup, name), target)
        _copy(soup.norm2, model.norm if model.global_pool == "token" else model.fc_norm)
        _copy(soup.head, model.head)
        if soup.gamma is not None:
            block.ls2.gamma.data.copy_(soup.gamma)
    else:
        _put_back_conv(model.conv_head, model.norm_head if hasattr(model, "norm_head") else model.bn2, soup.conv)
        _copy(soup.head, model.classifier)


def _put_back_conv(conv: Any, norm: Any, source: nn.Linear) -> None:
    """The tail's layer has the batch-norm folded in, which is then made to add the bias and nothing else."""
    with torch.no_grad():
        conv.weight.copy_(source.weight.view_as(conv.weight))
        if isinstance(norm, nn.Identity):
            _bias(source.bias, conv)
            return
        if conv.bias is not None:
            conv.bias.zero_()
        norm.running_mean.zero_()
        norm.running_var.fill_(1 - norm.eps)
        norm.weight.fill_(1)
        norm.bias.copy_(source.bias)


def _copy(source: Any, target: Any) -> None:
    with torch.no_grad():
        target.weight.copy_(source.weight)
    _bias(source.bias, target)


def _bias(value: Tensor, target: Any) -> None:
    """A layer without a bias takes zeros alone; what it cannot take, the check of the whole model finds."""
    if target.bias is not None:
        with torch.no_grad():
            target.bias.copy_(value)


@torch.inference_mode()
def _difference(loaded: nn.Module, backbone: Backbone, soup: nn.Module) -> float:
    side = backbone.transform.size
    x = torch.randn(TRIED, 3, side, side, generator=torch.Generator().manual_seed(0))
    expected = soup(backbone.trunk(x))
    return float((loaded(x) - expected).abs().max() / expected.abs().max().clamp(min=1))


def _sized(backbone: Backbone) -> dict[str, int]:
    """What timm must be told where images are not of the size that its model is made for."""
    config = None if backbone.name in LITES else timm.get_pretrained_cfg(backbone.name)
    size = backbone.transform.size
    fixed = config is not None and config.fixed_input_size and tuple(config.input_size[1:]) != (size, size)
    return {"img_size": size} if fixed else {}


def _shape(about: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What must agree of two tails; their classes may differ, and what gamma starts at."""
    if about is None:
        return None
    kept = {key: value for key, value in about.items() if key not in ("classes", "gamma")}
    return kept | {"scaled": about.get("gamma") is not None}


def _words(about: Mapping[str, Any] | None) -> str:
    if about is None:
        return "a module of your own"
    hidden = f" over {about['hidden']}" if "hidden" in about else ""
    scale = ", scaled" if about.get("gamma") is not None else ""
    return f"{about['name']} ({about['features']}{hidden}{scale})"


def _cannot_hold(reason: str) -> DissensusError:
    return DissensusError(f"timm is an export target that cannot hold the tail; {reason}: {REMEDY}")


def _ours(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return MARK in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False
