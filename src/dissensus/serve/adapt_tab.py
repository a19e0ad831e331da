"""The tab "Adapt", in Gradio: drop images of a new place, label those that the run asks for, download what results.

The choices of all images come with every event, and the state keeps what was read: a label is never lost to a race.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from dissensus._core.errors import DissensusError
from dissensus.adaptation import Adapted
from dissensus.serve import adapting
from dissensus.serve.adapting import Pool, Question
from dissensus.serve.cards import TEMPLATES, problem
from dissensus.serve.service import Service
from dissensus.serve.settings import HIDDEN, KEPT, MANY

INTRO = (
    "Drop unlabelled images of the place where the run will be used. The page asks for the labels of a few of them, on "
    "which the members disagree; from these it chooses which hypothesis holds there."
)
CHOICES = """element.addEventListener('change', () => {
    const chosen = [...element.querySelectorAll('select')].filter(one => one.value !== '')
    trigger('input', {labels: Object.fromEntries(chosen.map(one => [one.dataset.key, Number(one.value)]))})
})"""
DOWNLOAD = "() => { document.querySelector('#adapted-file')?.click() }"
GONE = "These images are no longer kept: drop them again."


@dataclass(frozen=True)
class Session:
    """What one visitor has uploaded, been asked and answered."""

    pool: Pool | None = None
    questions: tuple[Question, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)  # classes by key

    @property
    def labelled(self) -> tuple[Question, ...]:
        """Questions that are answered."""
        return tuple(question for question in self.questions if question.key in self.labels)


def create(service: Service, max_upload_mb: float) -> None:
    """Create the content of the tab; if the run cannot be adapted, one line that says why."""
    if reason := adapting.why_not(service):
        gr.HTML(str(Markup("<p class='quiet'>{}</p>").format(reason)), elem_id="adapt-not")
        return
    gr.HTML(str(Markup("<p class='quiet'>{}</p>").format(INTRO)), elem_id="adapt-intro")
    with gr.Row():
        files = gr.File(
            label=f"Drop images here (up to {MANY} files of {max_upload_mb:g} MB each)",
            file_count="multiple",
            file_types=["image"],
            height=150,
            scale=3,
            elem_id="pool",
        )
        count = gr.Slider(
            1, adapting.MOST, value=adapting.COUNT, step=1, label="Images to label", scale=2, elem_id="count"
        )
    asked = gr.HTML("", js_on_load=CHOICES, elem_id="asked")
    result = gr.HTML("", elem_id="adapted")
    button = gr.Button("Download the adapted run", variant="primary", visible=False, elem_id="download")
    archive = gr.DownloadButton(visible="hidden", elem_id="adapted-file")
    kept = gr.State(Session(), time_to_live=KEPT)
    outputs = [kept, asked, result, button]

    def choose(session: Session, wanted: float) -> tuple[Session, str, str, Any]:
        if session.pool is None:
            return session, "", "", gr.update(visible=False)
        try:
            questions = adapting.questions(service, session.pool, int(wanted), labelled=session.labelled)
        except DissensusError as error:
            return session, str(problem(str(error))), "", gr.update(visible=False)
        labels = {one.key: session.labels[one.key] for one in questions if one.key in session.labels}
        session = replace(session, questions=questions, labels=labels)  # without those of removed images
        return session, str(_asked(service, session)), *show(session)

    def upload(paths: list[str] | None, wanted: float, session: Session) -> tuple[Session, str, str, Any]:
        try:
            pool = adapting.read(service, [(Path(path).name, Path(path).read_bytes) for path in paths or ()])
        except DissensusError as error:
            return Session(), str(problem(str(error))), "", gr.update(visible=False)
        return choose(replace(session, pool=pool), wanted)

    def remove(paths: list[str] | None, wanted: float, session: Session) -> tuple[Session, str, str, Any]:
        return upload(paths, wanted, session) if paths else choose(Session(), wanted)

    def answer(session: Session, event: gr.EventData) -> tuple[Session, str, Any]:
        session = replace(session, labels=_labels(event))
        return session, *show(session)

    def show(session: Session) -> tuple[str, Any]:
        if session.pool is None:
            return str(problem(GONE)), gr.update(visible=False)
        if not session.labels:
            return "", gr.update(visible=False)
        try:
            return str(_adapted(adapting.adapted(service, session.pool, session.labels))), gr.update(visible=True)
        except DissensusError as error:
            return str(problem(str(error))), gr.update(visible=False)

    def download(session: Session) -> str:
        if session.pool is None:
            raise gr.Error(GONE, print_exception=False)
        try:
            adapted = adapting.adapted(service, session.pool, session.labels)
            folder = Path(tempfile.mkdtemp(dir=archive.GRADIO_CACHE))  # where Gradio deletes what it serves
            return str(adapting.archive(service, adapted, folder))
        except DissensusError as error:
            raise gr.Error(str(error), print_exception=False) from error

    # Gradio looks for the class itself; annotations are strings here.
    answer.__annotations__["event"] = gr.EventData
    files.upload(upload, [files, count, kept], outputs, api_visibility="private")
    files.delete(remove, [files, count, kept], outputs, api_visibility="private")
    files.clear(lambda: choose(Session(), 1), None, outputs, **HIDDEN)
    count.release(choose, [kept, count], outputs, **HIDDEN)
    # One after another, so that the last choice wins; "always_last" would drop what comes with the event.
    asked.input(answer, [kept], [kept, result, button], trigger_mode="multiple", concurrency_limit=1, **HIDDEN)
    button.click(download, [kept], archive, api_visibility="private").success(None, None, None, js=DOWNLOAD)


def _labels(event: gr.EventData) -> dict[str, int]:
    """Return the choices that came with an event; anything else a client may send is none."""
    labels = event._data.get("labels") if isinstance(event._data, dict) else None
    pairs = labels.items() if isinstance(labels, dict) else ()
    return {str(key): value for key, value in pairs if isinstance(value, int)}


def _asked(service: Service, session: Session) -> Markup:
    assert session.pool is not None
    images, problems = len(session.pool), session.pool.problems
    left_out = "; ".join(f"{name}: {why}" for name, why in problems[:3]) + ("; ..." if len(problems) > 3 else "")
    return Markup(
        TEMPLATES.get_template("questions.html").render(
            questions=session.questions,
            labels=session.labels,
            classes=service.detector.classes,
            images=images,
            left_out=f"{len(problems)} left out ({left_out})" if problems else "",
        )
    )


def _adapted(adapted: Adapted) -> Markup:
    form = "<div class='dv dv-adapted' role='status'><h2>{}</h2><p>{}</p>{}</div>"
    way = f"Choice: {adapted.way}"
    return Markup(form).format(way, adapted.reason, adapted.table.html())
