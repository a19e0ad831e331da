"""Candidates: the ensembles to try, and the scores and combinations of scores for each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dissensus.features import FeatureSet
from dissensus.functional import scores
from dissensus.functional.expressions import DEFAULT_SCORE, default_score, expression, score_names
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import METHODS, TrainOptions, new_ensemble
from dissensus.training.methods import DEFAULT_METHOD

LOGITS: tuple[str, ...] = ("pds", "mutual_information", "ensemble_entropy", "average_energy", "bma", "gen")
DISTANCES: tuple[str, ...] = ("mahalanobis", "relative_mahalanobis", "knn")
LENGTH = "feature_norm"
MLP_COST = 2**31  # samples x parameters above which an mlp is not tried


@dataclass(frozen=True)
class Candidate:
    """An ensemble that may be chosen; None stands for the default."""

    method: str = DEFAULT_METHOD
    diversity: float | None = None
    label_smoothing: float = 0.0
    norm: str | None = None
    tail: str | None = None

    @property
    def name(self) -> str:
        """The method and what differs from the defaults, such as "sed-a2d, diversity 0.1"."""
        facts = {
            "tail": self.tail,
            "norm": self.norm,
            "diversity": self.diversity,
            "smoothing": self.label_smoothing or None,
        }
        return ", ".join([self.method, *(f"{key} {value}" for key, value in facts.items() if value is not None)])

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)

    @property
    def training(self) -> dict[str, Any]:
        """The options of `fit`."""
        return {"diversity": self.diversity, "label_smoothing": self.label_smoothing}

    def ensemble(self, features: FeatureSet, members: int, seed: int, norm: str | None = None) -> Ensemble:
        """The members, untrained; `norm` is for candidates that say nothing about it."""
        count = METHODS[self.method].members or members
        return new_ensemble(features, count, tail=self.tail, norm=self.norm or norm, seed=seed)

    def options(self, seed: int, **others: Any) -> TrainOptions:
        """How `fit` trains them."""
        return TrainOptions(**self.training, seed=seed, **others)


INCUMBENT = Candidate()
SINGLE, DEEP = Candidate("single"), Candidate("deep-ensemble")
ALWAYS = (INCUMBENT, DEEP, SINGLE)  # trained to the end, whatever the first rung says


def candidates(features: FeatureSet, norm: str | None = None) -> list[Candidate]:
    """The ensembles to try on these features, the incumbent first; `norm` is its norm, None: the tail's default."""
    several = [
        *ALWAYS,
        Candidate("deep-ensemble", label_smoothing=0.1),
        Candidate(diversity=0.1, label_smoothing=0.1),
        Candidate(diversity=0.3, label_smoothing=0.1),
        Candidate("diverse-hps"),
    ]
    tail = (new_ensemble(features, 1).about or {}).get("name")
    if tail == "linear" and len(features.shape) == 1:
        several += [Candidate("deep-ensemble", norm=each) for each in ("layer", "none", "l2") if each != (norm or "l2")]
        classes = max(2, len(features.classes))
        parameters = sum(p.numel() for p in tails.create("mlp", features.width, classes).parameters())
        if len(features) * parameters <= MLP_COST:
            several.append(Candidate("deep-ensemble", norm="l2", tail="mlp"))
    return several


def expressions(fitted: tuple[str, ...]) -> list[str]:
    """The scores and combinations to try, the default first, given the names of scores that could be fitted.

    The length of features is in the combinations if it is in the default: no stand-in has features of another scale,
    so nothing measures what it is good for.
    """
    length = [LENGTH] if LENGTH in score_names(DEFAULT_SCORE)[0] else []
    combined: list[dict[str, float]] = [{"mahalanobis": 4}, {"knn": 4}]
    for name in LOGITS:
        combined += [{"mahalanobis": 4, name: 2}, {"mahalanobis": 4, name: 4}, {"mahalanobis": 4, name: 1}]
        combined += [{"mahalanobis": 4, "knn": 2, name: 2}, {"knn": 4, name: 2}]
        combined += [{"mahalanobis": 4, "relative_mahalanobis": weight, name: 2} for weight in (1, 2)]
    joined = [{**weights, **dict.fromkeys(length, 1.0)} for weights in combined]
    texts = [default_score(fitted), *LOGITS, *DISTANCES, *(expression(list(w), list(w.values())) for w in joined)]
    unique: dict[tuple[tuple[str, float], ...], str] = {}
    for text in texts:
        unique.setdefault(_normal(text), text)  # the first of equals stays
    return [text for text in unique.values() if all(n in fitted for n in score_names(text)[0] if scores.is_fitted(n))]


def eligible(text: str) -> bool:
    """Whether a score may be chosen: it has a distance, and the length of features if the default has it.

    Stand-ins lie near the training data. Only these see inputs that are far away.
    """
    names = score_names(text)[0]
    needs_length = LENGTH in score_names(DEFAULT_SCORE)[0]
    return any(name in names for name in ("mahalanobis", "knn")) and (not needs_length or LENGTH in names)


def _normal(text: str) -> tuple[tuple[str, float], ...]:
    """Names with weights relative to their sum."""
    names, weights = score_names(text)
    return tuple(sorted((n, round(w / sum(weights), 9)) for n, w in zip(names, weights, strict=True)))
