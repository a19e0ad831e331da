"""Soups: aggregates of the members' weights as single models, chosen on held-out data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dissensus import backbones
from dissensus._core.errors import DataError, DissensusError
from dissensus.evaluation.predictions import batch_size
from dissensus.features import FeatureSet
from dissensus.functional import aggregates
from dissensus.functional.aggregates import Aggregate, Mixture
from dissensus.functional.checks import widest
from dissensus.functional.soups import shares
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble


def make_soups(
    ensemble: Ensemble, held_out: FeatureSet | None, pretrained: nn.Module | None = None
) -> dict[str, nn.Module]:
    """Every aggregate of weights as one model, by name.

    Those that need held-out data or a pretrained tail are left out where there is none.

    Args:
        ensemble: The trained members.
        held_out: Labelled features to choose on.
        pretrained: The backbone's own tail; see `pretrained_tail`.
    """
    kitchen = _Kitchen(ensemble, held_out, pretrained)
    return {
        name: kitchen.model(kitchen.choose(aggregate))
        for name, aggregate in aggregates.of_kind("weights").items()
        if (held_out is not None or not aggregate.held_out) and (pretrained is not None or not aggregate.pretrained)
    }


def soup_weights(
    ensemble: Ensemble,
    features: FeatureSet | None = None,
    aggregate: str = "learned-soup",
    *,
    pretrained: nn.Module | None = None,
) -> Tensor:
    """The share of each member in a soup, chosen on a few labelled samples.

    Args:
        ensemble: The trained members.
        features: Labelled samples that members were not trained on; None if the aggregate needs none.
        aggregate: An aggregate of weights: soup, greedy-soup, learned-soup, wise, or your own.
        pretrained: The backbone's own tail, which wise mixes with; see `pretrained_tail`.

    Returns:
        (M,) float64, at least 0, with sum 1; for wise (M + 1,), with the share of `pretrained` last.

    Raises:
        DissensusError: If there is no such aggregate, or it lacks labelled samples or a pretrained tail.
        ShapeError: If the samples or the tail do not fit the ensemble.

    Example:
        >>> soup = ensemble.soup(weights=soup_weights(ensemble, few))        # doctest: +SKIP
    """
    chosen = aggregates.of_kind("weights")[aggregate]
    if chosen.held_out and features is None:
        raise DataError(f"{aggregate} is chosen on labelled samples; got none: give features with labels")
    if chosen.pretrained and pretrained is None:
        raise DissensusError(f"{aggregate} mixes members with a pretrained tail; got none: give pretrained=")
    mixture = _Kitchen(ensemble, features, pretrained if chosen.pretrained else None).choose(chosen)
    return mixture if isinstance(mixture, Tensor) else shares(mixture, len(ensemble))


def pretrained_tail(ensemble: Ensemble, backbone: Mapping[str, Any] | None, classes: Sequence[str]) -> nn.Module | None:
    """The tail that the backbone came with, if it can be mixed with the members: the same layers, norm and classes.

    Args:
        ensemble: The trained members.
        backbone: What the features or the run recorded of the backbone; None if nothing.
        classes: The names of the members' classes.

    Returns:
        The tail, or None where the backbone has none for these classes, or its weights are not at hand.
    """
    about = ensemble.about
    if backbone is None or about is None or backbone["weights"] == "random":
        return None
    if backbone.get("tail") is None or not tails.alike(about, backbone["tail"]):
        return None  # before the weights are read, which takes seconds
    try:
        restored = backbones.restore(backbone)
    except DissensusError:
        return None
    return restored.tail if restored.classes == tuple(classes) and ensemble.matches(restored.tail) else None


@torch.no_grad()
def accuracy(module: nn.Module, features: FeatureSet, rows: int = 4096) -> float:
    """Share of labelled features that a single model, (B, ...) -> (B, C), classifies correctly; `rows` at once."""
    assert features.labels is not None
    device = next(module.parameters()).device
    hits = 0
    for x, at in features.batches(rows):
        hits += int((module.eval()(x.to(device)).argmax(-1).cpu() == features.labels[at]).sum())
    return hits / len(features)


class _Kitchen:
    """What aggregates of weights choose by; the accuracy of a mixture is measured once."""

    def __init__(self, ensemble: Ensemble, held_out: FeatureSet | None, pretrained: nn.Module | None) -> None:
        if held_out is not None:
            ensemble.check_features(held_out.shape, "held-out")
            if held_out.labels is None:
                raise DataError("soups are chosen on labelled samples; the held-out set has no labels: give some")
            if ensemble.classes is not None and int(held_out.labels.max()) >= ensemble.classes:
                raise DataError(
                    f"the ensemble has {ensemble.classes} classes; held-out has label {int(held_out.labels.max())}: "
                    "check its classes"
                )
        self.ensemble, self.held_out, self.pretrained = ensemble, held_out, pretrained
        self.labels = None if held_out is None else held_out.labels
        self.rows = 1 if held_out is None else batch_size(ensemble, held_out.shape)
        self._template = ensemble.soup().eval()  # whose tensors `loss` replaces
        self._accuracies: dict[tuple[object, ...], float] = {}

    def choose(self, aggregate: Aggregate) -> Mixture:
        known = self.labels is not None
        inputs = {
            "count": len(self.ensemble),
            "accuracy": self.accuracy if known else None,
            "loss": self.loss if known else None,
            "labels": self.labels,
        }
        mixture: Mixture = aggregate(**{name: inputs[name] for name in aggregate.inputs})
        return mixture

    def model(self, mixture: Mixture) -> nn.Module:
        if not isinstance(mixture, Tensor):
            return self.ensemble.soup(mixture).eval()
        return self.ensemble.soup(weights=mixture, pretrained=self._tail(mixture)).eval()

    def accuracy(self, mixture: Mixture) -> float:
        assert self.held_out is not None
        key = tuple(mixture.tolist() if isinstance(mixture, Tensor) else ("member", *mixture))
        if key not in self._accuracies:
            self._accuracies[key] = accuracy(self.model(mixture), self.held_out, self.rows)
        return self._accuracies[key]

    def loss(self, weights: Tensor) -> Tensor:
        """Mean cross-entropy, (M,) -> (); its gradient is computed batch by batch, so that memory stays bounded."""
        assert self.held_out is not None
        assert self.labels is not None
        differentiate = torch.is_grad_enabled() and weights.requires_grad
        mixed = self.ensemble.mix(weights, self._tail(weights))
        leaves = {
            name: value.detach().requires_grad_(differentiate and value.requires_grad) for name, value in mixed.items()
        }
        learned = [name for name, leaf in leaves.items() if leaf.requires_grad]
        slopes = [torch.zeros_like(leaves[name]) for name in learned]
        total, device = torch.zeros((), dtype=torch.float64), next(self.ensemble.parameters()).device
        for x, rows in self.held_out.batches(self.rows):
            logits = functional_call(self._template, leaves, (x.to(device),))
            labels = self.labels[rows].to(device)
            summed = nn.functional.cross_entropy(logits.to(widest(device)), labels, reduction="sum")
            total += summed.detach().cpu()
            if differentiate:
                gradients = torch.autograd.grad(summed, [leaves[name] for name in learned])
                slopes = [slope + gradient for slope, gradient in zip(slopes, gradients, strict=True)]
        if differentiate:  # a linear function of the mixed tensors that has these gradients
            total = total + sum(
                ((mixed[name] - leaves[name].detach()) * slope).sum().cpu().double()
                for name, slope in zip(learned, slopes, strict=True)
            )
        return total / len(self.labels)

    def _tail(self, weights: Tensor) -> nn.Module | None:
        return self.pretrained if len(weights) > len(self.ensemble) else None
