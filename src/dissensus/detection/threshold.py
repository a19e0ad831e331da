"""Threshold: scores of held-out ID samples as a decision rule for one sample, kept in a folder.

detector.json            the scores, the false-alarm rate, and what it was calibrated for
detector.safetensors     the calibration scores
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from dissensus._core import documents, tensors
from dissensus._core.documents import Document, Part
from dissensus._core.errors import DataError, DissensusError, RunError, UnknownNameError
from dissensus.functional import conformal, scores
from dissensus.functional.conformal import Calibrated

DOCUMENT, TENSORS = "detector.json", "detector.safetensors"


class Identity(Part):
    """What a calibration depends on: fingerprints of the members' weights and of the backbone, if any."""

    ensemble: str
    backbone: str | None


class DetectorDocument(Document):
    """detector.json."""

    format: Literal["dissensus-detector-2"] = "dissensus-detector-2"
    scores: Annotated[tuple[str, ...], Field(min_length=1)]
    false_alarms: Annotated[float, Field(gt=0, lt=1)]
    parts: Annotated[int, Field(ge=1, le=2**31)]  # 1, or one for each class
    calibrated_for: Identity


@dataclass(frozen=True, repr=False)
class Threshold:
    """A calibrated decision rule: a sample is out of distribution if its score exceeds a limit.

    Attributes:
        scores: Names of the scores; several are combined by `conformal.evidence`.
        false_alarms: The share of ID samples that may be called out.
        calibrated: The calibration scores, for all samples or for each predicted class.
        references: Where several scores are combined, the values of each on half of the samples, ascending. The other
            half calibrates the combination.
    """

    scores: tuple[str, ...]
    false_alarms: float
    calibrated: Calibrated
    references: tuple[Tensor, ...] = ()

    @classmethod
    def calibrate(
        cls,
        values: Mapping[str, Tensor],
        false_alarms: float,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
    ) -> Threshold:
        """Calibrate on the scores of held-out ID samples.

        Args:
            values: Scores (n,) by name; several are combined.
            false_alarms: The share of ID samples that may be called out.
            labels: Predicted labels (n,), for one limit per class.
            classes: Names of the classes, for one limit per class.

        Raises:
            DissensusError: If the rate is not in (0, 1), or needs more samples.
        """
        each = [value.float() for value in values.values()]
        references: tuple[Tensor, ...] = ()
        final = each[0]
        if len(each) > 1:
            # Shuffled, so that both halves are alike whatever the order of the samples.
            order = torch.randperm(len(final), generator=torch.Generator().manual_seed(0))
            first, second = order[::2], order[1::2]
            references = tuple(v[first].sort().values for v in each)
            final = conformal.evidence(references, [v[second] for v in each])
            labels = None if labels is None else labels[second]
        threshold = cls(tuple(values), false_alarms, Calibrated.of(final, labels, len(classes)), references)
        threshold.calibrated.check(false_alarms, classes)
        return threshold

    def __repr__(self) -> str:
        limits = self.calibrated.thresholds(self.false_alarms)
        rule = f"out if {self.name} > {float(limits[0]):.4g}"
        if self.calibrated.by_class:
            low, high = float(limits.min()), float(limits.max())
            rule = f"out if {self.name} > {low:.4g} to {high:.4g} by predicted class"
        return f"Threshold({rule}; {100 * self.false_alarms:.3g}% false alarms, n = {self.calibrated.count:,})"

    def score(self, logits: Tensor) -> Tensor:
        """Return the score of each sample: (M, B, C) -> (B,), higher = more OOD."""
        return combine(self.scores, self.references, logits)

    def limits(self, labels: Tensor) -> Tensor:
        """Return the score above which a sample of each predicted label is out: (B,) -> (B,)."""
        limits = self.calibrated.thresholds(self.false_alarms)
        return limits[labels] if self.calibrated.by_class else limits.expand(len(labels))

    def at(self, false_alarms: float) -> Threshold:
        """Return the same calibration at another false-alarm rate.

        Raises:
            DissensusError: If the rate is not in (0, 1), or needs more calibration samples.
        """
        self.calibrated.check(false_alarms)
        return replace(self, false_alarms=false_alarms)

    @property
    def name(self) -> str:
        """Names of the scores, joined by +."""
        return "+".join(self.scores)

    @property
    def promise(self) -> str:
        """What the calibration guarantees, as one sentence."""
        low, high = self.calibrated.spread(self.false_alarms)
        n = min(map(len, self.calibrated.values))
        each = " of the rarest class" if self.calibrated.by_class else ""
        return (
            f"on average over calibrations like this one (n = {n:,}{each}), at most {self.false_alarms:.2%} of ID "
            f"samples are called out; a single calibration of this size gives {low:.2%} to {high:.2%} nine times in ten"
        )

    def save(self, folder: Path, identity: Identity) -> None:
        """Write detector.json and detector.safetensors into a folder; `load` compares `identity`."""
        values = {f"calibration.{i}": part for i, part in enumerate(self.calibrated.values)}
        values |= {f"reference.{i}": reference for i, reference in enumerate(self.references)}
        (folder / DOCUMENT).unlink(missing_ok=True)  # Written last: a calibration is complete or absent.
        tensors.write(folder / TENSORS, values)
        document = DetectorDocument(
            scores=self.scores,
            false_alarms=self.false_alarms,
            parts=len(self.calibrated.values),
            calibrated_for=identity,
        )
        documents.write(folder / DOCUMENT, document)

    @classmethod
    def load(cls, folder: Path, identity: Identity, *, remedy: str | None = None) -> Threshold | None:
        """Read what `save` wrote.

        Args:
            folder: The folder.
            identity: The ensemble and backbone that it will be used with.
            remedy: What the user can do if it cannot be used; by default, to calibrate again.

        Returns:
            The threshold, or None if the folder has none.

        Raises:
            RunError: If it is damaged, or was calibrated for another ensemble or backbone.
        """
        if not (folder / DOCUMENT).exists():
            return None
        remedy = remedy or f"calibrate again: dissensus calibrate {folder} --id SAMPLES"
        document = documents.read(DetectorDocument, folder / DOCUMENT, remedy=remedy)
        for kind, expected in identity:
            if getattr(document.calibrated_for, kind) != expected:
                raise RunError(
                    f"a calibration holds for the {kind} it was made with; {folder} has another now: {remedy}"
                )
        try:
            scores.SCORES.check(*document.scores)
        except UnknownNameError as error:
            raise RunError(f"{folder / DOCUMENT} names an {error}; register it first, or {remedy}") from error
        values = tensors.read(folder / TENSORS, remedy=remedy)
        count = len(document.scores)
        threshold = cls(
            document.scores,
            document.false_alarms,
            Calibrated(_ascending(folder / TENSORS, values, "calibration", document.parts, remedy)),
            _ascending(folder / TENSORS, values, "reference", count if count > 1 else 0, remedy),
        )
        try:
            threshold.calibrated.check(document.false_alarms)
        except DataError as error:
            raise RunError(f"{folder / DOCUMENT} and {TENSORS} do not fit ({error}); {remedy}") from error
        return threshold


