"""Recent: what the samples since the evidence began to grow are like, and how an alarm says it in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dissensus.detection._watch_state import RecentState


class Recent:
    """Sums over the latest samples: of those called out, p-values, predicted classes and unusual parts of scores."""

    def __init__(self, classes: int) -> None:
        self.count = self.out = 0
        self.p_values = 0.0
        self.by_class: NDArray[np.int64] = np.zeros(classes, np.int64)
        self.parts: dict[str, int] = {}

    @classmethod
    def of(cls, state: RecentState) -> Recent:
        """Continue from a state."""
        recent = cls(0)
        recent.count, recent.out, recent.p_values = state.count, state.out, state.p_values
        recent.by_class, recent.parts = np.array(state.classes, np.int64), dict(state.parts)
        return recent

    def state(self) -> RecentState:
        """What `of` continues from."""
        return RecentState(
            count=self.count, out=self.out, p_values=self.p_values, classes=tuple(self.by_class.tolist()),
            parts=self.parts,
        )  # fmt: skip

    def add(self, out: bool, p_value: float, label: int, unusual: Mapping[str, bool]) -> None:
        """Count a sample; `unusual` tells which of the scores that are combined find it so."""
        self.count += 1
        self.out += out
        self.p_values += p_value
        self.by_class[label] += 1
        for name, is_unusual in unusual.items():
            self.parts[name] = self.parts.get(name, 0) + is_unusual

    def scores(self, allowed: float) -> str:
        """What has changed in the scores, of which a share `allowed` was called out in calibration."""
        share = self.out / self.count
        if share > allowed + 2 * math.sqrt(allowed * (1 - allowed) / self.count):
            text = f"too many samples are unusual: {share:.0%} are called out, {allowed:.0%} expected"
            most = max(self.parts, key=lambda name: self.parts[name], default=None)
            return text if most is None else f"{text}, most of them by {most}"
        mean = self.p_values / self.count
        side = "higher" if mean < 0.45 else "lower" if mean > 0.55 else "distributed differently"
        return f"scores are {side} than in calibration: the mean p-value is {mean:.2f}, 0.50 expected"

    def classes(self, expected: NDArray[np.int64], names: Sequence[str]) -> str:
        """What has changed in the predicted classes, given those of the calibration samples."""
        now, before = self.by_class / self.count, expected / expected.sum()
        c = int(np.abs(now - before).argmax())
        return f"class shares have changed: {names[c]} is {now[c]:.0%} of the samples, {before[c]:.0%} expected"
