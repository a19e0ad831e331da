"""The page: evaluated runs and studies of one suite, with tables, charts and examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus._core.files import make_folder, replacing
from dissensus.detection.false_alarms import FalseAlarms
from dissensus.evaluation.outcomes import Curve, Outcome
from dissensus.evaluation.results import BASELINES, DETECTED, HEADLINES, Results
from dissensus.evaluation.tables import Table
from dissensus.functional import metrics, scores
from dissensus.report import charts, dots, gallery, lead, reproduce, runs, summary, watching
from dissensus.report.charts import Chart, Line
from dissensus.report.sources import Sources
from dissensus.training import loggers

PIECES = 1200  # charts of scores on a page, at most; beyond that only some scores can be chosen


@dataclass(frozen=True)
class Section:
    """One suite's results: its name, a line about it, and the frame of `evaluate`."""

    title: str
    summary: str
    frame: pd.DataFrame


def write_page(
    sources: Sources, path: Path, *, score: str | None = None, others: Mapping[str, str] | None = None
) -> None:
    """Write the page of these runs and studies.

    Args:
        sources: What to show.
        path: The file to write.
        score: The score shown first; None: that of summaries.
        others: Pages of other suites to link to: name -> address.
    """
    score = score or _headline(sources)
    album = gallery.Album()
    context: dict[str, Any] = {
        "suite": sources.suite,
        "title": sources.title,
        "score": score,
        "left_out": sources.left_out,
        "false_alarms": metrics.FALSE_ALARMS,
        "others": others or {},
        "runs": [],
        "studies": [_study(outcome, album) for outcome in sources.outcomes],
        "galleries": {},
        **_of_runs(sources, score, album),
    }
    context["pictures"] = list(album)
    _render("page.html", context, path)
    for entry in sources.runs:
        loggers.add(entry.run.folder, {}, [path])


def _render(template: str, context: Mapping[str, Any], path: Path) -> None:
    """Write a template, with the pages' style and script, as one file."""
    environment = Environment(
        loader=PackageLoader("dissensus.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    templates = files("dissensus.report") / "templates"
    style, script = (Markup((templates / f"page.{kind}").read_text(encoding="utf-8")) for kind in ("css", "js"))
    html = environment.get_template(template).render(context, style=style, script=script, version=__version__)
    make_folder(path.parent)
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")


def _of_runs(sources: Sources, score: str, album: gallery.Album) -> dict[str, Any]:
    if not sources.runs:
        return {"about": "", "scores": [], "all_scores": [], "summaries": {}, "tables": [], "detections": {}}
    frames = [entry.evaluation.frame.assign(row=entry.row, run=entry.name) for entry in sources.runs]
    settings = {entry.name: entry.run.settings for entry in sources.runs}
    results = Results(pd.concat(frames, ignore_index=True), settings)
    views, by_row = list[dict[str, Any]](), dict[str, list[runs.Facts]]()
    kept, chosen = list[str](), list[str]()
    for entry in sources.runs:
        families = runs.pool(entry.evaluation)
        there = list(runs.inside(families).scores)
        if score not in there:
            raise DissensusError(
                f"score {score} was not kept when {entry.run.folder} was evaluated; it has {', '.join(there)}: "
                "choose one of those, or evaluate it again"
            )
        if not views:
            kept = [name for name in scores.SCORES if name in there] + [n for n in there if n not in scores.SCORES]
            leading = dict.fromkeys([score, *(name for name in BASELINES if name in kept)])
            kept = [*leading, *(name for name in kept if name not in leading)]
            chosen = kept[: max(1, PIECES // (len(sources.runs) * len(families)))]
        view = runs.view(entry.name, entry.run, families, [name for name in chosen if name in there])
        view |= {"configuration": reproduce.configuration(entry), "commands": reproduce.commands(entry)}
        view |= {"watched": watching.of_run(entry.run.folder)}
        views.append(view | {"false_alarms": FalseAlarms.of_run(entry.run.folder)})
        by_row.setdefault(entry.row, []).append(runs.facts(families, entry.run.info.notes))
    summaries = summary.Summary(results, by_row)
    detected = [name for name in chosen if results.families(*DETECTED)]
    tables = [results.quality(), results.by_aggregate(), results.by_diversity()]
    if detected:
        tables.append(results.by_score(kept))
    return {
        "first": _first(sources),
        "about": sources.runs[0].evaluation.about.summary,
        "scores": chosen,
        "all_scores": kept,
        "summaries": {
            name: {
                "warnings": summaries.warnings(),
                "lead": lead.sentences(summaries, name),
                "brackets": summaries.brackets(),
                "cards": summaries.cards(name),
                "table": summaries.table(name),
                "caveats": summaries.caveats(name),
            }
            for name in chosen
        },
        "detections": {name: results.detection(name) for name in detected},
        "tables": tables,
        "runs": views,
        "galleries": gallery.of_runs(sources.runs, album),
    }


def _headline(sources: Sources) -> str:
    """The first of `HEADLINES` that every run was evaluated by."""
    kept = [set(entry.evaluation.frame["score"]) for entry in sources.runs]
    return next((name for name in HEADLINES if all(name in there for there in kept)), HEADLINES[-1])


def _first(sources: Sources) -> int:
    """The run shown first: one of SED, else one of several members."""
    settings = [entry.run.settings for entry in sources.runs]
    sed = [i for i, run in enumerate(settings) if str(run["method"]).startswith("sed-")]
    several = [i for i, run in enumerate(settings) if run["members"] > 1]
    return [*sed, *several, 0][0]


def _study(outcome: Outcome, album: gallery.Album) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "curves": [_curve(curve) for curve in outcome.curves if curve.x and curve.lines],
        "tables": [(table, dots.of_table(table)) for table in map(_detection_first, outcome.tables)],
        "examples": {heading: album.tiles(group) for heading, group in outcome.examples.items()},
    }


def _detection_first(table: Table) -> Table:
    """The table with its columns of detection in front, where a narrow screen shows them."""
    headings = tuple(f"{metric.heading} " for metric in metrics.METRICS.values() if metric.kind == "detection")
    order = sorted(range(len(table.columns)), key=lambda j: not f"{table.columns[j].group} ".startswith(headings))
    rows = tuple(replace(row, cells=tuple(row.cells[j] for j in order)) for row in table.rows)
    return replace(table, columns=tuple(table.columns[j] for j in order), rows=rows)


def _curve(curve: Curve) -> Chart:
    drawn: Sequence[Line] = [
        Line(
            name, curve.x, [None if v is None else v.mean for v in values], [v.deviation if v else 0.0 for v in values]
        )
        for name, values in curve.lines.items()
    ]
    return charts.lines(curve.title, curve.x_name, curve.y_name, drawn)
