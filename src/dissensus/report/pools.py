"""What a run says of every sample, pooled by family of sets: all corruptions of a severity are one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dissensus._core.errors import RunError
from dissensus.evaluation.records import Judged
from dissensus.report import numbers
from dissensus.report.numbers import Array


@dataclass
class Family:
    """The sets of one family as one."""

    name: str
    role: str  # id, shift, ood or groups
    sets: int = 0
    count: int = 0
    largest: int = 0  # samples of its largest set: corruptions show the same images again
    scores: dict[str, Array] = field(default_factory=dict)
    confidence: Array = field(default_factory=lambda: np.empty(0))
    correct: Array | None = None
    agreement: Array = field(default_factory=lambda: np.zeros((1, 1)))


def pool(judged: Judged) -> dict[str, Family]:
    """Every family of the run, the id set first, then in the suite's order."""
    found: dict[str, Family] = {}
    for entry in sorted(judged.sets, key=lambda entry: entry["role"] != "id"):
        name = entry["family"] or entry["name"]
        try:
            samples = judged.samples(entry["name"])
            if len(samples.prediction) != entry["count"] or not entry["count"]:
                raise KeyError(f"{entry['name']} has {len(samples.prediction)} samples of {entry['count']}")
            if found and set(samples.scores) != set(inside(found).scores):
                raise KeyError(f"{entry['name']} has other scores than the id set")
        except KeyError as error:
            raise RunError(f"{judged.folder} is damaged ({error.args[0]}); evaluate the run again") from error
        family = found.setdefault(name, Family(name, entry["role"]))
        votes = samples.votes.numpy()
        share = entry["count"] / (family.count + entry["count"])
        family.agreement = (1 - share) * family.agreement + share * numbers.agreement(votes)
        family.sets, family.count = family.sets + 1, family.count + entry["count"]
        family.largest = max(family.largest, entry["count"])
        for key, values in samples.scores.items():
            family.scores[key] = np.concatenate([family.scores.get(key, np.empty(0)), values.double().numpy()])
        family.confidence = np.concatenate([family.confidence, samples.confidence.double().numpy()])
        if samples.labels is not None:
            right = (samples.prediction == samples.labels).double().numpy()
            family.correct = right if family.correct is None else np.concatenate([family.correct, right])
    return found


def inside(families: dict[str, Family]) -> Family:
    """The id set."""
    return next(family for family in families.values() if family.role == "id")
