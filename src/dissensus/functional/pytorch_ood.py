"""Detectors of pytorch-ood as scores, by name: `SCORES["pytorch-ood:NNGuide"]`.

Any feature-based detector that needs only features, labels and a linear head works. The state is a sample of the
training features, their labels and the head; the detector is fitted to it again when the score is created, so no object
of pytorch-ood is saved. Features are L2-normalised times sqrt(D), the space in which the head is linear.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dissensus._core import extras
from dissensus._core.errors import DataError, DissensusError, UnknownNameError
from dissensus.functional.fitted import FittedScore, Rows, unit
from dissensus.functional.scores import SCORES

PREFIX = "pytorch-ood:"
HEAD = {"head", "w", "b"}  # arguments that come from the model's last layer
KNOWN = {"encoder", "model", "d"} | HEAD


class PytorchOOD(FittedScore):
    """A detector of pytorch-ood, of L2-normalised features times sqrt(D): (B, D) -> (B,), float32 on the CPU inside.

    Subclasses are made by `resolve`.
    """

    exportable = False
    why_not = "detectors of pytorch-ood cannot be traced"
    detector: ClassVar[Any]  # a class of pytorch_ood.detector
    bank: Tensor  # (n, D) training features, as stored
    labels: Tensor  # (n,)

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__(state)
        z, labels = _scaled(self.bank), self.labels.cpu()
        if not self.needs_head:
            labels = torch.unique(labels, return_inverse=True)[1]  # some need every class; a head fixes their order
        try:
            with torch.no_grad():
                self._fitted = self.detector(**self._options(state)).fit_features(z, labels)
        except (AssertionError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split()) or "classes are missing"
            raise DataError(f"score {self.name!r} cannot be fitted to {len(z)} training rows: {reason}") from error

    @classmethod
    def fit(cls, features: Rows, labels: Tensor) -> dict[str, Tensor]:
        """Keep a sample of the training features and, if the detector needs it, the head.

        Raises:
            DissensusError: If the detector needs a head and there is none, or it cannot be fitted to the sample.
        """
        cls.check_head(features.head)
        sample = features.sample
        state = {"bank": sample.features, "labels": sample.labels}
        if cls.needs_head and features.head is not None:
            weight, bias = (value.detach().cpu().float() for value in features.head)
            state |= {"weight": weight, "bias": bias}
        cls(state)  # raises now what loading the state would raise later
        return state

    @property
    def width(self) -> int:
        """D."""
        return self.bank.shape[1]

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, D), (M, B, C) -> (B,)."""
        if not len(features):
            return features.new_empty(0)
        with torch.no_grad():
            score: Tensor = self._fitted.predict_features(_scaled(features))
        return score.to(features)

    def _options(self, state: Mapping[str, Tensor]) -> dict[str, object]:
        """Arguments of the detector that have no default, by name."""
        D = self.width
        values: dict[str, object] = {"encoder": None, "model": None, "d": min(1000 if D > 1500 else 512, D // 2)}
        if "weight" in state:
            weight, bias = state["weight"].cpu(), state["bias"].cpu()
            head = nn.Linear(D, len(bias))
            head.load_state_dict({"weight": weight, "bias": bias})
            values |= {"head": head.requires_grad_(False), "w": weight, "b": bias}
        return {name: values[name] for name in _arguments(self.detector)}


@cache
def resolve(name: str) -> type[PytorchOOD]:
    """Return the score made of a detector, given its name in pytorch-ood, such as KNN.

    Raises:
        DissensusError: If pytorch-ood is missing, has no such detector of features, or it needs more than a head.
    """
    extras.require("ood", f"score {PREFIX + name!r}")
    from pytorch_ood import api
    from pytorch_ood import detector as module

    classes = {key: value for key in module.__all__ if isinstance(value := getattr(module, key), type)}
    detectors = {key: value for key, value in classes.items() if issubclass(value, api.FeaturesDetector)}
    if name not in detectors:
        raise UnknownNameError("score", PREFIX + name, [PREFIX + key for key in detectors])
    if more := sorted(_arguments(detectors[name]).keys() - KNOWN):
        raise DissensusError(
            f"a detector of pytorch-ood may need features, labels and a linear head; {name} needs {', '.join(more)}: "
            "choose another score"
        )
    detector = detectors[name]
    about = {"name": PREFIX + name, "detector": detector, "needs_head": bool(HEAD & _arguments(detector).keys())}
    return type(name, (PytorchOOD,), {**about, "__doc__": PytorchOOD.__doc__})


def _arguments(detector: type) -> dict[str, inspect.Parameter]:
    """Arguments of a detector without a default."""
    parameters = inspect.signature(detector).parameters
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in variadic
    }


def _scaled(features: Tensor) -> Tensor:
    """L2-normalise vectors and multiply them by sqrt(D): (B, D) -> (B, D) float32 on the CPU."""
    scaled: Tensor = unit(features.detach().cpu().float()) * features.shape[1] ** 0.5
    return scaled


SCORES.add_prefix(PREFIX, resolve)
