"""Provenance: where features come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from dissensus._core import documents
from dissensus._core.documents import Part
from dissensus._core.errors import DataError
from dissensus.backbones import BackboneDescription, engines

if TYPE_CHECKING:
    from dissensus.features.featureset import FeatureSet

Count = Annotated[int, Field(ge=1, lt=2**63)]


class Provenance(Part):
    """The fields of a provenance that are read again; there may be others."""

    model_config = ConfigDict(extra="allow")

    backbone: BackboneDescription | None = None
    images: str | None = None  # fingerprint
    engine: str = "eager"
    passes: Count = 1  # augmented, over the same images, one after the other
    bad: Annotated[int, Field(ge=0, lt=2**63)] = 0  # images that could not be read and were left out


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance as JSON has it; raise `ValueError` if it is not JSON, or not as in `Provenance`."""
    try:
        text = json.dumps(dict(values), allow_nan=False)
        Provenance.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(documents.problem(error)) from error
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return dict(json.loads(text))


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance given by the user as JSON has it; raise `DataError` as `checked` raises `ValueError`."""
    try:
        return checked(values)
    except ValueError as error:
        raise DataError(f"provenance must be plain JSON; {error}: correct the value") from error


def backbone_of(features: FeatureSet) -> dict[str, Any] | None:
    """Return the backbone that features name, with the engine that ran it; None if they name none."""
    backbone = features.provenance.get("backbone")
    return None if backbone is None else {**backbone, "engine": _engine(features)}


def check_backbone(expected: Mapping[str, Any] | None, features: FeatureSet, name: str) -> None:
    """Raise if features come from another trunk than expected, or from an engine whose features differ.

    What is not known is not compared.

    Args:
        expected: The description of a backbone, with the engine if that is to be compared.
        features: The features.
        name: What the error calls the features.

    Raises:
        DataError: If the fingerprints of the backbones differ, or the engines are not interchangeable.
    """
    backbone = features.provenance.get("backbone")
    if expected is None or backbone is None:
        return
    if backbone["fingerprint"] == expected["fingerprint"]:
        engine = _engine(features)
        if not engines.interchangeable(engine, expected.get("engine", engine)):
            raise DataError(
                f"features must come from one engine, since those of onnx-int8 differ; {name} comes from {engine}, the "
                f"training set from {expected['engine']}: extract both with the same engine"
            )
        return
    keys = ("name", "layers", "size", "crop", "weights")
    key = next((key for key in keys if backbone.get(key) != expected.get(key)), "fingerprint")
    raise DataError(
        f"features must come from one backbone; {name} has {key} {str(backbone.get(key))[:40]}, the training set "
        f"{str(expected.get(key))[:40]}: extract both with the same backbone"
    )


def _engine(features: FeatureSet) -> str:
    return str(features.provenance.get("engine", "eager"))


def passes_of(provenance: Mapping[str, Any], rows: int) -> int:
    """Return the number of passes, 1 by default; raise `DataError` if it does not divide the number of rows."""
    passes = provenance.get("passes", 1)
    if not isinstance(passes, int) or passes < 1 or rows % passes:
        raise DataError(
            f"passes must divide the number of rows; got {passes!r} of {rows} rows: write the features again"
        )
    return passes
