"""The page, in Gradio: one image with its verdict, many images as a table, adapting, and how to use the API.

Uploads are read as files, not through Gradio's image component, which decodes and stores them again: page, API and
command line see the same bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd
from gradio.events import Dependency
from markupsafe import Markup

from dissensus._core.cells import to_cells
from dissensus.detection.verdicts import NOTHING_UNUSUAL, OUT
from dissensus.serve import adapt_tab
from dissensus.serve.cards import EMPTY, card, problem, watched
from dissensus.serve.examples import Example
from dissensus.serve.service import Inspection, Service
from dissensus.serve.settings import HIDDEN, KEPT, MANY

SESSIONS = 500  # sessions whose inspections are kept
CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
FORMATS = "JPEG, PNG, WebP, TIFF, GIF, BMP"
# fonts of the system: nothing is downloaded
FONTS: dict[str, Any] = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}


def create(service: Service, examples: Sequence[Example], max_upload_mb: float) -> gr.Blocks:
    """Create the page, to be mounted."""
    with gr.Blocks(analytics_enabled=False, title=f"Dissensus: {service.name}", delete_cache=(60, KEPT)) as blocks:
        gr.HTML(_header(service), elem_id="head")
        stream = gr.HTML(elem_id="watched")

        def look() -> str:
            return watched(service.monitor)

        blocks.load(look, outputs=stream, **HIDDEN)  # for every visitor
        slider = _slider(service)
        with gr.Tab("One image"):
            one = _one(service, examples, slider, max_upload_mb)
        with gr.Tab("Many images"):
            many = _many(service, slider, max_upload_mb)
        with gr.Tab("Adapt"):
            adapt_tab.create(service, max_upload_mb)
        with gr.Tab("API"):
            gr.Markdown(_api_help(max_upload_mb))
        for uploaded in (one, many):
            uploaded.then(look, outputs=stream, **HIDDEN)
    blocks.state_session_capacity = SESSIONS
    blocks.queue(max_size=64, default_concurrency_limit=2)
    return blocks


def mount(app: Any, blocks: gr.Blocks, max_upload_mb: float) -> None:
    """Mount the page at the root of a FastAPI application."""
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        pwa=False,
        max_file_size=int(max_upload_mb * 1e6),
        theme=gr.themes.Base(primary_hue="blue", neutral_hue="slate", **FONTS),
        css=CSS,
    )
    _only_uploads(blocks)


def _only_uploads(blocks: gr.Blocks) -> None:
    """Let requests refer to uploaded files only.

    Until `launch` is called, which never happens to a mounted page, Gradio lets a request name any file of this
    machine; and it downloads URLs.
    """
    blocks.has_launched = True
    for block in blocks.blocks.values():
        move = block.async_move_resource_to_block_cache

        async def local(path: Any, move: Any = move) -> Any:
            if "://" in str(path):
                raise gr.Error("a file must be uploaded; got a URL: download it first", print_exception=False)
            return await move(path)

        vars(block)["async_move_resource_to_block_cache"] = local


def _header(service: Service) -> str:
    detector = service.detector
    about = f"{len(detector.ensemble)} members, {len(detector.classes):,} classes, score {detector.score_name}"
    if detector.threshold is None:
        form = (
            "<p class='warn'>This run is <b>not calibrated</b>: there are classes and scores, but no verdicts. "
            "Calibrate it and restart the server: <code>{}</code></p>"
        )
        note = Markup(form).format(f"dissensus calibrate {service.name} --id SAMPLES")
    else:
        promise = detector.threshold.promise
        note = Markup("<p>{}.</p>").format(promise[:1].upper() + promise[1:])
    form = "<h1>Is this image like the training data?</h1><p><b>{}</b>: {}.</p>{}"
    return str(Markup(form).format(service.name, about, note))


def _slider(service: Service) -> gr.Slider:
    rule, rates = service.detector.threshold, service.rates
    if rule is None or rates is None:
        return gr.Slider(0, 1, value=0, visible=False)
    return gr.Slider(
        *rates,
        value=100 * rule.false_alarms,
        step=0.1,
        label="Allowed false alarms (%)",
        info=f"{rule.calibrated.count:,} held-out images support {rates[0]:g}% or more.",
        elem_id="rate",
    )


def _rate(service: Service, percent: float) -> float | None:
    """Return the slider's value as a share; None if the run is not calibrated."""
    return None if service.detector.threshold is None else round(percent / 100, 6)


