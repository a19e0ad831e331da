"""Tables of what was measured: a row a method, means over the sets of a family, mean ± deviation over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dissensus.evaluation.outcomes import Column, Row, Table, Value
from dissensus.functional import aggregates
from dissensus.report.sources import JudgedRun

KEYS = ["group", "run", "aggregate", "score", "metric", "family"]


class Measured:
    """Every number of several runs, by group of runs that differ only in their seed."""

    def __init__(self, runs: Sequence[JudgedRun]) -> None:
        self.groups = list(dict.fromkeys(found.group for found in runs))
        self.seeds = {group: sum(found.group == group for found in runs) for group in self.groups}
        self.methods = {found.group: str(found.run.settings["method"]) for found in runs}
        entries = [entry for found in runs for entry in found.judged.sets]
        entries.sort(key=lambda entry: entry["role"] != "id")
        self.roles: dict[str, str] = {}
        for entry in entries:
            self.roles.setdefault(entry["family"] or entry["name"], entry["role"])
        frames = [
            found.judged.frame.assign(
                run=found.name,
                group=found.group,
                value=pd.to_numeric(found.judged.frame["value"], errors="coerce"),
            )
            for found in runs
        ]
        means = pd.concat(frames).groupby(KEYS, sort=False)["value"].mean()
        by_seed: dict[tuple[str, ...], list[float]] = {}
        for (group, _, *rest), value in zip(means.index.tolist(), means.tolist(), strict=True):
            by_seed.setdefault((group, *rest), []).append(value)
        self._values = {key: Value.of(values) for key, values in by_seed.items()}

    def value(self, group: str, metric: str, family: str, *, aggregate: str = "", score: str = "") -> Value | None:
        """One number; None where it was not measured."""
        return self._values.get((group, aggregate, score, metric, family))

    def families(self, *roles: str) -> list[str]:
        """Those of these roles, in the suite's order."""
        return [family for family, role in self.roles.items() if role in roles]

    @property
    def inside(self) -> str:
        """The id set's column."""
        return self.families("id")[0]

    def accuracy(self) -> Table:
        """How right the ensembles are, alone and together, and how well calibrated."""
        labelled = self.families("id", "shift", "groups")
        wanted = [("accuracy %", family, "accuracy", "prediction") for family in labelled]
        wanted += [
            ("members alone %", self.inside, "accuracy", "members"),
            ("best member %", self.inside, "accuracy", "oracle"),
        ]
        wanted += [("worst group %", family, "worst_group", "prediction") for family in self.families("groups")]
        wanted += [("ECE", family, "ece", "prediction") for family in labelled]
        wanted += [("NLL", family, "nll", "prediction") for family in labelled]
        columns = [
            Column(group, family, "min" if metric in ("ece", "nll") else "max", percent=group.endswith("%"))
            for group, family, metric, _ in wanted
        ]
        rows = [
            Row((name,), tuple(self.value(name, metric, family, aggregate=a) for _, family, metric, a in wanted))
            for name in self.groups
        ]
        return _table("Accuracy and calibration", ("method",), columns, rows)

    def aggregates(self) -> Table:
        """Accuracy by the way in which members' answers are joined."""
        families = self.families("id", "shift", "groups")
        columns = [Column("accuracy %", family, percent=True) for family in families]
        rows = [
            Row((group, how), tuple(self.value(group, "accuracy", family, aggregate=how) for family in families))
            for group in self.groups
            for how in aggregates.AGGREGATES
        ]
        note = "prediction: mean logits; oracle: the best member, chosen with the labels of the test set in hand."
        return _table("Ways to join the members", ("method", "aggregate"), columns, rows, note)

    def detection(self, score: str) -> Table:
        """How well one score tells sets from the id set; the id accuracy stands beside it."""
        families = self.families("shift", "ood")
        columns = [
            Column("accuracy %", self.inside, percent=True),
            Column("members alone %", self.inside, percent=True),
            *(Column("AUROC", family) for family in families),
            *(Column("FPR95 %", family, "min", percent=True) for family in families),
        ]
        rows = []
        for name in self.groups:
            own = [self.value(name, "accuracy", self.inside, aggregate=how) for how in ("prediction", "members")]
            found = [self.value(name, m, family, score=score) for m in ("auroc", "fpr95") for family in families]
            rows.append(Row((name,), (*own, *found)))
        note = "FPR95: share of the set that passes as id where 95% of id samples pass; lower is better."
        return _table(f"OOD detection by {score}", ("method",), columns, rows, note)

    def scores(self, names: Sequence[str]) -> Table:
        """AUROC of every score."""
        families = self.families("shift", "ood")
        columns = [Column("AUROC", family) for family in families]
        rows = [
            Row((group, score), tuple(self.value(group, "auroc", family, score=score) for family in families))
            for group in self.groups
            for score in names
        ]
        return _table("All scores", ("method", "score"), columns, rows)

    def diversity(self) -> Table:
        """How many classes members name between them."""
        wanted = [(n, s, family) for n, s in (("#unique", "unique"), ("PDS", "pds")) for family in self.roles]
        columns = [Column(name, family, "") for name, _, family in wanted]
        rows = [
            Row((group,), tuple(self.value(group, "mean", family, score=score) for _, score, family in wanted))
            for group in self.groups
        ]
        note = "Neither high nor low is good by itself: low on id and high elsewhere is."
        return _table("Diversity: classes named for a sample", ("method",), columns, rows, note)


def _table(title: str, heads: tuple[str, ...], columns: list[Column], rows: list[Row], note: str = "") -> Table:
    """Without columns and rows that hold nothing."""
    there = [j for j in range(len(columns)) if any(row.cells[j] is not None for row in rows)]
    kept = [Row(row.names, tuple(row.cells[j] for j in there), row.source) for row in rows]
    filled = tuple(row for row in kept if any(cell is not None for cell in row.cells))
    return Table(title, heads, tuple(columns[j] for j in there), filled, note)
