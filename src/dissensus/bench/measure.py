"""How the bench measures: two sides run in turn, medians, and their ratio.

A time says little on a shared machine; two that were taken side by side in one run say how they compare.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from tqdm import tqdm

WARM_UP = 2  # runs of each side that are not counted


@dataclass(frozen=True)
class Sizes:
    """What the cases run on; the defaults are those of the paper's ImageNet experiments."""

    features: int = 768
    classes: int = 1000
    batch: int = 256
    members: int = 5
    many: int = 50  # members of a large ensemble
    active: int = 2
    fit_batches: int = 20  # batches of the epoch that whole fits are compared on
    rows: int = 1_281_167  # of the training set of the memory case: ImageNet's


QUICK = Sizes(features=32, classes=20, batch=256, many=10, fit_batches=3, rows=20_000)


class Side(NamedTuple):
    """One of two things to compare."""

    words: str
    run: Callable[[], object]
    steps: int = 1  # training steps in one run


class Bar(NamedTuple):
    """What a number has to reach."""

    sign: str  # "<=", ">=", "<" or ">"
    limit: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}{self.unit}"

    def met(self, value: float) -> bool:
        """Whether `value` reaches the bar."""
        below, above = value < self.limit, value > self.limit
        return {"<": below, ">": above, "<=": not above, ">=": not below}[self.sign]


class Entry(Protocol):
    """A result: one line of the table, one object of the JSON."""

    def record(self) -> dict[str, Any]:
        """The result as plain values, rounded."""

    def row(self) -> list[str]:
        """Name, value, bar, whether it is met, and what it is, for the table."""


@dataclass(frozen=True)
class Comparison:
    """Two sides, run in turn `repeats` times."""

    name: str
    numerator: str
    denominator: str
    bar: Bar
    numerator_ms: tuple[float, ...]
    denominator_ms: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over median."""
        return float(np.median(self.numerator_ms) / np.median(self.denominator_ms))

    @property
    def quartiles(self) -> tuple[float, float]:
        """Quartiles of the ratio within each repeat."""
        low, high = np.percentile(np.divide(self.numerator_ms, self.denominator_ms), [25, 75])
        return float(low), float(high)

    def record(self) -> dict[str, Any]:
        """The comparison as plain values, rounded."""
        return {
            "name": self.name,
            "ratio": round(self.ratio, 3),
            "numerator": self.numerator,
            "denominator": self.denominator,
            "bar": str(self.bar),
            "met": self.bar.met(self.ratio),
            "numerator_ms": round(float(np.median(self.numerator_ms)), 3),
            "denominator_ms": round(float(np.median(self.denominator_ms)), 3),
            "repeats": len(self.numerator_ms),
            "ratio_quartiles": [round(value, 3) for value in self.quartiles],
        }

    def row(self) -> list[str]:
        """One line of the table."""
        low, high = self.quartiles
        one, other = np.median(self.numerator_ms), np.median(self.denominator_ms)
        what = f"{self.numerator} ({one:.3g} ms) / {self.denominator} ({other:.3g} ms)"
        value = f"{self.ratio:.2f} [{low:.2f}, {high:.2f}]"
        return [self.name, value, str(self.bar), "yes" if self.bar.met(self.ratio) else "no", what]


def compare(name: str, numerator: Side, denominator: Side, bar: Bar, repeats: int) -> Comparison:
    """Run both sides in turn, each first every other time, and keep milliseconds a step."""
    times: dict[Side, list[float]] = {numerator: [], denominator: []}
    rounds = tqdm(range(-WARM_UP, repeats), desc=name, unit="repeat", leave=False, disable=None, dynamic_ncols=True)
    for turn in rounds:
        for side in (numerator, denominator) if turn % 2 else (denominator, numerator):
            start = time.perf_counter()
            side.run()
            seconds = time.perf_counter() - start
            if turn >= 0:
                times[side].append(1000 * seconds / side.steps)
    one, other = tuple(times[numerator]), tuple(times[denominator])
    return Comparison(name, numerator.words, denominator.words, bar, one, other)


def sizes_record(sizes: Sizes) -> dict[str, int]:
    """The sizes as plain values."""
    return asdict(sizes)
