"""Results: the values of several runs, and the tables made of them.

>>> results = Results(evaluate(ensemble, suite.sets))         # doctest: +SKIP
>>> print(results.summary())                                  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from dissensus._core.cells import from_cells, to_cells
from dissensus._core.errors import DissensusError, RunError
from dissensus._core.files import make_folder, replacing
from dissensus.evaluation import confidence
from dissensus.evaluation._evaluate import ABOUT, COLUMNS, COMBINED, FULL_SPECTRUM
from dissensus.evaluation.naming import name_runs
from dissensus.evaluation.tables import Column, Row, Table, Value
from dissensus.functional import metrics

SUFFIXES = (".csv", ".json", ".md", ".tex")
LABELLED = ("id", "shift", "groups")
DETECTED = ("shift", "ood", FULL_SPECTRUM)
HEADLINES = (
    COMBINED,
    "gaussian",
    "mahalanobis",
    "pds",
)  # summaries show the first that was measured
BASELINES = {"single_max_prob": "single + max softmax", "knn": "single + knn"}  # what users have without an ensemble
DIVERSITY = {"unique": "#unique", "pds": "PDS"}  # scores whose mean says how diverse members are


@dataclass(frozen=True)
class Measure:
    """Which value a column shows: a metric on a family of sets, by an aggregate or by a score."""

    metric: str
    family: str
    aggregate: str = ""
    score: str = ""
    heading: str = ""  # "": the metric's own

    @property
    def column(self) -> Column:
        """The column, as the metric's entry in METRICS describes it."""
        metric = metrics.describe(self.metric)
        heading = self.heading or metric.heading
        return Column(
            f"{heading} %" if metric.percent else heading,
            self.family,
            metric.better,
            metric.percent,
            warn_above=metric.warn_above,
        )


