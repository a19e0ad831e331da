"""Backbones: timm models, frozen, cut into trunk and tail.

    backbone = backbones.create("lite0")                  # EfficientNet-Lite0, its weights from a pip package
    features = backbone.trunk(images)                     # (B, 3, H, W) -> (B, ...), run once
    logits = backbone.tail(features)                      # (B, C), those of the whole model

Any timm model works; weights come from a pip package, a local file, or the Hugging Face hub.
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
from typing import Annotated, Any

import torch
from pydantic import Field
from timm.data.config import resolve_data_config
from timm.data.imagenet_info import ImageNetInfo
from torch import Tensor, nn

from dissensus._core.documents import Part
from dissensus._core.errors import DissensusError
from dissensus.backbones import surgery
from dissensus.backbones import weights as timm_weights
from dissensus.backbones.transforms import Preprocessing
from dissensus.models import tails
from dissensus.models.saved import TailInfo

TOLERANCE = 1e-4


class BackboneDescription(Part):
    """What features, runs and exports record of a backbone: enough to create it again and to recognise it.

    Attributes:
        name: The name that `create` takes.
        weights: "package", "hub", "random", or a file.
        layers: How much the tail holds.
        size, mean, std, interpolation, crop, squash: The preprocessing.
        tail: The tail's name and sizes.
        fingerprint: A sha256 of trunk, weights and preprocessing.
        engine: The engine that computed the training features.
    """

    name: str
    weights: str
    layers: Annotated[int, Field(ge=1, le=2)]
    size: Annotated[int, Field(ge=1, le=2**16)]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str
    crop: Annotated[float, Field(gt=0, le=1)]
    squash: bool = False
    tail: TailInfo | None
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    engine: str = "eager"


@dataclass(frozen=True, eq=False, repr=False)
class Backbone:
    """A frozen model in two parts: `tail(trunk(x))` is the model, (B, 3, H, W) -> (B, C).

    Attributes:
        name: The name that `create` takes.
        trunk: (B, 3, H, W) -> features (B, ...).
        tail: Features (B, ...) -> logits (B, C).
        transform: Turns an image into the input of the trunk.
        classes: The names of the C classes.
        layers: How much the tail holds: 1, the classifier; 2, the layer before it too.
        source: Where the weights come from: "package", "hub", "random", or a file.
    """

    name: str
    trunk: nn.Module
    tail: nn.Module
    transform: Preprocessing
    classes: tuple[str, ...]
    layers: int
    source: str

    def __call__(self, x: Tensor) -> Tensor:
        """Return logits (B, C) of transformed images (B, 3, H, W)."""
        logits: Tensor = self.tail(self.trunk(x))
        return logits

    def __repr__(self) -> str:
        size, parts = self.transform.size, "1 layer" if self.layers == 1 else f"{self.layers} layers"
        return f"Backbone({self.name} at {size} px, {parts} in the tail, weights {self.source!r})"

    @cached_property
    def fingerprint(self) -> str:
        """A sha256 of everything that features depend on: trunk, weights, cut, preprocessing."""
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
        """Return what features and runs record, as plain values: see `BackboneDescription`."""
        return {
            "name": self.name,
            "weights": self.source,
            "layers": self.layers,
            **self.transform.describe(),
            "tail": tails.describe(self.tail),
            "fingerprint": self.fingerprint,
        }

    def new_tail(self, classes: int, *, pretrained: bool = False) -> nn.Module:
        """Return a new tail of this architecture, on features as they are: the model has no norm before it.

        Args:
            classes: The number of classes.
            pretrained: Copy the backbone's weights where they fit; a head for other classes is new.
        """
        about = tails.describe(self.tail)
        assert about is not None  # `surgery.cut` returns built-in tails only
        tail = tails.build(about | {"classes": classes})
        if pretrained:
            state = tail.state_dict()
            fitting = {k: v for k, v in self.tail.state_dict().items() if state[k].shape == v.shape}
            tail.load_state_dict(state | fitting)
        return tail


def create(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    layers: int = 2,
    *,
    size: int | None = None,
    crop: float | None = None,
) -> Backbone:
    """Create a backbone, frozen and in eval mode.

    A forward pass checks that trunk and tail together compute what the whole model computes.

    Args:
        name: lite0, lite1, lite2, or any name that timm knows: dissensus list backbones.
        weights: A local file (safetensors, or a pickle of tensors); "random"; None: the pretrained ones.
        layers: How much the tail holds: 1, the classifier; 2, the layer before it too, if the architecture allows;
            see `Backbone.layers` for the result.
        size: Height and width of the input in pixels; None: that of the pretrained weights.
        crop: Share of the shorter side that is kept; None: that of the pretrained weights.

    Raises:
        DissensusError: If the model is unknown, its weights are missing, or it cannot be cut or take that size.

    Example:
        >>> backbones.create("lite0", layers=1)
        Backbone(lite0 at 224 px, 1 layer in the tail, weights 'package')
    """
    if layers not in (1, 2):
        raise DissensusError(f"layers must be 1, the classifier, or 2, the layer before it too; got {layers}")
    config = timm_weights.config_of(name)
    transform = _preprocessing(config, size, crop)
    with _explain_size(name, transform.size):
        x = _probe(transform, 2)
        model, source = timm_weights.create(name, weights, config, transform.size)
        model.eval().requires_grad_(False)
        with torch.inference_mode():
            whole: Tensor = model(x)
    with torch.random.fork_rng(devices=[]):  # new layers draw random weights before they get the model's
        parts = surgery.cut(model, layers)
    if parts is None:
        raise DissensusError(f"{name} has no linear classifier to cut off: choose another backbone")
    (trunk, tail), layers = parts
    trunk.eval().requires_grad_(False)
    tail.eval().requires_grad_(False)
    with torch.inference_mode():
        joined = tail(trunk(x))
    same = joined.shape == whole.shape
    error = float((joined - whole).abs().max() / whole.abs().max().clamp(min=1)) if same else math.inf
    if not error <= TOLERANCE:
        raise DissensusError(f"{name} cannot be cut: its parts differ from the whole by {error:.1g}; choose another")
    return Backbone(name, trunk, tail, transform, _class_names(whole.shape[-1]), layers, source)


def restore(about: Mapping[str, Any]) -> Backbone:
    """Create the backbone that `Backbone.describe` described.

    Raises:
        DissensusError: If its fingerprint has changed.
    """
    source = about["weights"]
    weights = None if source in ("package", "hub") else source
    backbone = create(about["name"], weights, about["layers"], size=about["size"], crop=about["crop"])
    if backbone.fingerprint != about["fingerprint"]:
        raise DissensusError(
            f"the backbone must be the one that computed the features; {backbone.name} with weights {source!r} has "
            "other weights or preprocessing now: restore the old ones, or extract again"
        )
    return backbone


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
def _explain_size(name: str, size: int) -> Iterator[None]:
    """Raise whatever a model raises for an input size that it does not take as one line."""
    try:
        yield
    except DissensusError:
        raise
    except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DissensusError(f"{name} does not take images of {size} px ({reason}): choose another --size") from error


def _class_names(count: int) -> tuple[str, ...]:
    if count == timm_weights.HEADLESS:
        return ()
    return tuple(ImageNetInfo().label_names() if count == 1000 else map(str, range(count)))
