"""Threshold: scores of held-out ID samples as a decision rule for one sample, kept in a folder.

detector.json             the scores, the false-alarm rate, what it was calibrated for, the name of the other file
detector-*.safetensors    the calibration scores
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dissensus._core import documents, tensors
from dissensus._core.documents import Document, Part, Sha256
from dissensus._core.errors import DataError, RunError, UnknownNameError
from dissensus.functional import conformal, expressions, scores
from dissensus.functional.conformal import Calibrated

DOCUMENT, TENSORS = "detector.json", "detector-*.safetensors"


class Identity(Part):
    """What a calibration depends on: fingerprints of the members' weights, of the backbone, and of fitted scores."""

    ensemble: str
    backbone: str | None
    scores: dict[str, str]  # name -> digest

    def using(self, names: Sequence[str]) -> Identity:
        """The same with the fitted scores among `names` only."""
        return self.model_copy(update={"scores": {name: self.scores[name] for name in names if name in self.scores}})


class DetectorDocument(Document):
    """detector.json."""

    format: Literal["dissensus-detector-4"] = "dissensus-detector-4"
    tensors: Annotated[str, Field(pattern=r"^detector-[0-9a-f]{16}\.safetensors$")]  # the file with the scores
    scores: Annotated[tuple[str, ...], Field(min_length=1)]
    weights: tuple[Annotated[float, Field(gt=0)], ...]  # of the scores
    false_alarms: Annotated[float, Field(gt=0, lt=1)]
    parts: Annotated[int, Field(ge=1, le=2**31)]  # 1, or one for each class
    calibrated_for: Identity
    values: Sha256  # of the tensors

    @model_validator(mode="after")
    def _check_weights(self) -> DetectorDocument:
        if len(self.weights) != len(self.scores):
            raise ValueError(f"weights: every one of {len(self.scores)} scores needs one")
        return self


class HeldOut(NamedTuple):
    """What the members said of the calibration samples, for `Monitor` and `batch_test` to compare others with."""

    labels: Tensor  # (n,) int64, predicted
    disagreement: Tensor  # (n,) float32, the share of pairs of members whose votes differ


