"""An ensemble on disk: `ensemble.json`, which says how to build it, and its weights in `ensemble.safetensors`.

Its fitted scores, if there are any, are in `scores.safetensors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch
from pydantic import ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError, model_validator
from torch import Tensor, nn

from dissensus._core import documents, tensors
from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import make_folder
from dissensus.functional.fitted import FittedScore
from dissensus.models import fitted, tails

INFO = "ensemble.json"
WEIGHTS = "ensemble.safetensors"


class TailInfo(documents.Part):
    """A tail in a document: its name in `TAILS` and the arguments of its constructor, checked by their types."""

    model_config = ConfigDict(extra="allow")

    name: str
    features: PositiveInt
    classes: PositiveInt

    @model_validator(mode="after")
    def _check_options(self) -> TailInfo:
        hints = get_type_hints(tails.TAILS[self.name].module.__init__)
        for option, value in (self.model_extra or {}).items():
            if option not in hints:
                raise ValueError(f"tail {self.name} has no option {option!r}")
            try:
                TypeAdapter(hints[option]).validate_python(value, strict=True)
            except ValidationError as error:
                raise ValueError(f"{option}: {documents.problem(error)}") from error
        return self


class MemberTailInfo(TailInfo):
    """The tail of an ensemble: also its norm, without which weights mean nothing; a backbone's tail has none."""

    @model_validator(mode="after")
    def _check_norm(self) -> MemberTailInfo:
        if "norm" not in (self.model_extra or {}) and tails.default_norm(self.name) is not None:
            raise ValueError("norm is missing")
        return self


class EnsembleInfo(documents.Document):
    """ensemble.json."""

    remedy = "give a folder that Ensemble.save wrote"

    format: Literal["dissensus-ensemble-3"] = "dissensus-ensemble-3"
    members: PositiveInt
    seed: int = Field(ge=0, lt=2**31)
    method: str | None  # None: not trained by `fit`
    tail: MemberTailInfo | None  # None: a module that is not registered
    module: str  # the class of the tail
    weights: documents.Sha256  # of the tensors in ensemble.safetensors
    scores: dict[str, documents.Sha256]  # the fitted scores: name -> sha256 of its tensors


def write(folder: Path, weights: Mapping[str, Tensor], scores: Mapping[str, FittedScore], **about: Any) -> None:
    """Write the files, each atomically, the document last; `about` are its fields besides the digests."""
    make_folder(folder)
    digest = tensors.write(folder / WEIGHTS, weights)
    written = fitted.write(folder, scores)
    documents.write(folder / INFO, EnsembleInfo(**about, weights=digest, scores=written))
    if not written:
        (folder / fitted.FILE).unlink(missing_ok=True)  # of an ensemble that was here before


def read(folder: Path) -> tuple[EnsembleInfo, dict[str, Tensor]]:
    """Read document and weights."""
    info = documents.read(EnsembleInfo, folder / INFO)
    return info, tensors.read(folder / WEIGHTS, remedy="train the ensemble again", digest=info.weights)


def build_tail(folder: Path, info: EnsembleInfo, weights: Mapping[str, Tensor]) -> nn.Module:
    """Build the tail of a saved ensemble, if the weights fit it."""
    if info.tail is None:
        raise RunError(f"the tail in {folder} is a custom module ({info.module}): pass it as load(..., tail=)")
    about = info.tail.model_dump()
    try:
        with torch.device("meta"):  # without memory: a damaged file may ask for any amount
            shapes = {name: value.shape for name, value in tails.build(about).state_dict().items()}
    except DissensusError as error:
        raise RunError(f"{folder / INFO} is damaged, tail: {error}") from error
    check_shapes(folder, weights, {name: (info.members, *shape) for name, shape in shapes.items()})
    return tails.build(about)


def check_shapes(folder: Path, weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `RunError` if the weights of a saved ensemble have other names or shapes."""
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    for name in dict.fromkeys([*expected, *shapes]):
        if (wanted := expected.get(name, "absent")) != (got := shapes.get(name, "absent")):
            raise RunError(
                f"the weights in {folder / WEIGHTS} do not fit the tail: {name} must be {wanted}; got {got}: train the "
                "ensemble again"
            )
