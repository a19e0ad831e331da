"""Thresholds: scores of held-out ID samples turned into a rule for one sample, and kept in a folder.

detector.json            which scores, the false-alarm rate, what it was calibrated for
detector.safetensors     the calibration scores
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dissensus._core.errors import DataError, DissensusError, RunError
from dissensus._core.files import read_json, replacing, write_json
from dissensus.functional import conformal, scores
from dissensus.functional.conformal import Calibrated

FORMAT = "dissensus-detector-1"


@dataclass(frozen=True)
class Threshold:
    """What calibration leaves: which scores, the false-alarm rate that is promised, the calibration scores.

    Where several scores are combined, `references` hold each one's values on half of the samples, ascending; the
    other half calibrates the combination.
    """

    scores: tuple[str, ...]
    false_alarms: float
    calibrated: Calibrated
    references: tuple[Tensor, ...] = ()

    @classmethod
    def calibrate(
        cls,
        names: Sequence[str],
        found: Mapping[str, Tensor],
        labels: Tensor | None,
        classes: Sequence[str],
        false_alarms: float,
    ) -> Threshold:
        """Of the scores (n,) of held-out samples by name; with predicted labels (n,), for each class by itself."""
        conformal.check_rate(false_alarms)
        values = [found[name].float() for name in names]
        references: tuple[Tensor, ...] = ()
        if len(names) > 1:
            # in any order the samples come, both halves are alike
            order = torch.randperm(len(values[0]), generator=torch.Generator().manual_seed(0))
            first, second = order[::2], order[1::2]
            references = tuple(v[first].sort().values for v in values)
            final = conformal.evidence(references, [v[second] for v in values])
            labels = None if labels is None else labels[second]
        else:
            final = values[0]
        made = cls(tuple(names), false_alarms, Calibrated.of(final, labels, len(classes)), references)
        made.calibrated.check(false_alarms, classes)
        return made

    def score(self, logits: Tensor) -> Tensor:
        """(M, B, C) -> (B,), higher = more OOD."""
        return combined(self.scores, self.references, logits)

    def limits(self, labels: Tensor) -> Tensor:
        """The score above which a sample of that predicted label is out: (B,) -> (B,)."""
        found = self.calibrated.thresholds(self.false_alarms)
        return found[labels] if self.calibrated.by_class else found.expand(len(labels))

    def at(self, false_alarms: float) -> Threshold:
        """The same calibration for another false-alarm rate."""
        self.calibrated.check(false_alarms)
        return replace(self, false_alarms=false_alarms)

    @property
    def name(self) -> str:
        """The scores it is about."""
        return "+".join(self.scores)

    @property
    def promise(self) -> str:
        """What may be expected of it, in a sentence."""
        low, high = self.calibrated.spread(self.false_alarms)
        n = min(map(len, self.calibrated.values))
        each = " of the rarest class" if self.calibrated.by_class else ""
        return (
            f"on average over calibrations like this one (n = {n:,}{each}), at most {self.false_alarms:.2%} of ID "
            f"samples are called out; a single calibration of this size gives {low:.2%} to {high:.2%} nine times in ten"
        )

    def save(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Write both files; `about` says what it was calibrated for, and is asked for again by `load`."""
        tensors = {f"calibration.{i}": values for i, values in enumerate(self.calibrated.values)}
        tensors |= {f"reference.{i}": values for i, values in enumerate(self.references)}
        (folder / "detector.json").unlink(missing_ok=True)  # written last: what is half replaced is not there
        with replacing(folder / "detector.safetensors") as path:
            save_file({name: value.contiguous() for name, value in tensors.items()}, path)
        plain = {"scores": list(self.scores), "false_alarms": self.false_alarms, "parts": len(self.calibrated.values)}
        write_json(folder / "detector.json", {"format": FORMAT, **plain, "about": dict(about)})

    @classmethod
    def load(cls, folder: Path, about: Mapping[str, Any]) -> Threshold | None:
        """What `save` wrote, or None where it wrote nothing; one of another ensemble or trunk is refused."""
        if not (folder / "detector.json").exists():
            return None
        found = read_json(folder / "detector.json")
        remedy = f"calibrate again: dissensus calibrate {folder} --id SAMPLES"
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise RunError(f"{folder / 'detector.json'} is not of a detector; {remedy}")
        try:
            if differing := [key for key, value in about.items() if found["about"].get(key) != value]:
                raise RunError(
                    f"a calibration holds for the {differing[0]} it was made with; {folder} has another now: {remedy}"
                )
            names = tuple(scores.SCORES[name].__name__ for name in found["scores"])
            tensors = load_file(folder / "detector.safetensors")
            values = tuple(tensors[f"calibration.{i}"].sort().values for i in range(found["parts"]))
            references = tuple(
                tensors[f"reference.{i}"].sort().values for i in range(len(names) if len(names) > 1 else 0)
            )
            made = cls(names, float(found["false_alarms"]), Calibrated(values), references)
            made.calibrated.check(made.false_alarms)
        except (OSError, SafetensorError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"the calibration in {folder} is damaged ({error}); {remedy}") from error
        return made


def combined(names: Sequence[str], references: Sequence[Tensor], logits: Tensor) -> Tensor:
    """One score as it is; several as the evidence of their p-values among `references`."""
    values = [scores.SCORES[name](logits).float().cpu() for name in names]
    return conformal.evidence(references, values) if len(names) > 1 else values[0]


def check_count(names: Sequence[str], count: int, false_alarms: float) -> None:
    """Refuse a rate that so few samples cannot promise, before any work is done on them."""
    conformal.check_rate(false_alarms)
    halves = min(2, len(names))
    if count < (least := halves * conformal.needed(false_alarms)):
        why = ", half of them to rank the scores by" if halves > 1 else ""
        raise DataError(
            f"a false-alarm rate of {false_alarms:g} needs {least} calibration samples{why}; got {count}: give more, "
            "or allow more false alarms"
        )


def names_of(score: str | Sequence[str]) -> tuple[str, ...]:
    """Names of scores, given as one, as several, or joined by + or commas."""
    given = score.replace("+", ",").split(",") if isinstance(score, str) else list(score)
    names = tuple(scores.SCORES[name.strip()].__name__ for name in given)
    if len(set(names)) < len(names):
        raise DissensusError(f"scores to combine must differ; got {', '.join(names)}: name each once")
    if not names:
        raise DataError("a detector needs a score; got none: try pds")
    return names
