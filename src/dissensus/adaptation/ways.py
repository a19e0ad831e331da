"""Ways to use a few labels: each is a blend of members and a correction of it, hence an ensemble again.

    logits(x) = sum_m weights_m z^m(x) + correction(embed(x))

z^m are the members' logits and `embed` is the input of one member's last layer, so every blend with a correction is one
member with another last layer.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dissensus._core.errors import DissensusError
from dissensus.functional.heads import Correction, Space, fit_correction, fit_weights
from dissensus.models.ensemble import Ensemble

ALIKE = 1e-6  # members that fit the labels equally well, but for rounding
MOST = 10.0  # strength of a correction with many labels,
PER_LABEL = 1.5  # and for each label per class while there are few


class Blend(NamedTuple):
    """How logits follow from the members."""

    weights: Tensor  # (M,) float64, of the members' logits
    member: int | None = None  # whose embedding is corrected
    correction: Correction | None = None


def strength(labels: int, classes: int) -> float:
    """The strength of a correction by so many labels: the prior weighs less as they grow.

    Chosen on PACS: two classes tied to two styles, where fixed strengths of 1 to 10 do as well, and seven classes moved
    from photographs to drawings, where those lose accuracy with 1 to 4 labels. See docs/adapt.md.
    """
    return min(MOST, PER_LABEL * labels / classes)


def confidence(classes: int) -> float:
    """The mean margin of a prior's logits on the training samples: log2 C, so that it exceeds C - 1 competitors."""
    return math.log2(max(classes, 2))


@dataclass(frozen=True)
class Samples:
    """Labelled samples as the members see them.

    Attributes:
        ensemble: The members, in evaluation mode, on the CPU.
        features: (n, ...) what they take.
        labels: (n,).
        train: (N, ...) training features.
        train_labels: (N,).
    """

    ensemble: Ensemble
    features: Tensor
    labels: Tensor
    train: Tensor
    train_labels: Tensor
    _trained: dict[int, Tensor] = field(default_factory=dict)  # by member, computed once
    _spaces: dict[int, Space] = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """C."""
        return self.logits.shape[-1]

    @property
    def present(self) -> list[int]:
        """The classes that occur among the labels."""
        return sorted(set(self.labels.tolist()))

    @cached_property
    def logits(self) -> Tensor:
        """(M, n, C) float64, divided by each member's mean margin on the training samples."""
        return logits_of(self.ensemble, self.features) / self.margins[:, None, None]

    @cached_property
    def margins(self) -> Tensor:
        """(M,) the mean over training samples of the label's logit less the largest other, where that is positive."""
        logits = logits_of(self.ensemble, self.train)
        at = self.train_labels[None, :, None].expand(len(logits), -1, 1)
        others = logits.scatter(-1, at, -torch.inf).amax(-1)
        margins = (logits.gather(-1, at).squeeze(-1) - others).clamp(min=0).mean(1)
        return torch.where(margins > 0, margins, 1.0)

    @cached_property
    def right(self) -> Tensor:
        """(M, n), whether each member classifies each sample correctly."""
        return self.logits.argmax(-1) == self.labels

    @cached_property
    def best(self) -> int:
        """The member that fits the labels best: by samples that are right, then by likelihood, then the first."""
        likelihood = self.logits.log_softmax(-1)[:, torch.arange(len(self.labels)), self.labels].mean(1)
        fit = self.right.double().mean(1) + 1e-3 * likelihood
        return int((fit >= fit.max() - ALIKE).nonzero()[0])

    def embedded(self, member: int) -> Tensor:
        """(n, D'), the input of a member's last layer."""
        return embed(self.ensemble.member(member), self.features)

    def embedded_train(self, member: int) -> Tensor:
        """(N, D') of the training samples."""
        if member not in self._trained:
            self._trained[member] = embed(self.ensemble.member(member), self.train)
        return self._trained[member]

    def space(self, member: int) -> Space:
        """The units of a member's embedding."""
        if member not in self._spaces:
            self._spaces[member] = Space.of(self.embedded_train(member))
        return self._spaces[member]

    def subset(self, index: Tensor) -> Samples:
        """Some of the labelled samples."""
        part = replace(self, features=self.features[index], labels=self.labels[index])
        part.__dict__.update(margins=self.margins, logits=self.logits[:, index])  # computed once
        return part


def as_it_is(samples: Samples) -> Blend:
    """All members, unchanged."""
    M = len(samples.ensemble)
    return Blend(torch.full((M,), 1 / M, dtype=torch.float64))


def one_member(samples: Samples, member: int | None = None) -> Blend:
    """The member that fits the labels best, or the given one."""
    weights = torch.zeros(len(samples.ensemble), dtype=torch.float64)
    weights[samples.best if member is None else member] = 1
    return Blend(weights)


