"""Score expressions: which scores a detector uses, and with which weights: "pds", "mahalanobis+pds", "2*knn+pds"."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from dissensus._core.errors import DataError, DissensusError
from dissensus.functional import conformal, scores
from dissensus.functional.fitted import FittedScore
from dissensus.functional.parts import parts_of, spread

# Weights by the mean AUROC over OOD sets of pets, PACS and Tiny-ImageNet: docs/results.md. The last score sees what the
# others cannot, the scale of features, and needs little weight for that.
DEFAULT_SCORE = "4*mahalanobis+2*ensemble_entropy+feature_norm"
FALLBACK = "pds"  # of an ensemble without fitted scores
DEFAULTS = (DEFAULT_SCORE, "gaussian", "mahalanobis", FALLBACK)  # without a score, the first that can be computed


def score_names(score: str | Sequence[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Parse a score expression: names, each with a weight before *, joined by + or commas, or in a list.

    Weights are relative, and 1 by default; that of a score alone does not matter.

    >>> score_names("2*mahalanobis+pds")
    (('mahalanobis', 'pds'), (2.0, 1.0))

    Raises:
        DissensusError: If a score is unknown or named twice, or there is none, or a weight is not a positive number.
    """
    terms = [part for term in ([score] if isinstance(score, str) else score) for part in _split(term)]
    if not terms:
        raise DataError("a detector needs a score; got none: try pds")
    weights = [_weight(*term.rpartition("*")[:2], term) for term in terms]
    names = tuple(term.rpartition("*")[2].strip() for term in terms)
    scores.SCORES.check(*names)
    if len(set(names)) < len(names):
        raise DissensusError(f"scores to combine must differ; got {', '.join(names)}: name each once")
    return names, tuple(weights) if len(names) > 1 else (1.0,)


def _split(term: str) -> list[str]:
    return [part.strip() for part in term.replace("+", ",").split(",")]


def _weight(number: str, star: str, term: str) -> float:
    try:
        weight = float(number) if star else 1.0
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise DissensusError(
            f"the weight of a score must be a positive number; got {number.strip()!r} in {term!r}: try 2*{FALLBACK}"
        )
    return weight


def expression(names: Sequence[str], weights: Sequence[float]) -> str:
    """Return the expression of names and weights, the inverse of `score_names`."""
    pairs = zip(names, weights, strict=True)
    # without the plus sign of 1e+20, which would separate scores
    return "+".join(name if weight == 1 else f"{weight:.12g}*{name}".replace("e+", "e") for name, weight in pairs)


def default_score(fitted: Collection[str], *, alone: bool = False) -> str:
    """Return the first of `DEFAULTS` whose fitted scores the ensemble has; of several backbones, each of them.

    Args:
        fitted: Names of the fitted scores at hand.
        alone: Only single scores, which need no calibration samples to rank them by.
    """
    parts = parts_of(fitted)
    for choice in DEFAULTS:
        names, weights = spread(*score_names(choice), parts)
        if (len(names) == 1 or not alone) and all(name in fitted for name in names if scores.is_fitted(name)):
            return expression(names, weights) if parts else choice
    raise AssertionError("the last default is a score of logits")


def choose(score: str | Sequence[str] | None, fitted: Collection[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Parse a score expression, None: the default, for an ensemble with these fitted scores.

    Of an ensemble on several backbones, fitted scores without a part are of every backbone: see `parts.spread`.

    Raises:
        DissensusError: As `score_names`; or if the ensemble does not have one of the scores.
    """
    if score is None:
        return score_names(default_score(fitted))
    names, weights = spread(*score_names(score), parts_of(fitted))
    if len(set(names)) < len(names):
        raise DissensusError(f"scores to combine must differ; got {', '.join(names)}: name each once")
    for name in names:
        if scores.is_fitted(name) and name not in fitted:
            raise DissensusError(
                f"score {name!r} must be fitted to training features; this ensemble does not have it: train it again, "
                f"or use a score of logits such as {FALLBACK}"
            )
    return names, weights


def values(names: Sequence[str], logits: Tensor, features: Tensor, fitted: Mapping[str, FittedScore]) -> list[Tensor]:
    """Return the values of scores, on the CPU: (M, B, C) and (B, ...) -> one (B,) per name."""
    return [scores.compute(name, logits, features, fitted).cpu() for name in names]


def combine(values: Sequence[Tensor], references: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return one score as it is, several as their evidence among `references`: (B,) each -> (B,) float32."""
    each = [value.float() for value in values]
    return conformal.evidence(references, each, weights) if len(each) > 1 else each[0]


def enough(names: Sequence[str], count: int, false_alarms: float) -> bool:
    """Whether `count` samples are enough to calibrate these scores at this rate."""
    return count >= needed(names, false_alarms)


def check_count(names: Sequence[str], count: int, false_alarms: float) -> None:
    """Raise if `count` samples are too few to calibrate these scores at this rate."""
    conformal.check_rate(false_alarms)
    if not enough(names, count, false_alarms):
        why = ", half of them to rank the scores" if len(names) > 1 else ""
        raise DataError(
            f"a false-alarm rate of {false_alarms:g} needs {needed(names, false_alarms)} calibration samples{why}; got "
            f"{count}: give more, or allow more false alarms"
        )


def needed(names: Sequence[str], false_alarms: float) -> int:
    """How many samples the calibration of these scores needs: of several, half rank the scores."""
    return min(2, len(names)) * conformal.needed(false_alarms)
