"""What a person who decides wants first: accuracy kept? shift accuracy gained? OOD caught at 5% false alarms?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.evaluation.results import BASELINES, Measure, Results
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.functional.metrics import FALSE_ALARMS
from dissensus.report import numbers
from dissensus.report.runs import Facts

EACH = 3  # families that a sentence names one by one
FAR = 0.05  # members so far below their ensemble deserve a warning
Valued = Callable[[str, str], Value | None]  # row, family -> value


@dataclass(frozen=True)
class Answer:
    """To one question: a verdict in a word, its mark (good, bad, even, none) and a sentence."""

    question: str
    verdict: str
    mark: str
    text: str


class Summary:
    """Answers for every row of the results, from its values and the facts of each of its runs."""

    def __init__(self, results: Results, by_row: Mapping[str, Sequence[Facts]]) -> None:
        self.results, self.by_row = results, by_row
        firsts = {results.methods[row]: row for row in reversed(results.rows)}
        self.baseline = firsts.get("deep-ensemble") or firsts.get("single")
        self.single = firsts.get("single")

    def caught(self, row: str, score: str, family: str) -> Value | None:
        """The share of a family above the threshold; None where the score is the same for all samples."""
        if self._constant(row, score):
            return None
        return Value.of(f.above[score, family] for f in self.by_row[row] if (score, family) in f.above)

    def table(self, score: str) -> Table:
        """Everything in one row per method, what is caught first."""
        results, inside = self.results, self.results.inside
        measures = [Measure("accuracy", family, "prediction") for family in results.families("id", "shift", "groups")]
        accuracy = results.table("", [*measures, Measure("accuracy", inside, "members", heading="members")])
        outside, shifted = results.families("ood"), results.families("shift")
        columns = [Column("OOD caught %", family, percent=True) for family in outside]
        columns += [Column("shift flagged %", family, "", percent=True) for family in shifted]
        columns += [Column("false alarms %", inside, "", percent=True)] if columns else []
        rows = [
            Row(row.names, (*(self.caught(row.names[0], score, column.name) for column in columns), *row.cells))
            for row in accuracy.rows
        ]
        rows += self._baselines(accuracy.columns, columns)
        note = (
            f"A score of few values, such as #unique, may raise fewer false alarms than the {FALSE_ALARMS:.0%} allowed."
        )
        title, columns = f"At a glance, by {score}", [*columns, *accuracy.columns]
        return Table(title, ("method",), tuple(columns), tuple(rows), note if outside or shifted else "")

    def _baselines(self, accuracy: Sequence[Column], columns: Sequence[Column]) -> list[Row]:
        """What a single model would do with common scores, from the row of single models."""
        results, single = self.results, self.results.single
        alone = tuple(results.accuracy(single, column.name, "members") for column in accuracy)
        return [
            Row((name,), (*(self.caught(single, score, column.name) for column in columns), *alone))
            for score, name in BASELINES.items()
            if columns and any(score == known for f in self.by_row[single] for known, _ in f.above)
        ]

    def cards(self, score: str) -> dict[str, list[Answer]]:
        """The answers for every row."""
        return {
            row: [answer for answer in (self._kept(row), self._gained(row), self._catches(row, score)) if answer]
            for row in self.results.rows
        }

    def keeps(self, row: str) -> bool:
        """Whether a row is as accurate as the one it is compared with, up to chance."""
        return self._kept(row).mark != "bad"

    def means(self, value: Valued, families: Sequence[str]) -> dict[str, float]:
        """The mean over families of every row that has a value."""
        means = {}
        for row in self.results.rows:
            if values := [v.mean for family in families if (v := value(row, family)) is not None]:
                means[row] = float(np.mean(values))
        return means

    def warnings(self) -> list[str]:
        """What is wrong with a run, whatever its numbers: training that ended too soon, probabilities far off."""
        notes = [
            note if note.startswith(row) else f"{row}: {note}"
            for row, facts in self.by_row.items()
            for note in dict.fromkeys(_notes(facts))
        ]
        return [*notes, *self.results.miscalibrated()]

    def brackets(self) -> str:
        """What the numbers in brackets are."""
        if self.baseline is None:
            return "In brackets: percentage points above or below the members alone."
        return f"In brackets: percentage points above or below {self.baseline}, unless another is named."

    def caveats(self, score: str) -> list[str]:
        """What to keep in mind."""
        results, inside, caveats = self.results, self.results.inside, []
        if results.families("shift", "ood"):
            caveats.append(
                f"The threshold is the {1 - FALSE_ALARMS:.0%} quantile of the score on {inside}, the test set itself: "
                "the shares caught are slightly optimistic. In use the threshold is set on your samples."
            )
        far = []
        for row in results.rows:
            whole, alone = results.accuracy(row, inside), results.accuracy(row, inside, "members")
            if whole is not None and alone is not None and alone.mean < whole.mean - FAR:
                far.append(f"{row} ({percent(alone)} alone, {percent(whole)} together)")
        if far:
            caveats.append(
                f"Members far below their ensemble: {'; '.join(far)}. Members near chance can still detect well."
            )
        if constant := [row for row in results.rows if self._constant(row, score)]:
            caveats.append(f"{score} is the same for every sample of {', '.join(constant)}: it needs several members.")
        if max(results.seeds.values()) == 1:
            caveats.append("One seed per method: how much results vary from seed to seed is not shown.")
        caveats.append(
            "Beyond chance: more than two standard errors of the share on so many samples; other differences may be "
            "luck. Sets of a family are pooled, and corruptions of the same images count as one set of images."
        )
        return caveats

    def _constant(self, row: str, score: str) -> bool:
        return all(score in f.constant for f in self.by_row[row])

    def _against(self, row: str) -> str | None:
        return self.baseline if row != self.baseline else (self.single if row != self.single else None)

    def luck(self, row: str, family: str, share: float) -> float:
        """How far a share on a family may be off by chance."""
        return numbers.chance(share, max(f.counts.get(family, 0) for f in self.by_row[row]))

    def _kept(self, row: str) -> Answer:
        results, inside, other = self.results, self.results.inside, self._against(row)
        mine = results.accuracy(row, inside)
        base = results.accuracy(row, inside, "members") if other is None else results.accuracy(other, inside)
        if mine is None or base is None:
            return Answer("Accuracy kept?", "unknown", "none", f"It was not measured on {inside}.")
        gap, luck = mine.mean - base.mean, self.luck(row, inside, base.mean)
        mark = "bad" if gap < -luck else "good"
        verdict = "no" if mark == "bad" else "yes, higher" if gap > luck else "yes"
        text = f"{percent(mine)} on {inside} ({_points(gap, luck)})"
        return Answer("Accuracy kept?", verdict, mark, self._sentence([text], other or "its members alone"))

    def _gained(self, row: str) -> Answer | None:
        parts, marks = self._compare(row, self.results.families("shift", "groups"), self.results.accuracy)
        if not parts:
            return None
        for family, part in parts.items():
            worst = self.results.value(row, family, "worst_group", aggregate="prediction")
            parts[family] = part + ("" if worst is None else f", worst group {percent(worst)}")
        parts = self._few(parts, row, self.results.accuracy)
        verdict, mark = _overall(marks, "yes", "no, lower", "no, the same")
        other = self._against(row) if marks else None
        return Answer("Shift accuracy gained?", verdict, mark, self._sentence(parts.values(), other))

    def _catches(self, row: str, score: str) -> Answer | None:
        def caught(row: str, family: str) -> Value | None:
            return self.caught(row, score, family)

        outside = self.results.families("ood")
        if not outside:
            return None
        mean = self.means(caught, outside).get(row)
        if mean is None:
            return Answer("OOD caught?", "cannot tell", "none", f"{score} is the same for every sample here.")
        parts, marks = self._compare(row, outside, caught)
        parts = self._few(parts, row, caught)
        verdict, mark = _overall(marks, "more", "fewer", "as many")
        other = self._against(row) if marks else None
        text = self._sentence(parts.values(), other)
        return Answer("OOD caught?", f"{mean:.0%}, {verdict}" if marks else f"{mean:.0%}", mark, text)

    def _compare(self, row: str, families: Sequence[str], value: Valued) -> tuple[dict[str, str], set[str]]:
        """A row's value on every family with its gap to the row it is compared with; the marks of these gaps."""
        other, parts, marks = self._against(row), dict[str, str](), set[str]()
        for family in families:
            mine, base = value(row, family), None if other is None else value(other, family)
            if mine is not None:
                parts[family] = f"{family} {percent(mine)}"
            if mine is not None and base is not None:
                gap, luck = mine.mean - base.mean, self.luck(row, family, base.mean)
                parts[family] += f" ({_points(gap, luck)})"
                marks.add("even" if abs(gap) <= luck else "good" if gap > 0 else "bad")
        return parts, marks

    def _few(self, parts: dict[str, str], row: str, value: Valued) -> dict[str, str]:
        """The parts of a sentence; of many families that of the lowest value alone."""
        if len(parts) <= EACH:
            return parts
        low = min(parts, key=lambda family: -1.0 if (known := value(row, family)) is None else known.mean)
        return {low: f"least {parts[low]}, {len(parts) - 1} others in the table"}

    def _sentence(self, parts: Iterable[str], other: str | None) -> str:
        """A sentence; it names the row that gaps are to where that is not the baseline."""
        return ", ".join(parts) + ("." if other in (None, self.baseline) else f"; against {other}.")


def _notes(facts: Iterable[Facts]) -> Iterable[str]:
    return (note for each in facts for note in each.notes)


def _overall(marks: set[str], good: str, bad: str, even: str) -> tuple[str, str]:
    if {"good", "bad"} <= marks:
        return "mixed", "even"
    if "good" in marks:
        return good, "good"
    if "bad" in marks:
        return bad, "bad"
    return (even, "even") if marks else ("nothing to compare with", "none")


def percent(value: Value | None) -> str:
    """A share as text: 91.3%."""
    return "-" if value is None else Column("", "", percent=True).text(value) + "%"


def _points(gap: float, luck: float) -> str:
    text = f"{100 * gap:+.1f}".replace("-", "\u2212")
    text = "±0.0" if text[1:] == "0.0" else text
    return text if abs(gap) <= luck else f"{text}, beyond chance"