def prior(samples: Samples, more: float = 1.0) -> Blend:
    """A new head with the best member as its prior; `more` multiplies the strength of the correction."""
    m, C = samples.best, samples.classes
    weights = torch.zeros(len(samples.ensemble), dtype=torch.float64)
    weights[m] = confidence(C) / samples.margins[m]
    offset = confidence(C) * samples.logits[m]
    power = more * strength(len(samples.labels), C)
    return Blend(weights, m, fit_correction(samples.embedded(m), samples.labels, offset, samples.space(m), power))


def new_head(samples: Samples, more: float = 1.0, *, with_training: bool = False) -> Blend:
    """A new last layer from the labels alone, or from as much weight of training samples as of labels."""
    m, n = samples.best, len(samples.labels)
    features, labels, weight = samples.embedded(m), samples.labels, None
    if with_training:
        trained = samples.embedded_train(m)
        features, labels = torch.cat([features, trained]), torch.cat([labels, samples.train_labels])
        weight = torch.cat([torch.ones(n), torch.full((len(trained),), n / len(trained))])
    zeros = torch.zeros(len(labels), samples.classes, dtype=torch.float64)
    correction = fit_correction(features, labels, zeros, samples.space(m), more * MOST, weight)
    return Blend(torch.zeros(len(samples.ensemble), dtype=torch.float64), m, correction)


def member_weights(samples: Samples) -> Blend:
    """Weights over members, none negative; equal ones if the labels argue against every member."""
    M = len(samples.ensemble)
    weights = fit_weights(samples.logits, samples.labels, confidence(samples.classes) / M)
    return Blend(weights / samples.margins) if bool(weights.any()) else as_it_is(samples)


def blended_logits(blend: Blend, samples: Samples) -> Tensor:
    """The logits of a blend for samples: (n, C) float64."""
    logits = torch.einsum("m,mnc->nc", blend.weights * samples.margins, samples.logits)
    if blend.correction is not None and blend.member is not None:
        logits = logits + blend.correction(samples.embedded(blend.member))
    return logits


def build(ensemble: Ensemble, blend: Blend) -> Ensemble:
    """The ensemble whose mean logits are those of a blend.

    One member where a single one has a weight, or a correction; otherwise all members of positive weight, with their
    last layers scaled.
    """
    weights = blend.weights
    members = [blend.member] if blend.member is not None else weights.nonzero().flatten().tolist()
    unscaled = blend.correction is None and bool((weights[members] == 1 / len(members)).all())
    if unscaled and len(members) == len(ensemble):
        return copy.deepcopy(ensemble)
    result = _of_members(ensemble, members)
    if unscaled:  # the last layer need not be known
        return result
    weight, bias = (result.stacked()[name] for name in last_layer(result.tail))
    with torch.no_grad():
        for position, m in enumerate(members):
            factor = float(weights[m]) * len(members)
            weight[position] *= factor
            bias[position] *= factor
            if blend.correction is not None:
                weight[position] += blend.correction.weight.to(weight)
                bias[position] += blend.correction.bias.to(bias)
    return result


def _of_members(ensemble: Ensemble, members: list[int]) -> Ensemble:
    result = Ensemble(ensemble.member(members[0]), members=len(members), seed=ensemble.seed, init="template")
    stacked = ensemble.tail.state_dict()
    result.tail.load_state_dict({name: value[members] for name, value in stacked.items()})
    result.method, result.fitted = ensemble.method, dict(ensemble.fitted)
    return result.eval()


def last_layer(tail: nn.Module) -> tuple[str, str]:
    """Names of weight and bias of the last layer.

    Raises:
        DissensusError: If the tail does not say which layer that is.
    """
    path = getattr(tail, "last", None)
    if path is None or not hasattr(tail, "embed"):
        raise DissensusError(
            f"adapting changes the last layer; {type(tail).__name__} does not name it: define `last`, its path, and "
            "`embed(x)`, its input, or adapt by member"
        )
    prefix = f"{path}." if path else ""
    return f"{prefix}weight", f"{prefix}bias"


@torch.no_grad()
def embed(member: nn.Module, features: Tensor) -> Tensor:
    """The input of a member's last layer: (n, ...) -> (n, D')."""
    last_layer(member)
    parts = [member.embed(part) for part in torch.split(features, 4096)]  # type: ignore[operator]
    return torch.cat(parts)


@torch.no_grad()
def logits_of(ensemble: Ensemble, features: Tensor) -> Tensor:
    """(n, ...) -> (M, n, C) float64."""
    rows = max(1, 2**22 // (len(ensemble) * (ensemble.classes or 1000)))
    return torch.cat([ensemble(part).double() for part in torch.split(features, rows)], dim=1)
