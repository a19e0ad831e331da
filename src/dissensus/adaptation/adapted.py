"""Adapted: what `adapt` chose, why, and how sure it is. adaptation.json holds the same."""

from __future__ import annotations

from dataclasses import dataclass

from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.models.ensemble import Ensemble
from dissensus.training.adaptation import Adaptation as Adaptation
from dissensus.training.adaptation import counted


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
