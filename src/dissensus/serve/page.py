"""The page, in Gradio: one image with its verdict, many images, adapting, and how to use the API.

Uploads are read as files, not through Gradio's image component, which decodes and stores them again: page, API and
command line see the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.events import Dependency
from markupsafe import Markup

from dissensus.serve import adapt_tab, many_tab
from dissensus.serve.cards import EMPTY, TEMPLATES, card, watched
from dissensus.serve.examples import Example
from dissensus.serve.service import Inspection, Service
from dissensus.serve.settings import HIDDEN, KEPT

SESSIONS = 500  # sessions whose inspections are kept
CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
# where the browser found the page, which no server behind a proxy knows
ADDRESS = """const address = (location.origin + location.pathname).replace(/\\/+$/, '')
for (const one of element.querySelectorAll('.address')) one.textContent = address
for (const one of element.querySelectorAll('a.dv-link')) one.href = address + '/' + one.getAttribute('href')"""
SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
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
            many = many_tab.create(service, slider, max_upload_mb)
        with gr.Tab("Adapt"):
            adapt_tab.create(service, max_upload_mb)
        with gr.Tab("API"):
            gr.HTML(_api(max_upload_mb), js_on_load=ADDRESS, elem_id="api")
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
        theme=_theme(),
        css=CSS,
        js=SCRIPT,
    )
    _only_uploads(blocks)


def _theme() -> gr.themes.Base:
    """Return Gradio's plain theme, with words dark enough to be read."""
    colours = {
        name: value
        for kind in (
            "body_text_color_subdued",
            "block_info_text_color",
            "block_label_text_color",
            "input_placeholder_color",
        )
        for name, value in ((kind, "#59616f"), (f"{kind}_dark", "#a3acbb"))
    }
    return gr.themes.Base(primary_hue="blue", neutral_hue="slate", **FONTS).set(**colours)


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


def _api(max_upload_mb: float) -> str:
    return TEMPLATES.get_template("api.html").render(most=f"{max_upload_mb:g}")
