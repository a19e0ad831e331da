"""A detector as one traceable module of tensor functions, for batches of any size.

Detectors compute scores in chunks and search sorted calibration scores, which cannot be traced. Here scores run on the
whole batch, and the rank among calibration scores is a count of those that are lower.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dissensus._core.errors import DissensusError
from dissensus.backbones.engines import FromPixels
from dissensus.detection.detector import Detector
from dissensus.detection.threshold import Threshold
from dissensus.functional import aggregates, conformal, scores
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

OUTPUTS = ("label", "logits", "member_probs", "score", "p_value", "verdict")


class Graph(nn.Module):
    """Pixels (B, H, W, 3) uint8, or features (B, ...), -> `OUTPUTS`, the last two only if calibrated."""

    def __init__(self, detector: Detector, *, images: bool) -> None:
        super().__init__()
        self.features: nn.Module = FromPixels(detector.backbone) if images else nn.Identity()
        self.members = Members(detector.ensemble)
        self.aggregate = aggregates.AGGREGATES[detector.aggregate].function
        self.rule = None if detector.threshold is None else Rule(detector.threshold)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, ...) -> label (B,), mean logits (B, C), member_probs (M, B, C), score, p_value and verdict (B,)."""
        logits = self.members(self.features(x))
        label = self.aggregate(logits).argmax(-1)
        outputs = (label, logits.mean(0), logits.softmax(-1))
        return (*outputs, plain("pds")(logits)) if self.rule is None else (*outputs, *self.rule(logits, label))


class Members(nn.Module):
    """All members' logits: (B, ...) -> (M, B, C)."""

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.count = len(ensemble)
        self.each = nn.ModuleList(ensemble.member(i) for i in range(self.count))
        if type(ensemble.tail) is tails.Linear:  # one matrix product for all members
            M, C, D = ensemble.tail.weight.shape
            together = tails.Linear(D, M * C, ensemble.tail.norm)
            together.weight.data = ensemble.tail.weight.detach().reshape(M * C, D)
            together.bias.data = ensemble.tail.bias.detach().reshape(M * C)
            self.each = nn.ModuleList([together])

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> (M, B, C)."""
        if len(self.each) < self.count:
            flat: Tensor = self.each[0](x)
            return flat.view(-1, self.count, flat.shape[-1] // self.count).transpose(0, 1)
        return torch.stack([member(x) for member in self.each])


class Rule(nn.Module):
    """A threshold: logits (M, B, C) and predicted labels (B,) -> score, p-value and whether it is out, each (B,)."""

    calibration: Tensor  # (1, n), or (C, largest n), ascending, padded with infinity
    counts: Tensor
    limits: Tensor

    def __init__(self, threshold: Threshold) -> None:
        super().__init__()
        self.scores = [plain(name) for name in threshold.scores]
        self.by_class = threshold.calibrated.by_class
        parts = threshold.calibrated.values
        padded = nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=torch.inf)
        self.register_buffer("calibration", padded)
        self.register_buffer("counts", torch.tensor([len(part) for part in parts]))
        self.register_buffer("limits", threshold.calibrated.thresholds(threshold.false_alarms))
        for i, reference in enumerate(threshold.references):
            n = len(reference)
            p_values = (1 + n - torch.arange(n + 1)).double() / (n + 1)  # by the number of lower scores
            self.register_buffer(f"reference{i}", reference)
            self.register_buffer(f"evidence{i}", -p_values.log())
            self.register_buffer(f"scale{i}", torch.tensor(conformal.tail_scale(reference), dtype=torch.float64))
        self.weights = threshold.weights

    def forward(self, logits: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(M, B, C) and (B,) -> three of (B,): float, float, bool."""
        score = self._score([score(logits).float() for score in self.scores])
        part = label if self.by_class else torch.zeros_like(label)
        lower = _lower(self.calibration[label] if self.by_class else self.calibration, score)
        count = self.counts[part]
        p_value = (1 + count - lower).double() / (count + 1)
        return score, p_value.float(), ~(score <= self.limits[part])

    def _score(self, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        return (
            torch.stack([self.weights[i] * self._evidence(i, value) for i, value in enumerate(values)]).sum(0).float()
        )

    def _evidence(self, i: int, value: Tensor) -> Tensor:
        """`conformal.Evidence` of score i: (B,) -> (B,) float64."""
        reference, table, scale = (getattr(self, f"{name}{i}") for name in ("reference", "evidence", "scale"))
        beyond = (value.double() - reference[-1].double()).clamp(min=0) / scale
        evidence: Tensor = beyond + table[_lower(reference[None], value)]
        return evidence


def plain(name: str) -> Callable[[Tensor], Tensor]:
    """The score without the chunks that `scores.register` adds."""
    score = scores.SCORES[name]
    if isinstance(score, type):
        raise DissensusError(
            f"an export computes scores of logits; {name} is one of features: calibrate again with --score pds, or "
            "export to the hub"
        )
    function: Callable[[Tensor], Tensor] = getattr(score, "__wrapped__", score)
    return function


def _lower(values: Tensor, score: Tensor) -> Tensor:
    """How many values are lower than each score: (1 or B, n) and (B,) -> (B,)."""
    return (values < score[:, None]).sum(-1)
