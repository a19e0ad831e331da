"""Classification: metrics of class log-probabilities, collected batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from dissensus._core.errors import DataError, ShapeError
from dissensus.functional import metrics
from dissensus.functional.checks import full_precision


class Classification:
    """Metrics of class log-probabilities, batch by batch; keeps a few numbers per sample, never (N, C).

    >>> quality = Classification()
    >>> quality.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]).log(), labels=torch.tensor([0, 0]))
    >>> quality.compute()["accuracy"]
    0.5
    """

    def __init__(self) -> None:
        self._batches: list[dict[str, Tensor]] = []
        self._finite = True

    def update(self, log_probs: Tensor, labels: Tensor, groups: Tensor | None = None) -> None:
        """Add log-probabilities (B, C), labels (B,) and, for `worst_group`, integer groups (B,)."""
        self._check(log_probs, labels, groups)
        if len(labels) == 0:
            return
        log_probs = full_precision(log_probs.detach())
        lowest, highest = log_probs.aminmax()
        # rounded probabilities may sum to a little more than 1; logits given by mistake lie far above 0
        if not highest <= 1e-3:
            raise DataError(
                f"log_probs must be log-probabilities, at most 0; got {float(highest):.4g}: "
                "use aggregates.prediction(logits)"
            )
        self._finite = self._finite and bool(lowest > -torch.inf)

        index = labels.to(log_probs.device, torch.int64).unsqueeze(1)
        highest_each, predicted = log_probs.max(dim=1)
        probs = log_probs.exp()
        error = probs.scatter_add_(1, index, -torch.ones_like(index, dtype=probs.dtype))
        columns = {
            "correct": predicted == index.squeeze(1),
            "confidence": highest_each.exp(),
            "label_log_prob": log_probs.gather(1, index).squeeze(1),
            "squared_error": error.square_().sum(dim=1),
        }
        if groups is not None:
            columns["groups"] = groups
        self._batches.append({name: column.cpu() for name, column in columns.items()})

    def compute(self) -> dict[str, float]:
        """Every metric of answers in METRICS over all samples so far; `worst_group` only if groups were given."""
        if not self._batches:
            raise DataError("metrics need at least one sample; got none: call update() first")
        columns = {name: torch.cat([batch[name] for batch in self._batches]) for name in self._batches[0]}
        if not self._finite:
            del columns["label_log_prob"]
        return metrics.compute(**{name: c if name == "groups" else c.double() for name, c in columns.items()})

    def _check(self, log_probs: Tensor, labels: Tensor, groups: Tensor | None) -> None:
        if log_probs.ndim != 2:
            raise ShapeError(
                f"log_probs must be (B, C); got {tuple(log_probs.shape)}: aggregate the members first, "
                "such as aggregates.prediction(logits)"
            )
        B, C = log_probs.shape
        for name, given in (("labels", labels), ("groups", groups)):
            if given is not None and given.shape != (B,):
                raise ShapeError(f"{name} must be (B,) = ({B},); got {tuple(given.shape)}: give one per sample")
        if B == 0:
            return
        if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < C:
            raise DataError(
                f"labels must be integers within 0..{C - 1}; got {labels.dtype} within "
                f"{labels.min().item()}..{labels.max().item()}: labels are positions among the classes scored"
            )
        if self._batches and (groups is not None) != ("groups" in self._batches[0]):
            raise DataError("groups must be given in every update or in none: add the missing ones")