def _ascending(path: Path, values: Mapping[str, Tensor], kind: str, count: int, remedy: str) -> tuple[Tensor, ...]:
    """Return the tensors kind.0, kind.1, ..., each (n,) and sorted; raise if there are not `count`."""
    names = sorted((name for name in values if name.startswith(f"{kind}.")), key=lambda name: (len(name), name))
    if len(names) != count:
        raise RunError(f"{path} must hold {count} {kind} tensors; it holds {len(names)}: {remedy}")
    for name in names:
        value = values[name]
        if value.dtype != torch.float32 or value.ndim != 1 or bool(value.isnan().any()):
            raise RunError(f"{path} is damaged ({name} is not a vector of float32 numbers): {remedy}")
    return tuple(values[name].sort().values for name in names)


def combine(names: Sequence[str], references: Sequence[Tensor], logits: Tensor) -> Tensor:
    """Return one score as it is, several as the evidence of their p-values among `references`: (M, B, C) -> (B,)."""
    values = [scores.SCORES[name](logits).float().cpu() for name in names]
    return conformal.evidence(references, values) if len(names) > 1 else values[0]


def check_count(names: Sequence[str], count: int, false_alarms: float) -> None:
    """Raise if `count` samples are too few to calibrate these scores at this rate."""
    conformal.check_rate(false_alarms)
    halves = min(2, len(names))
    if count < (least := halves * conformal.needed(false_alarms)):
        why = ", half of them to rank the scores" if halves > 1 else ""
        raise DataError(
            f"a false-alarm rate of {false_alarms:g} needs {least} calibration samples{why}; got {count}: give more, "
            "or allow more false alarms"
        )


def score_names(score: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of scores given as one, as several, or joined by + or commas.

    Raises:
        DissensusError: If one is unknown or given twice, or there is none.
    """
    given = score.replace("+", ",").split(",") if isinstance(score, str) else score
    names = tuple(name.strip() for name in given)
    scores.SCORES.check(*names)
    if len(set(names)) < len(names):
        raise DissensusError(f"scores to combine must differ; got {', '.join(names)}: name each once")
    if not names:
        raise DataError("a detector needs a score; got none: try pds")
    return names
