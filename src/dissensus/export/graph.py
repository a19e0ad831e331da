"""A detector as one traceable module of tensor functions, for batches of any size.

Detectors compute scores in chunks and search sorted calibration scores, which cannot be traced. Here scores run on the
whole batch, and the rank among calibration scores is a count of those that are lower. The false-alarm rate is an input:
a sample is out if its p-value is at most the rate, which is the same as a score above the limit for the rate. Fitted
scores become part of the module: their tensors are float32 in the file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dissensus._core.errors import DissensusError
from dissensus.backbones.engines import FromPixels
from dissensus.detection.detector import Detector
from dissensus.detection.threshold import Threshold
from dissensus.functional import aggregates, conformal, scores
from dissensus.functional.fitted import FittedScore, vectors
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble

OUTPUTS = ("label", "logits", "member_probs", "score", "p_value", "verdict")
RATE = "false_alarms"  # the second input


class Graph(nn.Module):
    """Pixels (B, H, W, 3) uint8, or features (B, ...), -> `OUTPUTS`, the last two only if calibrated.

    Args:
        detector: The detector.
        images: Whether it takes pixels.
        batch_first: Put the batch first in every output, and give each a second axis: member_probs are (B, M, C), and
            what is one number per sample is (B, 1).
    """

    def __init__(self, detector: Detector, *, images: bool, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.features: nn.Module = FromPixels(detector.backbone) if images else nn.Identity()
        self.members = Members(detector.ensemble)
        self.aggregate = aggregates.AGGREGATES[detector.aggregate].function
        fitted, threshold = detector.ensemble.fitted, detector.threshold
        self.rule = None if threshold is None else Rule(threshold, fitted)
        self.score = Score(detector.score_name, fitted) if threshold is None else None
        self.eval()

    def forward(self, x: Tensor, false_alarms: Tensor | None = None) -> tuple[Tensor, ...]:
        """(B, ...) -> label (B,), mean logits (B, C), member_probs (M, B, C), score, p_value and verdict (B,).

        A calibrated graph also takes the false-alarm rate, (1, 1) or (B, 1) float64.
        """
        features = self.features(x)
        logits = self.members(features)
        label = self.aggregate(logits).argmax(-1)
        rest: tuple[Tensor, ...]
        if self.rule is not None:
            assert false_alarms is not None
            rest = self.rule(features, logits, label, false_alarms)
        else:
            assert self.score is not None
            rest = (self.score(features, logits),)
        member_probs = logits.softmax(-1)
        if self.batch_first:
            label, member_probs, rest = label[:, None], member_probs.transpose(0, 1), tuple(v[:, None] for v in rest)
        return label, logits.mean(0), member_probs, *rest

    @property
    def scores(self) -> tuple[Score, ...]:
        """The scores in the graph."""
        return tuple(module for module in self.modules() if isinstance(module, Score))


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


class Score(nn.Module):
    """A score by name, of logits or fitted: features (B, ...), logits (M, B, C) -> (B,) float32."""

    def __init__(self, name: str, fitted: Mapping[str, FittedScore]) -> None:
        super().__init__()
        self.name, self.function, self.fitted = name, None, None
        if scores.is_fitted(name):
            self.fitted = _single_precision(fitted[name])
        else:
            self.function = plain(name)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """(B, ...), (M, B, C) -> (B,)."""
        if self.fitted is not None:  # forward, not a call, which takes the batch in parts
            return self.fitted.forward(vectors(features), logits).float()
        assert self.function is not None
        return self.function(logits).float()


class Rule(nn.Module):
    """A threshold: features, logits, predicted labels and false-alarm rates -> score, p-value, out, each (B,)."""

    calibration: Tensor  # (1, n), or (C, largest n), ascending, padded with infinity
    counts: Tensor

    def __init__(self, threshold: Threshold, fitted: Mapping[str, FittedScore]) -> None:
        super().__init__()
        self.scores = nn.ModuleList(Score(name, fitted) for name in threshold.scores)
        self.by_class = threshold.calibrated.by_class
        parts = threshold.calibrated.values
        padded = nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=torch.inf)
        self.register_buffer("calibration", padded)
        self.register_buffer("counts", torch.tensor([len(part) for part in parts]))
        for i, reference in enumerate(threshold.references):
            n = len(reference)
            p_values = (1 + n - torch.arange(n + 1)).double() / (n + 1)  # by the number of lower scores
            self.register_buffer(f"reference{i}", reference)
            self.register_buffer(f"evidence{i}", -p_values.log())
            self.register_buffer(f"scale{i}", torch.tensor(conformal.tail_scale(reference), dtype=torch.float64))
        self.weights = threshold.weights

    def forward(
        self, features: Tensor, logits: Tensor, label: Tensor, false_alarms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B, ...), (M, B, C), (B,) and (B, 1) or (1, 1) -> three of (B,): float, float, bool."""
        score = self._score([score(features, logits) for score in self.scores])
        count = self.counts[label if self.by_class else torch.zeros_like(label)]
        lower = _lower(self.calibration[label] if self.by_class else self.calibration, score)
        rank = 1 + count - torch.minimum(lower, count)  # among the calibration scores and itself, from the top
        p_value = rank.double() / (count + 1)
        # Ranks are compared, with the rounding of `conformal`: 0.29 * 100 is 28.999999999999996. Rates in columns, so
        # that one broadcasts over the batch. Without a number for a rate, everything is out.
        allowed = false_alarms * (count[:, None] + 1) + 0.5e-9
        return score, p_value.float(), ~(rank[:, None] > allowed).squeeze(1)

    def _score(self, values: list[Tensor]) -> Tensor:
        if len(values) == 1:
            return values[0]
        evidence = [weight * self._evidence(i, values[i]) for i, weight in enumerate(self.weights)]
        return torch.stack(evidence).sum(0).float()

    def _evidence(self, i: int, value: Tensor) -> Tensor:
        """`conformal.Evidence` of score i: (B,) -> (B,) float64."""
        reference, table, scale = (getattr(self, f"{name}{i}") for name in ("reference", "evidence", "scale"))
        evidence: Tensor = conformal.beyond(value, reference[-1], scale) + table[_lower(reference[None], value)]
        return evidence


def plain(name: str) -> Callable[[Tensor], Tensor]:
    """A score of logits without the chunks that `scores.register` adds."""
    score = scores.of_logits()[name]
    function: Callable[[Tensor], Tensor] = getattr(score, "__wrapped__", score)
    return function


def _single_precision(score: FittedScore) -> FittedScore:
    """A copy of a fitted score on the CPU, with float32 in place of float64; raise if it cannot be exported."""
    if not score.exportable:
        raise DissensusError(
            f"an exported score must consist of torch functions; {score.name} does not ({score.why_not}): calibrate "
            "with another, or export to the hub"
        )
    score = copy.deepcopy(score).cpu()
    for module in score.modules():
        for name, value in module.named_buffers(recurse=False):
            if value.dtype == torch.float64:
                module.register_buffer(name, value.float())
    return score


def _lower(values: Tensor, score: Tensor) -> Tensor:
    """How many values are lower than each score, all for NaN, as searchsorted has it: (1 or B, n) and (B,) -> (B,)."""
    return (~(values >= score[:, None])).sum(-1)