class Results:
    """Values of several runs: means over the sets of a family, mean and deviation over seeds.

    Args:
        frame: one or several frames of `evaluate`, concatenated. A column `row` gives the name of the table row that
            each run belongs to; without it, runs that differ only in their seed share a row.
        settings: of each run by its name in the frame, as `Run.settings`; where they are known, remedies name only
            options that the run has.

    Attributes:
        rows: names of the rows, in order.
        seeds: row -> number of runs.
        methods: row -> method.
        roles: family -> role, the id family first.
    """

    def __init__(self, frame: pd.DataFrame, settings: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        if "row" not in frame:
            runs = frame[list(ABOUT)].drop_duplicates()
            named = name_runs(runs.drop(columns="run").to_dict("records"), runs["run"].tolist())  # type: ignore[arg-type]
            frame = frame.merge(runs.assign(row=[row for row, _ in named]), on=list(ABOUT))
        self.frame = frame
        self.rows: list[str] = list(dict.fromkeys(frame["row"]))
        by_row = frame.groupby("row")
        self.seeds = {row: len(group[["run", "seed"]].drop_duplicates()) for row, group in by_row}
        self.methods = {row: str(group["method"].iloc[0]) for row, group in by_row}
        self._settings = {
            row: [
                {"diversity": diversity, **(settings or {}).get(run, {})}
                for run, diversity in group[["run", "diversity"]].drop_duplicates().itertuples(index=False)
            ]
            for row, group in by_row
        }
        roles = dict(zip(frame["family"], frame["role"], strict=True))
        self.roles: dict[str, str] = dict(sorted(roles.items(), key=lambda item: item[1] != "id"))
        keys = ["row", "family", "metric", "aggregate", "score"]
        means = frame.groupby([*keys, "run", "seed"], sort=False)["value"].mean()
        self._values = {key: Value.of(values) for key, values in means.groupby(keys, sort=False)}

    def families(self, *roles: str) -> list[str]:
        """The families of these roles, in the suite's order."""
        return [family for family, role in self.roles.items() if role in roles]

    @property
    def inside(self) -> str:
        """The id family."""
        return self.families("id")[0]

    def value(self, row: str, family: str, metric: str, *, aggregate: str = "", score: str = "") -> Value | None:
        """One value; None where it was not measured."""
        return self._values.get((row, family, metric, aggregate, score))

    @property
    def _detected(self) -> list[str]:
        """Families to detect, those of other classes first, then these beside shifted ID samples."""
        return [*self.families("ood"), *self.families(FULL_SPECTRUM), *self.families("shift")]

    @property
    def headline(self) -> str:
        """The score that summaries show: what detectors use by default, if it was measured."""
        measured = set(self.frame["score"])
        return next((name for name in HEADLINES if name in measured), HEADLINES[-1])

    @property
    def single(self) -> str:
        """The row that single models are read from: that of method single, else the first."""
        return next((row for row in self.rows if self.methods[row] == "single"), self.rows[0])

    def accuracy(self, row: str, family: str, aggregate: str = "prediction") -> Value | None:
        """Accuracy of an aggregate."""
        return self.value(row, family, "accuracy", aggregate=aggregate)

    def auroc(self, row: str, family: str, score: str = "pds") -> Value | None:
        """How well a score separates the family from the id set."""
        return self.value(row, family, "auroc", score=score)

    def diversity(self, row: str, family: str, score: str = "pds") -> Value | None:
        """The mean of PDS, or of #unique, over the samples."""
        return self.value(row, family, "mean", score=score)

    def table(
        self,
        title: str,
        measures: Sequence[Measure],
        *,
        heads: Sequence[str] = ("method",),
        rows: Iterable[tuple[Sequence[str], str]] | None = None,
        note: str = "",
        baselines: bool = False,
    ) -> Table:
        """A table of these measures.

        Args:
            title: of the table.
            measures: one per column.
            heads: headings of the rows' names.
            rows: (names, row) for each row of the table; by default every row under its own name.
            note: a line below.
            baselines: add rows for a single model with the scores in `BASELINES`.
        """
        cells = [
            Row(tuple(names), tuple(self._cell(row, measure) for measure in measures))
            for names, row in ([((row,), row) for row in self.rows] if rows is None else rows)
        ]
        if baselines:
            cells += [
                Row((name, *[""] * (len(heads) - 1)), tuple(self._single_cell(score, m) for m in measures))
                for score, name in BASELINES.items()
                if score in set(self.frame["score"]) and any(m.score and m.metric != "mean" for m in measures)
            ]
        return Table(title, tuple(heads), tuple(measure.column for measure in measures), tuple(cells), note)

    def _single_cell(self, score: str, m: Measure) -> Value | None:
        """What a measure of an ensemble is for a single model that detects by `score`; None if it has no meaning."""
        if not m.score:
            return self.value(self.single, m.family, m.metric, aggregate="members" if m.aggregate else "")
        return None if m.metric == "mean" else self.value(self.single, m.family, m.metric, score=score)

    def _cell(self, row: str, m: Measure) -> Value | None:
        return self.value(row, m.family, m.metric, aggregate=m.aggregate, score=m.score)

    def _metrics(self, kind: str) -> list[str]:
        """Names of the metrics of a kind that were measured."""
        column = "aggregate" if kind == "answers" else "score"
        names = list(dict.fromkeys(self.frame.loc[self.frame[column] != "", "metric"]))
        return [name for name in names if name not in metrics.METRICS or metrics.METRICS[name].kind == kind]

    def _id_accuracy(self, aggregate: str = "prediction") -> list[Measure]:
        """Of ensemble and members: beside every AUROC, since members near chance can make a good detector."""
        return [
            Measure("accuracy", self.inside, aggregate),
            Measure("accuracy", self.inside, "members", heading="members"),
        ]

    def _diversity(self) -> list[Measure]:
        return [Measure("mean", f, score=score, heading=h) for score, h in DIVERSITY.items() for f in self.roles]

    def summary(self, *, score: str | None = None, aggregate: str = "prediction", title: str = "") -> Table:
        """The headline metrics of every row by one aggregate and one score, by default `headline`, and diversity."""
        score = score or self.headline
        measures = self._id_accuracy(aggregate)
        headlines = [name for name in self._metrics("answers") if metrics.describe(name).headline]
        answers = [Measure(name, family, aggregate) for name in headlines for family in self.families(*LABELLED)]
        measures += [measure for measure in answers if measure not in measures]
        for name in self._metrics("detection"):
            if (metric := metrics.describe(name)).headline:
                heading = f"{metric.heading} {score}"
                measures += [Measure(name, f, score=score, heading=heading) for f in self.families(*DETECTED)]
        note = " ".join([*self.miscalibrated(), *self._about_spectrum()])
        return self.table(title, [*measures, *self._diversity()], note=note, baselines=True).without_blanks()

    def miscalibrated(self) -> list[str]:
        """A sentence for rows whose confidence on the id set is far above accuracy, and one for those below."""
        above: dict[str, tuple[float, float]] = {}
        below: dict[str, tuple[float, float]] = {}
        for row in self.rows:
            ece, mean, accuracy = (
                self.value(row, self.inside, metric, aggregate="prediction")
                for metric in ("ece", "mean_confidence", "accuracy")
            )
            if ece is None or mean is None or accuracy is None or ece.mean <= metrics.MISCALIBRATED:
                continue
            gap = mean.mean - accuracy.mean
            (above if gap > 0 else below)[row] = ece.mean, abs(100 * gap)
        sentences = []
        for found, side, remedy in ((above, "above", confidence.too_high), (below, "below", confidence.too_low)):
            if found:
                settings = [run for row in found for run in self._settings[row]]
                errors, gaps = zip(*found.values(), strict=True)
                sentences.append(
                    f"Badly calibrated on {self.inside}: {', '.join(found)} (ECE {_range(errors, 2)}). Confidence is "
                    f"on average {_range(gaps, 0)} points {side} accuracy{remedy(settings)}."
                )
        return sentences

    def _about_spectrum(self) -> list[str]:
        """What columns of the full spectrum show, if there are any."""
        return ["FS, full spectrum: ID samples include shifted ones."] if self.families(FULL_SPECTRUM) else []

    def quality(self) -> Table:
        """Every metric of answers: how good the ensembles are, alone and together, and how well calibrated."""
        labelled = self.families(*LABELLED)
        measures = [Measure("accuracy", family, "prediction") for family in labelled]
        measures += [Measure("accuracy", self.inside, "members", heading="members")]
        measures += [Measure("accuracy", self.inside, "oracle", heading="best member")]
        others = [name for name in self._metrics("answers") if name != "accuracy"]
        measures += [Measure(name, family, "prediction") for name in others for family in labelled]
        table = self.table("Accuracy and calibration", measures).without_blanks()
        cells = [(column, cell) for row in table.rows for column, cell in zip(table.columns, row.cells, strict=True)]
        if not any(column.warns(cell) for column, cell in cells):
            return table
        note = (
            f"⚠ marks an ECE above {metrics.MISCALIBRATED}: confidence and accuracy differ by more than "
            f"{metrics.MISCALIBRATED:.0%} on average."
        )
        return replace(table, note=note)

    def by_aggregate(self) -> Table:
        """Accuracy of every aggregate."""
        names = [name for name in dict.fromkeys(self.frame["aggregate"]) if name]
        note = "prediction: mean logits; oracle: the best member, chosen with the labels of the test set."
        measures = {name: [Measure("accuracy", f, name) for f in self.families(*LABELLED)] for name in names}
        return self._crossed("Ways to join the members", "aggregate", measures, note)

    def detection(self, score: str) -> Table:
        """Every detection metric of one score, beside the id accuracy."""
        names = self._metrics("detection")
        measures = [Measure(name, family, score=score) for name in names for family in self._detected]
        described = [metrics.describe(name) for name in names]
        note = " ".join([*(f"{metric.heading}: {metric.summary}" for metric in described), *self._about_spectrum()])
        shown = [*measures, *self._id_accuracy()]
        return self.table(f"OOD detection by {score}", shown, note=note, baselines=True).without_blanks()

    def by_score(self, names: Sequence[str]) -> Table:
        """AUROC of every score."""
        measures = {name: [Measure("auroc", f, score=name) for f in self._detected] for name in names}
        return self._crossed("All scores", "score", measures)

    def _crossed(self, title: str, head: str, measures: Mapping[str, Sequence[Measure]], note: str = "") -> Table:
        """One table row for every row and name; `measures` by name."""
        rows = tuple(
            Row((row, name), tuple(self._cell(row, measure) for measure in of_name))
            for row in self.rows
            for name, of_name in measures.items()
        )
        columns = tuple(measure.column for measure in next(iter(measures.values()), ()))
        return Table(title, ("method", head), columns, rows, note).without_blanks()

    def by_diversity(self) -> Table:
        """How many classes the members predict for a sample."""
        note = "Neither high nor low is good by itself: low on id and high elsewhere is."
        return self.table("Diversity: classes predicted per sample", self._diversity(), note=note).without_blanks()

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary().html()


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame of `evaluate` atomically, in the format that the suffix names: .csv, .json, .md or .tex."""
    if path.suffix not in SUFFIXES:
        raise DissensusError(f"results are written as {', '.join(SUFFIXES)}; got {path.suffix!r}: choose one of those")
    frame = frame[list(COLUMNS)]
    text = {
        ".csv": lambda: to_cells(frame).to_csv(index=False),
        ".json": lambda: frame.to_json(orient="records", indent=1) + "\n",
        ".md": lambda: frame.to_markdown(index=False, floatfmt=".4g") + "\n",
        ".tex": lambda: frame.style.format(precision=4, escape="latex").hide(axis="index").to_latex(hrules=True),
    }[path.suffix]()
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read(path: Path) -> pd.DataFrame:
    """A frame of `evaluate` from the CSV that `write` wrote."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            frame = from_cells(pd.read_csv(file, keep_default_na=False, dtype={"run": str, "method": str}))
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read results from {path}: {error}; evaluate the run again") from error
    if list(frame.columns) != list(COLUMNS):
        raise RunError(f"{path} is not a table of results: its columns must be {', '.join(COLUMNS)}")
    return frame.assign(value=pd.to_numeric(frame["value"], errors="coerce"))


def _range(values: Sequence[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"