@dataclass(frozen=True, repr=False)
class Threshold:
    """A calibrated decision rule: a sample is out of distribution if its score exceeds a limit.

    Attributes:
        scores: Names of the scores; several are combined by `conformal.evidence`.
        weights: The weight of each score in the combination.
        false_alarms: The share of ID samples that may be called out.
        calibrated: The calibration scores, for all samples or for each predicted class.
        references: Where several scores are combined, the values of each on half of the samples, ascending. The other
            half calibrates the combination.
        held_out: Predictions on the calibration samples; None if it was calibrated on scores alone.
    """

    scores: tuple[str, ...]
    weights: tuple[float, ...]
    false_alarms: float
    calibrated: Calibrated
    references: tuple[Tensor, ...] = ()
    held_out: HeldOut | None = None

    @classmethod
    def calibrate(
        cls,
        values: Mapping[str, Tensor],
        false_alarms: float,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        *,
        weights: Sequence[float] | None = None,
    ) -> Threshold:
        """Calibrate on the scores of held-out ID samples.

        Args:
            values: Scores (n,) by name; several are combined.
            false_alarms: The share of ID samples that may be called out.
            labels: Predicted labels (n,), for one limit per class.
            classes: Names of the classes, for one limit per class.
            weights: The weight of each score in the combination; None: 1.

        Raises:
            DissensusError: If the rate is not in (0, 1), or needs more samples.
        """
        weights = (1.0,) * len(values) if weights is None else tuple(weights)
        each = [value.float() for value in values.values()]
        references: tuple[Tensor, ...] = ()
        final = each[0]
        if len(each) > 1:
            # Shuffled, so that both halves are alike whatever the order of the samples.
            order = torch.randperm(len(final), generator=torch.Generator().manual_seed(0))
            first, second = order[::2], order[1::2]
            references = tuple(v[first].sort().values for v in each)
            final = conformal.evidence(references, [v[second] for v in each], weights)
            labels = None if labels is None else labels[second]
        calibrated = Calibrated.of(final, labels, len(classes))
        threshold = cls(tuple(values), tuple(weights), false_alarms, calibrated, references)
        threshold.calibrated.check(false_alarms, classes)
        return threshold

    def __repr__(self) -> str:
        limits = self.calibrated.thresholds(self.false_alarms)
        rule = f"out if {self.name} > {float(limits[0]):.4g}"
        if self.calibrated.by_class:
            low, high = float(limits.min()), float(limits.max())
            rule = f"out if {self.name} > {low:.4g} to {high:.4g} by predicted class"
        return f"Threshold({rule}; {100 * self.false_alarms:.3g}% false alarms, n = {self.calibrated.count:,})"

    def score(self, values: Sequence[Tensor]) -> Tensor:
        """Return the score of each sample from the values of `scores`: (B,) each -> (B,) float32, higher = more OOD."""
        return expressions.combine(values, self.references, self.weights)

    def parts(self, values: Sequence[Tensor]) -> Tensor | None:
        """Return the p-value of each of several scores among its references: S of (B,) -> (S, B) float64.

        They show which of the scores find a sample unusual. None for a single score, whose p-value is the sample's.
        """
        pairs = zip(self.references, values, strict=False)
        p_values = [Calibrated((reference,)).p_values(value) for reference, value in pairs]
        return torch.stack(p_values) if p_values else None

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
        """The scores as an expression, such as 2*mahalanobis+pds."""
        return expressions.expression(self.scores, self.weights)

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
        """Write a calibration into a folder, in place of a former one; `load` compares `identity`.

        The tensors are written under a new name, which depends on their values, and detector.json is replaced by one
        that names them. So a kill leaves either the former calibration or this one.
        """
        values = {f"calibration.{i}": part for i, part in enumerate(self.calibrated.values)}
        values |= {f"reference.{i}": reference for i, reference in enumerate(self.references)}
        values |= {
            f"held-out.{name}": value for name, value in (self.held_out._asdict() if self.held_out else {}).items()
        }
        name = TENSORS.replace("*", tensors.digest_of(values)[:16])
        digest = tensors.write(folder / name, values)
        document = DetectorDocument(
            tensors=name,
            scores=self.scores,
            weights=self.weights,
            false_alarms=self.false_alarms,
            parts=len(self.calibrated.values),
            calibrated_for=identity.using(self.scores),
            values=digest,
        )
        documents.write(folder / DOCUMENT, document)
        for former in folder.glob(TENSORS):
            if former.name != name:
                former.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, identity: Identity, *, remedy: str | None = None) -> Threshold | None:
        """Read what `save` wrote.

        Args:
            folder: The folder.
            identity: The ensemble, backbone and fitted scores that it will be used with.
            remedy: What the user can do if it cannot be used; by default, to calibrate again.

        Returns:
            The threshold, or None if the folder has none.

        Raises:
            RunError: If it is damaged, or was calibrated for another ensemble, backbone or fitted score.
        """
        if not (folder / DOCUMENT).exists():
            return None
        remedy = remedy or f"calibrate again: dissensus calibrate {folder} --id SAMPLES"
        document = documents.read(DetectorDocument, folder / DOCUMENT, remedy=remedy)
        try:
            scores.SCORES.check(*document.scores)
        except UnknownNameError as error:
            raise RunError(f"{folder / DOCUMENT} names an {error}; register it first, or {remedy}") from error
        if kind := _difference(document.calibrated_for, identity, document.scores):
            raise RunError(f"a calibration holds for the {kind} it was made with; {folder} has another now: {remedy}")
        path = folder / document.tensors
        if not path.is_file() and documents.read(DetectorDocument, folder / DOCUMENT, remedy=remedy) != document:
            return cls.load(folder, identity, remedy=remedy)  # calibrated again in between
        values = tensors.read(path, remedy=remedy, digest=document.values)
        count = len(document.scores)
        threshold = cls(
            document.scores,
            document.weights,
            document.false_alarms,
            Calibrated(_ascending(path, values, "calibration", document.parts, remedy)),
            _ascending(path, values, "reference", count if count > 1 else 0, remedy),
            _held_out(path, values, remedy),
        )
        try:
            threshold.calibrated.check(document.false_alarms)
        except DataError as error:
            raise RunError(f"{folder / DOCUMENT} and {path.name} do not fit ({error}); {remedy}") from error
        return threshold


def _difference(made_for: Identity, now: Identity, names: Sequence[str]) -> str | None:
    """What has changed since a calibration of these scores was made."""
    for kind in ("ensemble", "backbone"):
        if getattr(made_for, kind) != getattr(now, kind):
            return kind
    before, after = made_for.scores, now.scores
    fitted = [name for name in names if scores.is_fitted(name)]
    changed = [name for name in fitted if name not in before or before[name] != after.get(name)]
    return f"fitted score {changed[0]}" if changed else None


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


def _held_out(path: Path, values: Mapping[str, Tensor], remedy: str) -> HeldOut | None:
    """Return the predictions on the calibration samples, if they were kept; raise if they are damaged."""
    there = [values.get(f"held-out.{name}") for name in HeldOut._fields]
    if all(value is None for value in there):
        return None
    labels, disagreement = there
    if (
        labels is None
        or disagreement is None
        or (labels.dtype, disagreement.dtype) != (torch.int64, torch.float32)
        or not 0 < labels.numel() == len(labels) == disagreement.numel() == len(disagreement)
        or bool((labels < 0).any())
        or not bool(((disagreement >= 0) & (disagreement <= 1)).all())
    ):
        raise RunError(f"{path} is damaged (predictions on the calibration samples): {remedy}")
    return HeldOut(labels, disagreement)
