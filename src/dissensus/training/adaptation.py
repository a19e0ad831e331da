"""RUN/adaptation.json: what `adapt` did to a run, and why."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from dissensus._core import documents
from dissensus._core.documents import Document, Part
from dissensus.training.run import ADAPTATION, Run

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
    member: int | None  # that it is based on, counted from 0; texts count from 1
    cross_validated: bool  # whether accuracies are of samples that a way was not fitted to
    ways: tuple[Way, ...]
    reason: str
    doubt: str  # what the labels cannot tell; empty if nothing
    before: tuple[str, ...]  # earlier adaptations of the same run, in words

    @property
    def summary(self) -> str:
        """One line, for cards and reports."""
        return f"adapted by {self.way} with {counted(self.labels)}"


def read(run: Run) -> Adaptation | None:
    """Read what `adapt` did to a run; None if it is not an adapted one.

    Raises:
        RunError: If adaptation.json is damaged.
    """
    return documents.read(Adaptation, run.folder / ADAPTATION) if run.adapted else None