def _one(service: Service, examples: Sequence[Example], slider: gr.Slider, max_upload_mb: float) -> Dependency:
    """Fill the tab, and return the event of an upload."""
    with gr.Row():
        with gr.Column(scale=2, min_width=300, elem_id="left"):
            file = gr.File(
                label=f"Drop an image here ({FORMATS}; up to {max_upload_mb:g} MB)",
                file_types=["image"],
                height=150,
                elem_id="one",
            )
            gr.HTML("Or try one of these:", visible=bool(examples), elem_id="try")
            gallery = gr.Gallery(
                [(example.picture, example.caption) for example in examples],
                show_label=False,
                columns=4,
                height="auto",
                allow_preview=False,
                object_fit="contain",
                format="png",
                buttons=[],
                interactive=False,
                visible=bool(examples),
                elem_id="examples",
            )
        with gr.Column(scale=3, min_width=300):
            answer = gr.HTML(EMPTY, elem_id="answer")
    kept = gr.State(None, time_to_live=KEPT)

    def show(inspection: Inspection | None, percent: float) -> str:
        return str(EMPTY if inspection is None else card(service, inspection, _rate(service, percent)))

    def inspect(path: str | None, percent: float) -> tuple[Inspection | None, str]:
        if path is None:
            return None, show(None, percent)
        inspection = service.inspect(Path(path).name, Path(path).read_bytes(), details=True)
        return inspection, show(inspection, percent)

    def pick(percent: float, event: gr.SelectData) -> tuple[Inspection, str]:
        example = examples[event.index]
        inspection = service.inspect(example.name, example.data, details=True, observed=False)
        return inspection, show(inspection, percent)

    # Gradio looks for the class itself; annotations are strings here.
    pick.__annotations__["event"] = gr.SelectData
    uploaded = file.upload(inspect, [file, slider], [kept, answer], **HIDDEN)
    file.clear(lambda: (None, str(EMPTY)), None, [kept, answer], **HIDDEN)
    gallery.select(pick, [slider], [kept, answer], **HIDDEN)
    slider.input(show, [kept, slider], answer, trigger_mode="always_last", **HIDDEN)
    return uploaded


def _many(service: Service, slider: gr.Slider, max_upload_mb: float) -> Dependency:
    """Fill the tab, and return the event of an upload."""
    files = gr.File(
        label=f"Drop images here (up to {MANY} files of {max_upload_mb:g} MB each)",
        file_count="multiple",
        file_types=["image"],
        height=150,
        elem_id="many",
    )
    summary = gr.HTML("", elem_id="summary")
    frame = gr.Dataframe(visible=False, interactive=False, elem_id="table", buttons=["fullscreen"])
    kept = gr.State((), time_to_live=KEPT)

    def show(inspections: Sequence[Inspection], percent: float) -> tuple[str, Any]:
        if not inspections:
            return "", gr.update(visible=False)
        rows = service.table(inspections, _rate(service, percent))
        return _summary(rows), gr.update(value=_readable(rows), visible=True)

    def inspect(paths: list[str] | None, percent: float) -> tuple[Sequence[Inspection], str, Any]:
        uploads = paths or []
        if len(uploads) > MANY:
            text = f"at most {MANY} files at once, got {len(uploads):,}: for more use dissensus predict"
            return (), str(problem(text)), gr.update(visible=False)
        inspections = tuple(service.inspect_all([(Path(path).name, Path(path).read_bytes) for path in uploads]))
        return inspections, *show(inspections, percent)

    uploaded = files.upload(inspect, [files, slider], [kept, summary, frame], api_visibility="private")
    files.delete(inspect, [files, slider], [kept, summary, frame], api_visibility="private")
    files.clear(lambda: ((), *show((), 0)), None, [kept, summary, frame], **HIDDEN)
    slider.input(show, [kept, slider], [summary, frame], trigger_mode="always_last", **HIDDEN)
    return uploaded


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


def _readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the table for the screen: short numbers, the verdict next to the name, no empty columns, no None."""
    short = rows.drop(columns=["label"]).dropna(axis=1, how="all")
    first = [name for name in ("path", "verdict", "class") if name in short]
    short = short[[*first, *[name for name in short if name not in first]]]
    numbers = {name: 4 for name in ("confidence", "score", "p_value") if name in short}
    return short.round(numbers).astype(object).where(short.notna(), "")


def _api_help(max_upload_mb: float) -> str:
    return f"""
`POST /api/predict` takes images as multipart form data in the field `files`, up to {max_upload_mb:g} MB per request,
and answers in JSON. `?false_alarms=0.01` sets another rate.

    curl -F files=@cat.jpg -F files=@what.png ADDRESS/api/predict

ADDRESS is the address of this page. If the server asks for a token, add `-H "Authorization: Bearer TOKEN"`.

`POST /api/ask?count=8` takes images in the same way and answers which to label.

`GET /api/health` returns the status and the name of the run; `GET /api/schema` is the OpenAPI document.
"""
