"""What the summary needs to know of every sample of a run, in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dissensus.functional.metrics import threshold
from dissensus.report import numbers
from dissensus.report.pools import Family, inside

FLAT = 1e-9  # a score that varies less tells nothing apart


@dataclass(frozen=True)
class Facts:
    """Of one run: shares above the threshold by score and family, scores that never vary, samples by family."""

    above: Mapping[tuple[str, str], float]
    constant: frozenset[str]
    counts: Mapping[str, int]


def facts(families: dict[str, Family]) -> Facts:
    """The threshold of every score on the id set, and what lies above it."""
    own = inside(families)
    limits = {score: threshold(values) for score, values in own.scores.items()}
    shares = {(s, f.name): numbers.above(f.scores[s], v) for s, v in limits.items() for f in families.values()}
    fixed = [s for s in limits if all(float(f.scores[s].max() - f.scores[s].min()) < FLAT for f in families.values())]
    return Facts(shares, frozenset(fixed), {f.name: f.largest for f in families.values()})
