"""How good the answers are (`Classification`) and how well a score tells OOD from ID (`detection`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dissensus._core.errors import DataError, ShapeError

__all__ = ["Classification", "detection"]

# sklearn.metrics and torchmetrics take seconds to import, so the functions that need them do it.


class Classification:
    """Quality of class log-probabilities, batch by batch; keeps a few numbers a sample, never (N, C).

    >>> quality = Classification()
    >>> quality.update(torch.tensor([[0.9, 0.1], [0.4, 0.6]]).log(), labels=torch.tensor([0, 0]))
    >>> quality.compute()["accuracy"]
    0.5
    """

    def __init__(self) -> None:
        self._batches: list[dict[str, Tensor]] = []
        self._finite = True

    def update(self, log_probs: Tensor, labels: Tensor, groups: Tensor | None = None) -> None:
        """Take in log-probabilities (B, C), labels (B,) and, for `worst_group`, integer groups (B,)."""
        self._check(log_probs, labels, groups)
        if len(labels) == 0:
            return
        log_probs = log_probs.detach().to(torch.promote_types(log_probs.dtype, torch.float32))
        lowest, highest = log_probs.aminmax()
        # a sum of rounded probabilities may pass 1 by a hair; logits given by mistake pass it by far
        if not highest <= 1e-3:
            raise DataError(
                f"log_probs must be log-probabilities, at most 0; got {float(highest):.4g}: "
                "use aggregate.prediction(logits)"
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
            columns["group"] = groups
        self._batches.append({name: column.cpu() for name, column in columns.items()})

    def compute(self) -> dict[str, float]:
        """Metrics over all samples so far.

        - accuracy: share of samples whose argmax (the lowest class where several tie) is the label; [0, 1].
        - nll: mean of -log p at the label, in nats, >= 0; left out if any log-probability is -inf (votes).
        - brier: mean over samples of sum_c (p_c - 1[c = label])^2, in [0, 2].
        - ece: expected calibration error of the top class, l1 over torchmetrics' 15 equal bins, in [0, 1].
        - worst_group: the lowest accuracy among the groups present; only if groups were given.
        """
        from torchmetrics.functional.classification import binary_calibration_error

        if not self._batches:
            raise DataError("metrics need at least one sample; got none: call update() first")
        correct = self._column("correct").double()
        # clamped because torchmetrics takes a confidence of 1 + 1e-7 for a sign that all of them are logits
        confidence = self._column("confidence").double().clamp(0, 1)
        metrics = {"accuracy": float(correct.mean())}
        if self._finite:
            metrics["nll"] = float(-self._column("label_log_prob").double().mean())
        metrics["brier"] = float(self._column("squared_error").double().mean())
        metrics["ece"] = float(binary_calibration_error(confidence, correct.long(), n_bins=15, norm="l1"))
        if "group" in self._batches[0]:
            _, group = torch.unique(self._column("group"), return_inverse=True)
            metrics["worst_group"] = float((group.bincount(weights=correct) / group.bincount()).min())
        return metrics

    def _column(self, name: str) -> Tensor:
        return torch.cat([batch[name] for batch in self._batches])

    def _check(self, log_probs: Tensor, labels: Tensor, groups: Tensor | None) -> None:
        if log_probs.ndim != 2:
            raise ShapeError(
                f"log_probs must be (B, C); got {tuple(log_probs.shape)}: aggregate the members first, "
                "such as aggregate.prediction(logits)"
            )
        B, C = log_probs.shape
        for name, given in (("labels", labels), ("groups", groups)):
            if given is not None and given.shape != (B,):
                raise ShapeError(f"{name} must be (B,) = ({B},); got {tuple(given.shape)}: give one a sample")
        if B == 0:
            return
        if labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < C:
            raise DataError(
                f"labels must be integers within 0..{C - 1}; got {labels.dtype} within "
                f"{labels.min().item()}..{labels.max().item()}: labels are positions among the classes scored"
            )
        if self._batches and (groups is not None) != ("group" in self._batches[0]):
            raise DataError("groups must be given in every update or in none: add the missing ones")


def detection(id_scores: Tensor, ood_scores: Tensor) -> dict[str, float]:
    """How well a score, higher = more OOD, tells OOD samples from ID ones: (N,), (K,) -> fractions in [0, 1].

    - auroc: chance that an OOD sample scores above an ID one, ties counted half; higher is better.
    - aupr_out: average precision with OOD as the positives; higher is better.
    - aupr_in: average precision with ID as the positives and the score negated; higher is better.
    - fpr95: share of OOD samples accepted as ID at the lowest threshold that accepts at least 95% of the ID
      samples, where a sample is accepted if its score is at or below the threshold; lower is better. (FPR at
      95% TPR with ID as the positives, as OpenOOD and most papers report it.)
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    inside, outside = _scores("id_scores", id_scores), _scores("ood_scores", ood_scores)
    score = torch.cat([inside, outside]).numpy()
    is_ood = torch.cat([torch.zeros_like(inside), torch.ones_like(outside)]).numpy()
    accepted = math.ceil(0.95 * len(inside))
    threshold = inside.kthvalue(accepted).values
    return {
        "auroc": float(roc_auc_score(is_ood, score)),
        "aupr_in": float(average_precision_score(1 - is_ood, -score)),
        "aupr_out": float(average_precision_score(is_ood, score)),
        "fpr95": float((outside <= threshold).double().mean()),
    }


def _scores(name: str, scores: Tensor) -> Tensor:
    """One side's scores on the CPU in float64, or the reason why not."""
    if scores.ndim != 1:
        raise ShapeError(f"{name} must be (N,); got {tuple(scores.shape)}: give one score a sample")
    if len(scores) == 0:
        raise DataError(f"{name} must not be empty: detection needs ID and OOD samples")
    scores = scores.detach().cpu().double()
    bad = int((~scores.isfinite()).sum())
    if bad:
        raise DataError(f"{name} must be finite; got {bad} of {len(scores)} that are not: check the logits")
    return scores
