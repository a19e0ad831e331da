"""METRICS: every number that `evaluate` measures on a set, with how tables show it.

A metric is a function whose parameters name what it is computed from; it applies wherever all of these are known:

- answers to labelled samples: `correct` (N,) 0 or 1, `confidence` (N,) of the predicted class, `label_log_prob` (N,),
  `squared_error` (N,) of the probabilities, `groups` (N,); all but `groups` float64, `groups` integers;
- detection: `id_scores` (N,) and `ood_scores` (K,), higher = more OOD;
- a score on one set: `scores` (N,).

It returns a number, or None where there is none. To add one, register it; `evaluate`, tables and reports follow:

>>> @register(heading="overconfidence", better="lower")
... def overconfidence(confidence: Tensor, correct: Tensor) -> float:
...     return float((confidence - correct).mean())
>>> METRICS["overconfidence"].kind
'answers'
>>> del METRICS["overconfidence"]
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError, ShapeError
from dissensus._core.registry import Registry

FALSE_ALARMS = 0.05
"""Share of ID samples above the detection threshold unless stated otherwise: FPR95, reports, default detectors."""
# Networks that are trained for accuracy have an ECE of 0.02 to 0.1 in distribution, so what is above comes from the
# settings rather than from the data.
MISCALIBRATED = 0.1
"""An ECE above this is marked in tables and worth a line."""

Function = Callable[..., float | None]
Better = Literal["higher", "lower", ""]
INPUTS = {
    "answers": {"correct", "confidence", "label_log_prob", "squared_error", "groups"},
    "detection": {"id_scores", "ood_scores"},
    "scores": {"scores"},
}

# sklearn.metrics and torchmetrics take seconds to import, so the functions that need them do it.


@dataclass(frozen=True)
class Metric:
    """A metric and how tables show it.

    Attributes:
        function: computes it; see the module's docstring.
        heading: its name in column headings.
        better: "higher", "lower", or "" where neither is better.
        percent: whether it is a share, shown in percent.
        warn_above: tables mark values above this; None: no value is a warning.
        headline: whether the short table of `evaluate` shows it; reports show all metrics.
    """

    function: Function
    heading: str
    better: Better = ""
    percent: bool = False
    headline: bool = True
    warn_above: float | None = None

    @property
    def inputs(self) -> frozenset[str]:
        """Names of what it is computed from."""
        return frozenset(inspect.signature(self.function).parameters)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().split("\n")[0]

    @property
    def kind(self) -> str:
        """What it describes: "answers", "detection" or "scores"."""
        return next(kind for kind, names in INPUTS.items() if self.inputs <= names)


METRICS: Registry[Metric] = Registry("metric")
"""Every metric by its name, in the order of tables."""


def register(
    *,
    heading: str,
    better: Better = "",
    percent: bool = False,
    headline: bool = True,
    warn_above: float | None = None,
) -> Callable[[Function], Function]:
    """Add the decorated function to METRICS under its name; for the arguments see `Metric`."""

    def add(function: Function) -> Function:
        inputs = set(inspect.signature(function).parameters)
        if not inputs or not any(inputs <= names for names in INPUTS.values()):
            known = "; or ".join(", ".join(sorted(names)) for names in INPUTS.values())
            raise DissensusError(f"a metric's parameters must be among {known}; got {', '.join(sorted(inputs))}")
        METRICS.add(function.__name__, Metric(function, heading, better, percent, headline, warn_above))
        return function

    return add


def describe(name: str) -> Metric:
    """The metric of that name; a neutral one for a name that is in a file but not registered here."""
    return METRICS.get(name) or Metric(lambda scores: None, name, headline=False)


def compute(**inputs: Tensor) -> dict[str, float]:
    """Every metric that can be computed from these inputs, by name."""
    values = {
        name: metric.function(**{key: inputs[key] for key in metric.inputs})
        for name, metric in METRICS.items()
        if metric.inputs <= inputs.keys()
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def threshold(id_scores: Tensor | NDArray[np.float64], false_alarms: float = FALSE_ALARMS) -> float:
    """The lowest of the scores (N,) with at most a share `false_alarms` of them above it."""
    scores = torch.as_tensor(id_scores)
    return float(scores.kthvalue(math.ceil((1 - false_alarms) * len(scores))).values)


@register(heading="accuracy", better="higher", percent=True)
def accuracy(correct: Tensor) -> float:
    """Share of samples whose argmax (the lowest class where several tie) is the label; [0, 1]."""
    return float(correct.mean())


@register(heading="worst group", better="higher", percent=True)
def worst_group(correct: Tensor, groups: Tensor) -> float:
    """The lowest accuracy among the groups present; [0, 1]."""
    _, group = torch.unique(groups, return_inverse=True)
    return float((group.bincount(weights=correct) / group.bincount()).min())


@register(heading="NLL", better="lower", headline=False)
def nll(label_log_prob: Tensor) -> float:
    """Mean of -log p at the label, in nats, >= 0; not computed if any log-probability is -inf (votes)."""
    return float(-label_log_prob.mean())


@register(heading="Brier", better="lower", headline=False)
def brier(squared_error: Tensor) -> float:
    """Mean over samples of sum_c (p_c - 1[c = label])^2, in [0, 2]."""
    return float(squared_error.mean())


@register(heading="ECE", better="lower", headline=False, warn_above=MISCALIBRATED)
def ece(confidence: Tensor, correct: Tensor) -> float:
    """Expected calibration error of the predicted class, l1 over torchmetrics' 15 equal bins, in [0, 1]."""
    from torchmetrics.functional.classification import binary_calibration_error

    # clamped because torchmetrics takes a confidence of 1 + 1e-7 for a sign that all of them are logits
    return float(binary_calibration_error(confidence.clamp(0, 1), correct.long(), n_bins=15, norm="l1"))


