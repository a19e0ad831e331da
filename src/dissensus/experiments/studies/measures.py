"""Measures: values out of the frame of trials, by set or family of sets, a mean and deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from dissensus.evaluation.outcomes import Column, Row, Table, Value
from dissensus.evaluation.suite import Suite


@dataclass(frozen=True)
class Measures:
    """The frame that a lab gives, with the suite that it is of."""

    frame: pd.DataFrame
    suite: Suite

    def families(self, *roles: str) -> list[str]:
        """The columns that sets of these roles are shown under, in the suite's order."""
        return list(dict.fromkeys(s.family or s.name for s in self.suite.sets if s.role in roles))

    def value(self, trial: str, family: str, metric: str, *, aggregate: str = "", score: str = "") -> Value | None:
        """The mean over the family's sets of one metric, seed by seed."""
        sets = [s.name for s in self.suite.sets if (s.family or s.name) == family]
        f = self.frame
        rows = f[
            (f["trial"] == trial)
            & f["dataset"].isin(sets)
            & (f["metric"] == metric)
            & (f["aggregate"] == aggregate)
            & (f["score"] == score)
        ]
        return Value.of(rows.groupby("seed")["value"].mean())

    def accuracy(self, trial: str, family: str, aggregate: str = "prediction") -> Value | None:
        """Share of right answers by an aggregate."""
        return self.value(trial, family, "accuracy", aggregate=aggregate)

    def auroc(self, trial: str, family: str, score: str = "pds") -> Value | None:
        """How well a score tells the family from the id set."""
        return self.value(trial, family, "auroc", score=score)

    def diversity(self, trial: str, family: str, score: str = "pds") -> Value | None:
        """The mean of PDS, or of #unique, over the samples."""
        return self.value(trial, family, "mean", score=score)

    def best(self, trials: Sequence[str], roles: Iterable[str], score: str = "pds") -> str:
        """The trial with the highest mean AUROC over the families of these roles: chosen with OOD data in hand."""
        families = self.families(*roles)

        def quality(trial: str) -> float:
            found = [v.mean for family in families if (v := self.auroc(trial, family, score)) is not None]
            return sum(found) / len(found) if found else float("-inf")

        return max(trials, key=quality)

    def overview(
        self, title: str, heads: Sequence[str], rows: Sequence[tuple[Sequence[str], str]], note: str = ""
    ) -> Table:
        """The layout of the paper's appendix: ensemble accuracy on id and shifts, AUROC of PDS on shifts and ood.

        `rows` are (names, trial).
        """
        judged, told = self.families("id", "shift", "groups"), self.families("shift", "ood")
        columns = [Column("accuracy %", name, percent=True) for name in judged]
        columns += [Column("members %", name, percent=True) for name in self.families("id")]
        columns += [Column("AUROC pds", name) for name in told]
        made = [
            Row(
                tuple(names),
                (
                    *(self.accuracy(trial, name) for name in judged),
                    *(self.accuracy(trial, name, "members") for name in self.families("id")),
                    *(self.auroc(trial, name) for name in told),
                ),
            )
            for names, trial in rows
        ]
        return Table(title, tuple(heads), tuple(columns), tuple(made), note)
