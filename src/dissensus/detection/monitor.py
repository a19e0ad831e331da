"""Monitor: is what comes in still what the detector was calibrated on?

monitor = Monitor(detector)                       # a false alarm has probability 1% at most, however long the stream
for verdict in detector.stream(paths):
    if alarm := monitor.add(verdict):
        print(alarm)
monitor.save("state.json")                        # small; Monitor.load continues
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from dissensus._core import documents
from dissensus._core.digests import digest, of_bytes
from dissensus._core.errors import DataError, RunError
from dissensus._core.places import place
from dissensus.detection._recent import Recent
from dissensus.detection._watch_state import Alarm, Point, WatchState, restore, state_of
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import Verdict
from dissensus.functional import conformal, martingales
from dissensus.functional.martingales import Martingale, Ranks, StreamTest

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector

RATE = 0.01  # probability that an undisturbed stream ever raises the alarm
POINTS = 400  # of the history, at most; then every other one is dropped
SOON = 1000  # samples within which a stream of nothing but outliers must raise the alarm


class Monitor:
    """Watches a stream of verdicts for drift, with a false-alarm rate for the whole stream, however long.

    Two conformal test martingales are run: on the scores, and on the predicted classes. Each raises the alarm with
    probability at most rate / 2 as long as the stream is exchangeable with the calibration samples. Methods may be
    called from several threads. After an alarm the counts go on, but the alarm stays.

    Args:
        detector: A calibrated detector.
        rate: The probability that an undisturbed stream ever raises the alarm.

    Raises:
        DissensusError: If the detector is not calibrated, or has too few calibration samples for the rate.
    """

    def __init__(self, detector: Detector, rate: float = RATE) -> None:
        threshold = detector.threshold
        if threshold is None:
            raise DataError("a monitor needs a calibrated detector; this one is not: call calibrate first")
        conformal.check_rate(rate)
        self.rate, self.classes, self.threshold = rate, detector.classes, threshold
        scores = np.concatenate([part.double().numpy() for part in threshold.calibrated.values])
        self.tests = {"scores": StreamTest(Ranks.of(scores), Martingale(memories=()), seed=0)}
        self.expected = _class_counts(threshold, len(self.classes))
        if self.expected is not None:
            numbers = np.arange(len(self.classes), dtype=np.float64)
            labels = np.repeat(numbers, self.expected)
            self.tests["classes"] = StreamTest(Ranks.of(labels, numbers), Martingale(), seed=1)
        self.limit = math.log(len(self.tests) / rate)
        _check_count(len(scores), self.limit, rate)
        self.detector = _digest(detector, threshold)
        self.samples = self.out = self.errors = 0
        self.alarm: Alarm | None = None
        self._history: list[Point] = []
        self._stride = 1
        self._recent = {name: Recent(len(self.classes)) for name in self.tests}
        self._lock = Lock()

    def add(self, verdict: Verdict) -> Alarm | None:
        """Count a verdict; return the alarm if this sample raises it.

        Raises:
            DataError: If the verdict has no score and p-value, or its class is not one of the detector's.
        """
        if verdict.error is not None:
            with self._lock:
                self.errors += 1
            return None
        score, p_value, label = verdict.score, verdict.p_value, verdict.label
        if score is None or math.isnan(score):
            raise DataError(f"a verdict needs a score that is a number; {verdict.name} has {score}: predict it again")
        if p_value is None or not 0 <= p_value <= 1:
            raise DataError(
                f"a p-value must be within [0, 1]; {verdict.name} has {p_value}: calibrate and predict again"
            )
        if label is None or not 0 <= label < len(self.classes):
            raise DataError(
                f"a verdict needs one of the {len(self.classes)} classes of this run; {verdict.name} has {label}: "
                "give verdicts of this run"
            )
        with self._lock:
            return self._add(verdict, score, p_value, label)

    def _add(self, verdict: Verdict, score: float, p_value: float, label: int) -> Alarm | None:
        out = p_value <= self.threshold.false_alarms
        self.samples += 1
        self.out += out
        self.tests["scores"].add(score)
        if "classes" in self.tests:
            self.tests["classes"].add(label)
        unusual = {name: part <= self.threshold.false_alarms for name, part in verdict.parts}
        for name, test in self.tests.items():
            if test.log_wealth <= 0:
                self._recent[name] = Recent(len(self.classes))
            else:
                self._recent[name].add(out, p_value, label, unusual)
        if self.samples % self._stride == 0:
            log_wealth = tuple(test.log_wealth for test in self.tests.values())
            self._history.append(Point(samples=self.samples, out=self.out, log_wealth=log_wealth))
            if len(self._history) > POINTS:
                self._stride *= 2
                self._history = [point for point in self._history if point.samples % self._stride == 0]
        if self.alarm is None:
            self.alarm = self._ring()
            return self.alarm
        return None

    def _ring(self) -> Alarm | None:
        for name, test in self.tests.items():
            if test.log_wealth >= self.limit:
                reason = self._recent[name].scores(self.threshold.false_alarms)
                if name == "classes" and self.expected is not None:
                    reason = self._recent[name].classes(self.expected, self.classes)
                return Alarm(sample=self.samples, since=test.since, test=name, reason=reason)  # type: ignore[arg-type]
        return None

    def metrics(self) -> dict[str, float]:
        """Return numbers to export: samples, verdicts, log10 of each test's wealth and of the alarm limit."""
        with self._lock:
            wealth = {f"log10_wealth_{name}": test.log_wealth / math.log(10) for name, test in self.tests.items()}
            return {
                "samples": self.samples,
                "errors": self.errors,
                "out": self.out,
                **wealth,
                "log10_wealth_limit": self.limit / math.log(10),
                "alarm": int(self.alarm is not None),
            }

    @property
    def history(self) -> tuple[Point, ...]:
        """Points of the stream up to now, to draw; other threads may add samples meanwhile."""
        with self._lock:
            return tuple(self._history)

    @property
    def banner(self) -> str:
        """A sentence for people to see while the alarm is on, else nothing."""
        if self.alarm is None:
            return ""
        return f"What comes in is no longer what this detector was calibrated on. {self.alarm}."

    @property
    def promise(self) -> str:
        """What the monitor guarantees, as one sentence."""
        n = sum(map(len, self.threshold.calibrated.values))
        return (
            f"a stream like the calibration samples (n = {n:,}) ever raises the alarm with probability at most "
            f"{100 * self.rate:.3g}%, however long it is"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, atomically."""
        with self._lock:
            state = WatchState(
                detector=self.detector, rate=self.rate, samples=self.samples, out=self.out, errors=self.errors,
                tests={name: state_of(test) for name, test in self.tests.items()},
                recent={name: recent.state() for name, recent in self._recent.items()},
                stride=self._stride, history=tuple(self._history), alarm=self.alarm,
            )  # fmt: skip
        documents.write(place(path), state)

    @classmethod
    def load(cls, path: str | os.PathLike[str], detector: Detector, rate: float | None = None) -> Monitor:
        """Continue from a state that `save` wrote.

        Args:
            path: The file.
            detector: The detector that the state is of.
            rate: Raise if the state is of another rate; None: take its rate.

        Raises:
            RunError: If there is no such file, or it is damaged or of another detector, calibration or rate.
        """
        state = documents.read(WatchState, place(path))
        if rate is not None and rate != state.rate:
            raise RunError(f"{path} watches at a rate of {state.rate:g}; got {rate:g}: leave it out, or {state.remedy}")
        monitor = cls(detector, state.rate)
        if state.detector != monitor.detector:
            raise RunError(f"{path} is the state of another run, or of another calibration of it: {state.remedy}")
        monitor._restore(place(path), state)
        return monitor

    def _restore(self, path: Path, state: WatchState) -> None:
        sizes = {name: len(recent.classes) for name, recent in state.recent.items()}
        fits = list(state.tests) == list(self.tests) and sizes == dict.fromkeys(self.tests, len(self.classes))
        for name, test in self.tests.items() if fits else ():
            fits = fits and restore(test, state.tests[name], state.samples)
        if not fits or state.out > state.samples:
            raise RunError(f"{path} is damaged, its counts do not fit the calibration: {state.remedy}")
        self.samples, self.out, self.errors, self.alarm = state.samples, state.out, state.errors, state.alarm
        self._history, self._stride = list(state.history), state.stride
        self._recent = {name: Recent.of(recent) for name, recent in state.recent.items()}


def _class_counts(threshold: Threshold, classes: int) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Predicted classes of the calibration samples, counted; None if they are not known, or there is one class."""
    if threshold.held_out is None or classes < 2 or int(threshold.held_out.labels.max()) >= classes:
        return None
    return np.bincount(threshold.held_out.labels.numpy(), minlength=classes)


def _check_count(count: int, limit: float, rate: float) -> None:
    if martingales.soonest(count, limit, SOON) is None:
        fewest = next(n for n in range(count, 10**6) if martingales.soonest(n, limit, SOON) is not None)
        raise DataError(
            f"an alarm rate of {rate:g} needs {fewest} calibration samples, or even {SOON:,} outliers in a row would "
            f"not raise it; got {count}: calibrate with more, or allow a higher rate"
        )


def _digest(detector: Detector, threshold: Threshold) -> str:
    tensors = [*threshold.calibrated.values, *threshold.references, *(threshold.held_out or ())]
    return digest(
        {
            "identity": detector.identity.using(threshold.scores).model_dump(),
            "scores": [threshold.scores, threshold.weights, threshold.false_alarms],
            "calibration": [of_bytes(value.numpy().tobytes()) for value in tensors],
            "classes": detector.classes,
        }
    )