@register(heading="confidence", percent=True, headline=False)
def mean_confidence(confidence: Tensor, correct: Tensor) -> float:
    """Mean probability of the predicted class; in (0, 1]. Above the accuracy: overconfident, below: underconfident."""
    return float(confidence.mean())


@register(heading="AUROC", better="higher")
def auroc(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Chance that an OOD sample scores above an ID one, ties counted half; [0, 1], 0.5 for a useless score."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_binary(id_scores, ood_scores)))


@register(heading="FPR95", better="lower", percent=True, headline=False)
def fpr95(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Share of OOD samples accepted as ID at the lowest threshold that accepts at least 95% of the ID samples.

    A sample is accepted if its score is at or below the threshold. This is the FPR at 95% TPR with ID as the positives,
    as in most papers; OpenOOD v1.5 and pytorch-ood take OOD as the positives: see `evaluation.score_files`.
    """
    return float((ood_scores <= threshold(id_scores)).double().mean())


@register(heading="AUPR in", better="higher", headline=False)
def aupr_in(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Average precision with ID as the positives and the score negated; [0, 1]."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_binary(-ood_scores, -id_scores)))


@register(heading="AUPR out", better="higher", headline=False)
def aupr_out(id_scores: Tensor, ood_scores: Tensor) -> float:
    """Average precision with OOD as the positives; [0, 1]."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(*_binary(id_scores, ood_scores)))


@register(heading="mean", headline=False)
def mean(scores: Tensor) -> float:
    """The mean of a score over a set."""
    return float(scores.mean())


def _binary(negatives: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
    """Labels 0 and 1 with the scores, as scikit-learn takes them."""
    labels = torch.cat([torch.zeros(len(negatives)), torch.ones(len(positives))])
    return labels, torch.cat([negatives, positives])


def detection(id_scores: Tensor, ood_scores: Tensor) -> dict[str, float]:
    """How well a score, higher = more OOD, separates OOD samples (K,) from ID ones (N,).

    Returns:
        Every detection metric in METRICS: auroc, fpr95, aupr_in, aupr_out and those registered since.

    Raises:
        ShapeError, DataError: if one side is not (N,), is empty or is not finite.
    """
    return compute(id_scores=_finite("id_scores", id_scores), ood_scores=_finite("ood_scores", ood_scores))


def _finite(name: str, scores: Tensor) -> Tensor:
    """One side's scores on the CPU in float64, checked."""
    if scores.ndim != 1:
        raise ShapeError(f"{name} must be (N,); got {tuple(scores.shape)}: give one score per sample")
    if len(scores) == 0:
        raise DataError(f"{name} must not be empty: detection needs ID and OOD samples")
    scores = scores.detach().cpu().double()
    bad = int((~scores.isfinite()).sum())
    if bad:
        raise DataError(f"{name} must be finite; got {bad} of {len(scores)} that are not: check the logits")
    return scores
