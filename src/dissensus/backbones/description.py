"""BackboneDescription: what features, runs and exports record of a backbone."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dissensus._core.documents import Part
from dissensus.models.saved import TailInfo


class BackboneDescription(Part):
    """Enough to create a backbone again and to recognise it: what `Backbone.describe` returns, as part of a document.

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
