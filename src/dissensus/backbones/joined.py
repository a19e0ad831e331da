"""JoinedBackbone: several backbones that see each image once decoded; their features are one vector.

joined = JoinedBackbone.of([backbones.create("lite0"), backbones.create("lite2")])
joined.transform.centre(image)             # (n,) uint8: what each trunk sees, one after the other
create_engine("eager", joined)(pixels)     # (B, n) -> (B, D)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from dissensus._core.digests import digest
from dissensus._core.documents import Part
from dissensus._core.errors import DissensusError
from dissensus.backbones import engines
from dissensus.backbones.backbone import Backbone, BackboneDescription
from dissensus.backbones.backbone import restore as restore_one
from dissensus.backbones.transforms import Pixels, Preprocessing


class JoinedDescription(Part):
    """What a joined run records of its backbones.

    Attributes:
        name: The names of the parts, such as lite0+lite2.
        joined: The parts.
        fingerprint: A sha256 of the fingerprints of the parts.
    """

    name: str
    joined: Annotated[tuple[BackboneDescription, ...], Field(min_length=2)]
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def part_names(parts: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a name for each of several descriptions: the backbone's, with its layers where that occurs twice.

    Raises:
        DissensusError: If a backbone occurs twice with the same layers.

    >>> part_names([{"name": "lite0", "layers": 1}, {"name": "lite0", "layers": 2}])
    ('lite0:1', 'lite0:2')
    """
    plain = [str(part["name"]) for part in parts]
    names = [
        name if plain.count(name) == 1 else f"{name}:{part['layers']}" for name, part in zip(plain, parts, strict=True)
    ]
    for name in names:
        if names.count(name) > 1:
            raise DissensusError(
                f"backbones to join must differ in name or layers; got {name} {names.count(name)} times: name each once"
            )
    return tuple(names)


def describe(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the description of several backbones as one, as plain values: see `JoinedDescription`."""
    return {
        "name": "+".join(part_names(parts)),
        "joined": [dict(part) for part in parts],
        "fingerprint": digest([part["fingerprint"] for part in parts]),
    }


def parts_of(about: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the descriptions that were joined; none for a single backbone."""
    return list((about or {}).get("joined", ()))


def restore(about: Mapping[str, Any]) -> Backbone:
    """Create the backbone, or the joined backbones, of a description.

    Raises:
        DissensusError: If the fingerprint of one has changed.
    """
    parts = parts_of(about)
    return JoinedBackbone.of([restore_one(part) for part in parts]) if parts else restore_one(about)


@dataclass(frozen=True)
class JoinedTransform(Preprocessing):
    """Several ways to see an image, of which it is decoded once."""

    parts: tuple[Preprocessing, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Preprocessing]) -> JoinedTransform:
        """Join the preprocessing of several backbones."""
        first = max(parts, key=lambda part: part.size)
        return cls(first.size, first.mean, first.std, first.interpolation, first.crop, first.squash, tuple(parts))

    @property
    def seen(self) -> list[tuple[Any, ...]]:
        """What distinguishes the pixels that each part sees; parts that see the same share them."""
        return [(part.size, part.crop, part.interpolation, part.squash) for part in self.parts]

    def centre(self, image: Image.Image) -> Pixels:
        """Return the distinct centres of an RGB image, one after the other: (n,)."""
        centres = dict(zip(self.seen, self.parts, strict=True))
        return np.concatenate([part.centre(image).reshape(-1) for part in centres.values()])

    def split(self, pixels: Tensor) -> list[Tensor]:
        """Return what each part sees, (B, H, W, 3) each, of pixels (B, n)."""
        views, start = dict[tuple[Any, ...], Tensor](), 0
        for key in dict.fromkeys(self.seen):
            side = key[0]
            views[key] = pixels[:, start : start + 3 * side**2].reshape(-1, side, side, 3)
            start += 3 * side**2
        return [views[key] for key in self.seen]


@dataclass(frozen=True, eq=False, repr=False)
class JoinedBackbone(Backbone):
    """Several backbones as one, whose features are those of all, flattened, one after the other: (D,)."""

    parts: tuple[Backbone, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Backbone]) -> JoinedBackbone:
        """Join backbones.

        Raises:
            DissensusError: If one occurs twice with the same layers.
        """
        return cls(
            name=describe([part.describe() for part in parts])["name"],
            trunk=nn.ModuleList(part.trunk for part in parts),
            tail=nn.Identity(),
            transform=JoinedTransform.of([part.transform for part in parts]),
            classes=parts[0].classes,
            layers=max(part.layers for part in parts),
            source="joined",
            parts=tuple(parts),
        )

    def __repr__(self) -> str:
        return f"JoinedBackbone({', '.join(map(repr, self.parts))})"

    @property
    def fingerprint(self) -> str:
        """A sha256 of the fingerprints of the parts."""
        return str(self.describe()["fingerprint"])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one image's features."""
        return (sum(math.prod(part.shape) for part in self.parts),)

    def describe(self) -> dict[str, Any]:
        """Return what a joined run records, as plain values."""
        return describe([part.describe() for part in self.parts])


def create_engine(name: str, backbone: Backbone, device: torch.device | str = "cpu") -> engines.Engine:
    """Return an engine for a backbone, or for joined ones: pixels (B, n) uint8 -> features (B, D) float32, on the CPU.

    Raises:
        DissensusError: If the engine is unknown, not installed, or does not run on the device.
    """
    if not isinstance(backbone, JoinedBackbone):
        return engines.create(name, backbone, device)
    transform = backbone.transform
    assert isinstance(transform, JoinedTransform)
    runs = [engines.create(name, part, device) for part in backbone.parts]

    def run(pixels: Tensor) -> Tensor:
        views = transform.split(pixels)
        return torch.cat([run(view.contiguous()).flatten(1) for run, view in zip(runs, views, strict=True)], dim=1)

    return run
