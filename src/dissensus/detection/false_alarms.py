"""FalseAlarms: what the calibration of a run promises, and the share measured on the id set of its evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dissensus._core.errors import RunError
from dissensus.detection.detector import Detector
from dissensus.detection.threshold import Threshold
from dissensus.evaluation import saved

FEW = 100  # calibration samples; with fewer the range is several times as wide as the rate


@dataclass(frozen=True)
class FalseAlarms:
    """The false alarms of a calibrated run.

    >>> print(FalseAlarms("pds", 0.05, 40, False, (0.012, 0.117), "id", 0.0625, 80))
    at 5% false alarms, n = 40: 1.2% to 11.7% nine times in ten, narrower with more held-out images; measured on id: \
6.2% of 80
    """

    score: str
    rate: float  # the share of ID samples that may be called out
    count: int  # calibration samples; by class, of the rarest
    by_class: bool
    range: tuple[float, float]  # of the true rate, for nine in ten calibrations of this size
    inside: str  # name of the id set
    measured: float | None  # the share of the id set that is called out; None: its scores were not kept
    samples: int  # of the id set

    @classmethod
    def of_run(cls, folder: Path) -> FalseAlarms | None:
        """The false alarms of an evaluated run; None if it has no calibration, or one that does not fit it."""
        evaluation = saved.load(folder)
        try:
            rule = Detector.load(folder).threshold
        except RunError:
            return None
        if rule is None:
            return None
        inside = next(s for s in evaluation.about.sets if s.role == "id")
        return cls(
            score=rule.name,
            rate=rule.false_alarms,
            count=min(map(len, rule.calibrated.values)),
            by_class=rule.calibrated.by_class,
            range=rule.calibrated.spread(rule.false_alarms),
            inside=inside.name,
            measured=_measure(rule, evaluation, inside.name),
            samples=inside.count,
        )

    def __str__(self) -> str:
        (low, high), each = self.range, " of the rarest class" if self.by_class else ""
        text = f"at {100 * self.rate:.3g}% false alarms, n = {self.count:,}{each}: "
        text += f"{low:.1%} to {high:.1%} nine times in ten"
        text += ", narrower with more held-out images" if self.count < FEW else ""
        if self.measured is not None:
            text += f"; measured on {self.inside}: {self.measured:.1%} of {self.samples:,}"
        return text


def _measure(rule: Threshold, evaluation: saved.Evaluation, name: str) -> float | None:
    """The share of a set above the threshold, from the scores that were kept."""
    try:
        predictions = evaluation.predictions(name)
    except RunError:  # values alone were kept
        return None
    if any(score not in predictions.scores for score in rule.scores):
        return None
    values = rule.score([predictions.scores[score] for score in rule.scores])
    return float((values > rule.limits(predictions.prediction)).double().mean())
