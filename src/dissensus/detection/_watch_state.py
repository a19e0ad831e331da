"""The state of a `Monitor` as a JSON document: counts, wealth and history, independent of the length of the stream."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from dissensus._core.documents import Document, Part
from dissensus._core.errors import RunError
from dissensus.functional.martingales import StreamTest

Number = Annotated[int, Field(ge=0, le=2**53)]
NotNegative = Annotated[float, Field(ge=0)]


class TestState(Part):
    """A `StreamTest`."""

    counts: tuple[Number, ...]
    wealth: tuple[NotNegative, ...]
    scale: float
    recent: tuple[tuple[NotNegative, ...], ...]
    log_wealth: float
    since: Number


class Point(Part):
    """What is drawn: after so many samples, how many were called out, and the log wealth of each test."""

    samples: Number
    out: Number
    log_wealth: tuple[float, ...]


class Alarm(Part):
    """That a stream has drifted.

    Attributes:
        sample: The sample at which the alarm was raised, from 1.
        since: The sample after which the evidence grew, about where the drift began.
        test: What has changed: scores or classes.
        reason: What has changed, in words.
    """

    sample: Number
    since: Number
    test: Literal["scores", "classes"]
    reason: str

    def __str__(self) -> str:
        return f"ALARM at sample {self.sample:,}: since about sample {self.since + 1:,}, {self.reason}"


class RecentState(Part):
    """Sums over samples: all, those called out, p-values, by class, those that a part of the score finds unusual."""

    count: Number
    out: Number
    p_values: NotNegative
    classes: tuple[Number, ...]
    parts: dict[str, Number]


class WatchState(Document):
    """What `Monitor.save` writes."""

    error: ClassVar[type[RunError]] = RunError
    remedy: ClassVar[str] = "remove it to begin again"

    format: Literal["dissensus-watch-1"] = "dissensus-watch-1"
    detector: str  # a digest of the detector and its calibration
    rate: Annotated[float, Field(gt=0, lt=1)]
    samples: Number
    out: Number
    errors: Number
    tests: dict[str, TestState]
    recent: dict[str, RecentState]  # by test, since its evidence began to grow
    stride: Annotated[int, Field(ge=1, le=2**53)]
    history: Annotated[tuple[Point, ...], Field(max_length=1000)]
    alarm: Alarm | None

    @model_validator(mode="after")
    def _check_history(self) -> WatchState:
        places = [point.samples for point in self.history]
        outs = [point.out for point in self.history]
        if places != sorted(places) or outs != sorted(outs) or (places and places[-1] > self.samples):
            raise ValueError("history: samples and verdicts must grow, up to those of the whole stream")
        if any(len(point.log_wealth) != len(self.tests) for point in self.history):
            raise ValueError("history: every test needs its wealth")
        return self


def state_of(test: StreamTest) -> TestState:
    """What `restore` continues from."""
    martingale = test.martingale
    return TestState(
        counts=tuple(test.ranks.counts.tolist()), wealth=tuple(martingale.wealth.tolist()),
        scale=float(martingale.scale), recent=tuple(tuple(row) for row in martingale.recent.tolist()),
        log_wealth=test.log_wealth, since=test.since,
    )  # fmt: skip


def restore(test: StreamTest, state: TestState, samples: int) -> bool:
    """Continue a test; whether the state fits it."""
    counts, martingale = np.array(state.counts, np.int64), test.martingale
    wealth, before = np.array(state.wealth), test.ranks.counts
    fits = counts.shape == before.shape and wealth.shape == martingale.wealth.shape
    fits = fits and [len(row) for row in state.recent] == [martingale.recent.shape[1]] * len(martingale.recent)
    if not fits or (counts < before).any() or counts.sum() - before.sum() != samples or state.since > samples:
        return False
    test.ranks.counts, martingale.wealth = counts, wealth
    martingale.scale, martingale.recent = np.array(state.scale), np.array(state.recent)
    test.log_wealth, test.since = state.log_wealth, state.since
    test.resume(samples)
    return True
