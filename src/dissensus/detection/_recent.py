"""Recent: what the latest samples of a stream are like, and how an alarm says it in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dissensus.detection._watch_state import RecentState

MEMORY = 200.0  # samples; earlier ones are forgotten exponentially


class Recent:
    """Sums over the latest samples: of those called out, p-values, predicted classes and unusual parts of scores."""

    def __init__(self, classes: int) -> None:
        self.weight = self.out = self.p_values = 0.0
        self.by_class: NDArray[np.float64] = np.zeros(classes)
        self.parts: dict[str, float] = {}

    @classmethod
    def of(cls, state: RecentState) -> Recent:
        """Continue from a state."""
        recent = cls(0)
        recent.weight, recent.out, recent.p_values = state.weight, state.out, state.p_values
        recent.by_class, recent.parts = np.array(state.classes), dict(state.parts)
        return recent

    def state(self) -> RecentState:
        """What `of` continues from."""
        return RecentState(
            weight=self.weight, out=self.out, p_values=self.p_values, classes=tuple(self.by_class.tolist()),
            parts=self.parts,
        )  # fmt: skip

    def add(self, out: bool, p_value: float, label: int, unusual: Mapping[str, bool]) -> None:
        """Count a sample; `unusual` tells which of the scores that are combined find it so."""
        keep = 1 - 1 / MEMORY
        self.weight = keep * self.weight + 1
        self.out = keep * self.out + out
        self.p_values = keep * self.p_values + p_value
        self.by_class *= keep
        self.by_class[label] += 1
        self.parts = {
            name: keep * self.parts.get(name, 0.0) + unusual.get(name, False) for name in {**self.parts, **unusual}
        }

    @property
    def out_share(self) -> float:
        """The share that is called out."""
        return self.out / self.weight if self.weight else 0.0

    def scores(self, allowed: float) -> str:
        """What has changed in the scores, of which a share `allowed` was called out in calibration."""
        if self.out_share > allowed + 2 * math.sqrt(allowed * (1 - allowed) / self.weight):
            text = f"too many samples are unusual: {self.out_share:.0%} of the latest are called out, {allowed:.0%} "
            text += "expected"
            most = max(self.parts, key=lambda name: self.parts[name], default=None)
            return text if most is None else f"{text}, most of them by {most}"
        mean = self.p_values / self.weight
        side = "higher" if mean < 0.45 else "lower" if mean > 0.55 else "distributed otherwise"
        return f"scores are {side} than in calibration: the mean p-value of the latest is {mean:.2f}, 0.50 expected"

    def classes(self, expected: NDArray[np.int64], names: Sequence[str]) -> str:
        """What has changed in the predicted classes, given those of the calibration samples."""
        now, before = self.by_class / self.weight, expected / expected.sum()
        c = int(np.abs(now - before).argmax())
        return f"class shares have changed: {names[c]} is {now[c]:.0%} of the latest samples, {before[c]:.0%} expected"
