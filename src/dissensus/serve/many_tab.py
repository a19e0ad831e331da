"""The tab "Many images", in Gradio: pictures with coloured verdicts, the most unusual first, and a table as CSV."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import gradio as gr
import pandas as pd
from gradio.events import Dependency
from markupsafe import Markup

from dissensus._core.cells import to_cells
from dissensus.detection.verdicts import NOTHING_UNUSUAL, OUT, Verdict
from dissensus.serve.cards import HEADLINES, TEMPLATES, problem
from dissensus.serve.service import Inspection, Service
from dissensus.serve.settings import HIDDEN, KEPT, MANY

PIXELS = 128  # longer side of a picture
KINDS = {OUT: "out", NOTHING_UNUSUAL: "in", "": "none"}


class Shown(NamedTuple):
    """One file on the page."""

    verdict: Verdict
    picture: str
    kind: str
    icon: str
    agreeing: int


def create(service: Service, slider: gr.Slider, max_upload_mb: float) -> Dependency:
    """Fill the tab, and return the event of an upload."""
    files = gr.File(
        label=f"Drop images here (up to {MANY} files of {max_upload_mb:g} MB each)",
        file_count="multiple",
        file_types=["image"],
        height=150,
        elem_id="many",
    )
    answer = gr.HTML("", elem_id="summary")
    kept = gr.State((), time_to_live=KEPT)

    def show(inspections: Sequence[Inspection], percent: float) -> str:
        if not inspections:
            return ""
        rate = None if service.detector.threshold is None else round(percent / 100, 6)
        return _summary(service.table(inspections, rate)) + str(_list(service, inspections, rate))

    def inspect(paths: list[str] | None, percent: float) -> tuple[Sequence[Inspection], str]:
        uploads = paths or []
        if len(uploads) > MANY:
            text = f"at most {MANY} files at once, got {len(uploads):,}: for more use dissensus predict"
            return (), str(problem(text, "Too many files"))
        reads = [(Path(path).name, Path(path).read_bytes) for path in uploads]
        inspections = tuple(service.inspect_all(reads, picture=PIXELS))
        return inspections, show(inspections, percent)

    uploaded = files.upload(inspect, [files, slider], [kept, answer], api_visibility="private")
    files.delete(inspect, [files, slider], [kept, answer], api_visibility="private")
    files.clear(lambda: ((), ""), None, [kept, answer], **HIDDEN)
    slider.input(show, [kept, slider], answer, trigger_mode="always_last", **HIDDEN)
    return uploaded


def _list(service: Service, inspections: Sequence[Inspection], rate: float | None) -> Markup:
    """The files, most unusual first; those that cannot be read come before."""
    shown = []
    for inspection in inspections:
        verdict = service.verdict(inspection, rate)[0]
        kind = "error" if verdict.error is not None else KINDS[verdict.verdict]
        icon = "✗" if kind == "error" else HEADLINES[verdict.verdict][0]
        agreeing = sum(vote == verdict.class_name for vote in verdict.votes)
        shown.append(Shown(verdict, inspection.picture, kind, icon, agreeing))
    shown.sort(key=lambda one: -float("inf") if one.verdict.score is None else one.verdict.score, reverse=True)
    if rate is not None:
        shown.sort(key=lambda one: (one.verdict.out is False, _p_value(one.verdict)))
    shown.sort(key=lambda one: one.kind != "error")
    return Markup(TEMPLATES.get_template("many.html").render(shown=shown, score=service.detector.score_name))


def _p_value(verdict: Verdict) -> float:
    return 0.0 if verdict.p_value is None else verdict.p_value


def _summary(rows: pd.DataFrame) -> str:
    """Return the counts, and the whole table as CSV inside a link, so that no file is stored."""
    errors = int(rows["error"].notna().sum())
    parts = [f"{len(rows):,} {'image' if len(rows) == 1 else 'images'}"]
    out, other = (int((rows["verdict"] == verdict).sum()) for verdict in (OUT, NOTHING_UNUSUAL))
    found = f"{out:,} out of distribution, nothing unusual found in {other:,}"
    parts += [found] * bool(rows["verdict"].notna().any())
    parts += [f"{errors:,} could not be read"] * bool(errors)
    content = base64.b64encode(to_cells(rows).to_csv(index=False).encode()).decode()
    link = f"<a download='verdicts.csv' href='data:text/csv;base64,{content}'>Download as CSV</a>"
    return f"<p role='status'>{', '.join(parts)}</p><p>{link}</p>"
