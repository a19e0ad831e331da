"""What a person who decides wants first: accuracy kept? shift accuracy gained? OOD caught at 5% false alarms?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dissensus.evaluation.results import Results
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.functional.metrics import FALSE_ALARMS
from dissensus.report import numbers
from dissensus.report.pools import Facts

FAR = 0.05  # members so far below their ensemble deserve a warning


@dataclass(frozen=True)
class Answer:
    """To one question: a verdict in a word, its mark (good, bad, even, none) and a sentence."""

    question: str
    verdict: str
    mark: str
    text: str


@dataclass(frozen=True)
class Card:
    """One method's answers."""

    name: str
    answers: tuple[Answer, ...]


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
        found = [f.above[score, family] for f in self.by_row[row] if (score, family) in f.above]
        return Value.of(found)

    def table(self, score: str) -> Table:
        """Everything in one row per method."""
        m, own = self.results, self.results.inside
        shifts, outside = m.families("shift", "groups"), m.families("ood")
        columns = [Column("accuracy %", family, percent=True) for family in (own, *shifts)]
        columns += [Column("members %", own, percent=True)]
        columns += [Column("OOD caught %", family, percent=True) for family in outside]
        columns += [Column("shift flagged %", family, "", percent=True) for family in m.families("shift")]
        flagged = [*outside, *m.families("shift")]
        columns += [Column("false alarms %", own, "", percent=True)] if flagged else []
        rows = []
        for row in m.rows:
            cells = [self._accuracy(row, family) for family in (own, *shifts)]
            cells += [m.accuracy(row, own, "members")]
            cells += [self.caught(row, score, family) for family in (*flagged, own) if flagged]
            rows.append(Row((row,), tuple(cells)))
        note = (
            f"A score of few values, such as #unique, may raise fewer false alarms than the {FALSE_ALARMS:.0%} allowed."
            if flagged
            else ""
        )
        return Table(f"At a glance, by {score}", ("method",), tuple(columns), tuple(rows), note)

    def cards(self, score: str) -> list[Card]:
        """The answers for every row."""
        return [
            Card(row, tuple(filter(None, (self._kept(row), self._gained(row), self._catches(row, score)))))
            for row in self.results.rows
        ]

    def lead(self, score: str) -> list[str]:
        """The main point in a sentence or two."""
        m, outside = self.results, self.results.families("ood")
        there = {row: share for row in m.rows if (share := self._mean_caught(row, score)) is not None}
        sentences = []
        if there:
            kept = [row for row in there if self._kept(row).mark != "bad"] or list(there)
            best = max(kept, key=lambda row: there[row])
            each = ", ".join(f"{_percent(self.caught(best, score, family))} of {family}" for family in outside)
            among = "" if len(kept) == len(there) else "Of the methods that keep their accuracy, "
            most = " the most OOD samples:" if len(there) > 1 else ""
            sentences.append(f"{among}{best} catches{most} {each}, by {score} at {FALSE_ALARMS:.0%} false alarms.")
        shifted = {row: share for row in m.rows if (share := self._mean_shifted(row)) is not None}
        if len(shifted) > 1:
            best = max(shifted, key=lambda row: shifted[row])
            shown = [f"{_percent(self._accuracy(best, f))} on {f}" for f in m.families("shift", "groups")]
            sentences.append(f"{best} is the most accurate on shifted sets: {', '.join(shown)}.")
        accuracies = {_percent(v): v.mean for row in m.rows if (v := self._accuracy(row, m.inside)) is not None}
        if len(accuracies) > 1:
            low, *_, high = sorted(accuracies, key=lambda text: accuracies[text])
            sentences.append(f"Accuracy on {m.inside} lies between {low} and {high}.")
        return sentences

    def brackets(self) -> str:
        """What the numbers in brackets are."""
        if self.baseline is None:
            return "In brackets: percentage points above or below the members alone."
        return f"In brackets: percentage points above or below {self.baseline}, unless another is named."

    def caveats(self, score: str) -> list[str]:
        """What to keep in mind."""
        m = self.results
        caveats = []
        if m.families("shift", "ood"):
            caveats.append(
                f"The threshold is the {1 - FALSE_ALARMS:.0%} quantile of a score on {m.inside}, the test set itself; "
                "the shares caught are slightly optimistic: in use it is set on samples of your own."
            )
        far = []
        for row in m.rows:
            whole, alone = (m.accuracy(row, m.inside, how) for how in ("prediction", "members"))
            if whole is not None and alone is not None and alone.mean < whole.mean - FAR:
                far.append(f"{row} ({_percent(alone)} alone, {_percent(whole)} together)")
        if far:
            caveats.append(
                f"Members far below their ensemble: {'; '.join(far)}. Members near chance make a good detector."
            )
        if fixed := [row for row in m.rows if self._constant(row, score)]:
            caveats.append(f"{score} is the same for every sample of {', '.join(fixed)}: it needs several members.")
        if max(m.seeds.values()) == 1:
            caveats.append("One seed per method: how much results vary from seed to seed is not shown.")
        caveats.append(
            "Beyond chance: more than two standard errors of the share on so many samples; other differences may be "
            "luck. Sets of a family are pooled, and corruptions of the same images count as one set of images."
        )
        return caveats

    def _accuracy(self, row: str, family: str) -> Value | None:
        return self.results.accuracy(row, family)

    def _constant(self, row: str, score: str) -> bool:
        return all(score in f.constant for f in self.by_row[row])

    def _against(self, row: str) -> str | None:
        return self.baseline if row != self.baseline else (self.single if row != self.single else None)

    def _luck(self, row: str, family: str, share: float) -> float:
        return numbers.chance(share, max(f.counts.get(family, 0) for f in self.by_row[row]))

    def _kept(self, row: str) -> Answer:
        own, other = self.results.inside, self._against(row)
        mine = self._accuracy(row, own)
        alone = self.results.accuracy(row, own, "members")
        base = alone if other is None else self._accuracy(other, own)
        if mine is None or base is None:
            return Answer("Accuracy kept?", "unknown", "none", f"It was not measured on {own}.")
        gap, luck = mine.mean - base.mean, self._luck(row, own, base.mean)
        mark = "bad" if gap < -luck else "good"
        verdict = "no" if mark == "bad" else "yes, higher" if gap > luck else "yes"
        text = f"{_percent(mine)} on {own} ({_points(gap, luck)})"
        return Answer("Accuracy kept?", verdict, mark, self._sentence([text], other or "its members alone"))

    def _gained(self, row: str) -> Answer | None:
        other, parts, marks = self._against(row), [], set()
        for family in self.results.families("shift", "groups"):
            mine = self._accuracy(row, family)
            if mine is None:
                continue
            part, found = self._part(row, family, mine, None if other is None else self._accuracy(other, family))
            worst = self.results.value(row, family, "worst_group", aggregate="prediction")
            parts.append(part + (f", worst row {_percent(worst)}" if worst is not None else ""))
            marks |= found
        if not parts:
            return None
        verdict, mark = _overall(marks, "yes", "no, lower", "no, the same")
        return Answer("Shift accuracy gained?", verdict, mark, self._sentence(parts, other if marks else None))

    def _catches(self, row: str, score: str) -> Answer | None:
        outside, other = self.results.families("ood"), self._against(row)
        mean = self._mean_caught(row, score)
        if not outside:
            return None
        if mean is None:
            return Answer("OOD caught?", "cannot tell", "none", f"{score} is the same for every sample here.")
        parts, marks = [], set()
        for family in outside:
            mine = self.caught(row, score, family)
            if mine is not None:
                base = None if other is None else self.caught(other, score, family)
                part, found = self._part(row, family, mine, base)
                parts.append(part)
                marks |= found
        verdict, mark = _overall(marks, "more", "fewer", "as many")
        verdict = f"{mean:.0%}, {verdict}" if marks else f"{mean:.0%}"
        return Answer("OOD caught?", verdict, mark, self._sentence(parts, other if marks else None))

    def _mean_shifted(self, row: str) -> float | None:
        found = [self._accuracy(row, family) for family in self.results.families("shift", "groups")]
        return float(np.mean([value.mean for value in found if value is not None])) if any(found) else None

    def _sentence(self, parts: Sequence[str], other: str | None) -> str:
        """A sentence; it names the row that gaps are to where that is not the baseline."""
        return ", ".join(parts) + ("." if other in (None, self.baseline) else f"; against {other}.")

    def _part(self, row: str, family: str, mine: Value, base: Value | None) -> tuple[str, set[str]]:
        """One family's share, with its gap to the baseline, and what to think of that."""
        if base is None:
            return f"{family} {_percent(mine)}", set()
        gap, luck = mine.mean - base.mean, self._luck(row, family, base.mean)
        mark = "even" if abs(gap) <= luck else "good" if gap > 0 else "bad"
        return f"{family} {_percent(mine)} ({_points(gap, luck)})", {mark}

    def _mean_caught(self, row: str, score: str) -> float | None:
        """Over the ood families; None where the score cannot tell anything apart."""
        found = [self.caught(row, score, family) for family in self.results.families("ood")]
        return float(np.mean([value.mean for value in found if value is not None])) if any(found) else None


def _overall(marks: set[str], good: str, bad: str, even: str) -> tuple[str, str]:
    if {"good", "bad"} <= marks:
        return "mixed", "even"
    if "good" in marks:
        return good, "good"
    if "bad" in marks:
        return bad, "bad"
    return (even, "even") if marks else ("nothing to compare with", "none")


def _percent(value: Value | None) -> str:
    return "-" if value is None else Column("", "", percent=True).text(value) + "%"


def _points(gap: float, luck: float) -> str:
    text = f"{100 * gap:+.1f}".replace("-", "\u2212")
    text = "±0.0" if text[1:] == "0.0" else text
    return text if abs(gap) <= luck else f"{text}, beyond chance"
