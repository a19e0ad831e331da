"""Tuned: what `tune` chose, why, and all candidates. tuning.json and tuning.csv hold the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from dissensus._core.documents import Document, Part
from dissensus.adaptation.candidates import DEEP, INCUMBENT, SINGLE, Candidate, eligible
from dissensus.adaptation.choose import Choice, Entry
from dissensus.adaptation.rank import kind_of, kinds_of
from dissensus.detection.detector import Detector
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.functional.expressions import DEFAULT_SCORE
from dissensus.models.ensemble import Ensemble
from dissensus.training.run import TUNING

WORK, TABLE, DOCUMENT = TUNING
SHOWN = 12  # candidates in the table, besides those to compare with


class Chosen(Part):
    """The ensemble and the score."""

    method: str
    diversity: float | None
    label_smoothing: float
    norm: str | None
    tail: str | None
    score: str

    @property
    def candidate(self) -> Candidate:
        """The ensemble."""
        return Candidate(**self.model_dump(exclude={"score"}))


class Line(Part):
    """One candidate: an ensemble with a score."""

    ensemble: str
    score: str
    share: float  # of a full training
    aurocs: dict[str, float]
    mean: float
    gain: float  # of mean AUROC over the default's
    error: float  # standard error of the gain
    accuracy: float
    seconds: float
    may_be_chosen: bool
    chosen: bool


class Tuning(Document):
    """tuning.json."""

    format: Literal["dissensus-tuning-2"] = "dissensus-tuning-2"
    plan: str  # digest of data, options and version
    choice: Chosen
    reason: str
    stand_ins: tuple[str, ...]
    budget: Annotated[float, Field(gt=0)] | None
    stopped: bool  # whether the budget ended the search
    seconds: float  # that the search took
    lines: tuple[Line, ...]

    def goes_on(self, budget: float | None) -> bool:
        """Whether the budget ended the search, and this one is larger."""
        return self.stopped and (budget is None or self.budget is None or budget > self.budget)


def lines_of(entries: Sequence[Entry], choice: Choice) -> list[Line]:
    """All candidates as plain values: full trainings first, each the best first."""
    by_share: dict[float, Entry] = {
        e.share: e for e in entries if (e.candidate, e.score) == (choice.default.candidate, choice.default.score)
    }
    lines = []
    for e in sorted(entries, key=lambda e: (-e.share, -e.ranked.mean)):
        base = by_share[e.share]
        lines.append(
            Line(
                ensemble=e.candidate.name,
                score=e.score,
                share=e.share,
                aurocs=e.ranked.aurocs,
                mean=e.ranked.mean,
                gain=e.ranked.mean - base.ranked.mean,
                error=e.ranked.error(base.ranked),
                accuracy=e.accuracy,
                seconds=e.seconds,
                may_be_chosen=eligible(e.score),
                chosen=e is choice.entry,
            )
        )
    return lines


def frame_of(document: Tuning) -> pd.DataFrame:
    """All candidates, one row each."""
    rows = [{**line.model_dump(exclude={"aurocs"}), **line.aurocs} for line in document.lines]
    columns = ["ensemble", "score", "share", *document.stand_ins, "mean", "gain", "error", "accuracy", "seconds"]
    return pd.DataFrame(rows, columns=[*columns, "may_be_chosen", "chosen"])


def table_of(document: Tuning) -> Table:
    """The best candidates, with the default, the deep ensemble and the single model to compare with."""
    full = [line for line in document.lines if line.share == max((each.share for each in document.lines), default=1)]
    named = {(c.name, score) for c in (INCUMBENT, DEEP, SINGLE) for score in (DEFAULT_SCORE, document.choice.score)}
    shown = [line for n, line in enumerate(full) if n < SHOWN or line.chosen or (line.ensemble, line.score) in named]
    kinds = list(dict.fromkeys(map(kind_of, document.stand_ins)))
    columns = [Column("AUROC on stand-ins", name) for name in [*kinds, "mean"]]
    columns += [Column("AUROC on stand-ins", "gain", ""), Column("accuracy %", "held-out", percent=True)]
    columns.append(Column("time", "s", "", digits=1))
    rows = []
    for line in shown:
        by_kind = kinds_of(line.aurocs)
        cells = [Value(by_kind[kind]) if kind in by_kind else None for kind in kinds]
        gain = Value(line.gain, line.error, 2)
        cells += [Value(line.mean), gain, Value(line.accuracy), Value(line.seconds)]
        rows.append(Row((("> " if line.chosen else "  ") + line.ensemble, line.score), tuple(cells)))
    note = (
        f"{len(document.lines):,} candidates in all; > is the choice; gain: of the mean over the default's, ± its "
        "standard error."
    )
    return Table("", ("ensemble", "score"), tuple(columns), tuple(rows), note)


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of `tune`.

    Attributes:
        detector: The chosen ensemble, trained and calibrated.
        document: The choice, its reason and all candidates, as tuning.json has them.
    """

    detector: Detector
    document: Tuning

    @property
    def ensemble(self) -> Ensemble:
        """The trained members."""
        return self.detector.ensemble

    @property
    def method(self) -> str:
        """The chosen method."""
        return self.document.choice.method

    @property
    def options(self) -> dict[str, Any]:
        """The other choices: diversity, label_smoothing, norm and tail; None is the default."""
        return self.document.choice.model_dump(exclude={"method", "score"})

    @property
    def score(self) -> str:
        """The score, or the combination of scores, that the detector uses."""
        return self.detector.score_name

    @property
    def reason(self) -> str:
        """Why this was chosen, and whether a simpler model is as good."""
        return self.document.reason

    @property
    def table(self) -> Table:
        """The best candidates; `frame` has all."""
        return table_of(self.document)

    @property
    def frame(self) -> pd.DataFrame:
        """All candidates: AUROC on every stand-in, gain over the default with its standard error, accuracy, time."""
        return frame_of(self.document)

    def __repr__(self) -> str:
        name, count = self.document.choice.candidate.name, len(self.document.lines)
        return f"Tuned({name}; score {self.score}; {count} candidates)\n{self.reason}"
