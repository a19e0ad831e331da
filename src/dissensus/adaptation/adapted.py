"""Adapted: what `adapt` chose, why, and how sure it is. adaptation.json holds the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import PositiveInt

from dissensus._core.documents import Document, Part
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.models.ensemble import Ensemble

By = Literal["auto", "member", "prior", "head", "weights"]


def counted(labels: int) -> str:
    """A number of labels in words.

    >>> counted(1), counted(16)
    ('1 label', '16 labels')
    """
    return f"{labels} label{'' if labels == 1 else 's'}"


class Way(Part):
    """One way to use the labels, as measured on them."""

    name: str
    accuracy: float  # share of the labelled samples that are right
    chosen: bool


class Adaptation(Document):
    """adaptation.json."""

    remedy = "adapt the run again"

    format: Literal["dissensus-adaptation-2"] = "dissensus-adaptation-2"
    ensemble: str  # fingerprint of the members that were adapted
    run: str | None  # the folder that they came from
    labelled: str  # fingerprint of the labelled samples
    labels: PositiveInt  # how many
    per_class: dict[str, int]
    by: By  # as asked for
    way: str  # what was done
    member: int | None  # that it is based on
    cross_validated: bool  # whether accuracies are of samples that a way was not fitted to
    ways: tuple[Way, ...]
    reason: str
    doubt: str  # what the labels cannot tell; empty if nothing
    before: tuple[str, ...]  # earlier adaptations of the same run, in words

    @property
    def summary(self) -> str:
        """One line, for cards and reports."""
        return f"adapted by {self.way} with {counted(self.labels)}"


@dataclass(frozen=True, repr=False)
class Adapted:
    """The result of `adapt`.

    Attributes:
        ensemble: The adapted members.
        document: The choice, as adaptation.json has it.
    """

    ensemble: Ensemble
    document: Adaptation

    @property
    def way(self) -> str:
        """What was done with the labels."""
        return self.document.way

    @property
    def reason(self) -> str:
        """Why, and what the labels cannot tell."""
        return f"{self.document.reason} {self.document.doubt}".strip()

    @property
    def table(self) -> Table:
        """All ways, and how many of the labelled samples each gets right."""
        heading = "in cross-validation" if self.document.cross_validated else "on the labels themselves"
        rows = tuple(
            Row((("> " if way.chosen else "  ") + way.name,), (Value(way.accuracy),)) for way in self.document.ways
        )
        note = f"{counted(self.document.labels)}; > is the choice."
        return Table("", ("way",), (Column("accuracy %", heading, percent=True),), rows, note)

    def __repr__(self) -> str:
        return f"Adapted({self.document.summary}; {self.ensemble!r})\n{self.reason}"
