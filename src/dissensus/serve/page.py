"""The page, by Gradio: one image with its verdict, many images as a table, and how to ask by program.

Files are taken as they are, never through Gradio's image component, which would decode and store them anew: page, API
and command line see the same bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd
from markupsafe import Markup

from dissensus.serve.examples import Example
from dissensus.serve.results import table
from dissensus.serve.service import Seen, Service
from dissensus.serve.shown import EMPTY, card, problem

MANY = 200  # files in one go
KEPT = 1800  # seconds that uploads, tables and what was seen are kept
SESSIONS = 500  # that have something kept for them
CSS = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
HIDDEN: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}  # the API is one of our own
FORMATS = "JPEG, PNG, WebP, TIFF, GIF, BMP"
FONTS: dict[str, Any] = {
    "font": ["system-ui", "sans-serif"],
    "font_mono": ["ui-monospace", "monospace"],
}  # nothing is fetched


def create(service: Service, examples: Sequence[Example], max_upload_mb: float) -> gr.Blocks:
    """The page as Gradio's blocks, to be mounted."""
    with gr.Blocks(analytics_enabled=False, title=f"Dissensus: {service.name}", delete_cache=(60, KEPT)) as blocks:
        gr.HTML(_header(service), elem_id="head")
        slider = _slider(service)
        with gr.Tab("One image"):
            _one(service, examples, slider, max_upload_mb)
        with gr.Tab("Many images"):
            _many(service, slider, max_upload_mb)
        with gr.Tab("By program"):
            gr.Markdown(_by_program(max_upload_mb))
    blocks.state_session_capacity = SESSIONS
    blocks.queue(max_size=64, default_concurrency_limit=2)
    return blocks


def mount(app: Any, blocks: gr.Blocks, max_upload_mb: float) -> None:
    """Put the page at the root of the application."""
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
    """Let a request name files that were uploaded, and nothing else.

    Gradio lets it name any file of this machine until `launch` is called, which a mounted page never does, and fetches
    addresses.
    """
    blocks.has_launched = True
    for block in blocks.blocks.values():
        move = block.async_move_resource_to_block_cache

        async def local(place: Any, move: Any = move) -> Any:
            if "://" in str(place):
                raise gr.Error("a file must be uploaded; got an address: download it first", print_exception=False)
            return await move(place)

        vars(block)["async_move_resource_to_block_cache"] = local


def _header(service: Service) -> str:
    detector = service.detector
    about = f"{len(detector.ensemble)} members, {len(detector.classes):,} classes, score {detector.score_name}"
    if detector.threshold is None:
        how = f"dissensus calibrate {service.name} --id SAMPLES"
        form = (
            "<p class='warn'>This run is <b>not calibrated</b>: it has classes and scores, but no verdicts. "
            "Calibrate it and start again: <code>{}</code></p>"
        )
        said = Markup(form).format(how)
    else:
        said = Markup("<p>{}.</p>").format(_capital(detector.threshold.promise))
    form = "<h1>Is this image like the training data?</h1><p><b>{}</b>: {}.</p>{}"
    return str(Markup(form).format(service.name, about, said))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _slider(service: Service) -> gr.Slider:
    rule, rates = service.detector.threshold, service.rates
    if rule is None or rates is None:
        return gr.Slider(0, 1, value=0, visible=False)
    return gr.Slider(
        *rates,
        value=100 * rule.false_alarms,
        step=0.1,
        label="False alarms allowed, %",
        info=f"{rates[0]:g} is the least that {rule.calibrated.count:,} held-out images can promise.",
        elem_id="rate",
    )


def _rate(service: Service, percent: float) -> float | None:
    """The slider's value as a share; None where there is no calibration to ask."""
    return None if service.detector.threshold is None else round(percent / 100, 6)


def _one(service: Service, examples: Sequence[Example], slider: gr.Slider, max_upload_mb: float) -> None:
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

    def show(seen: Seen | None, percent: float) -> str:
        return str(EMPTY if seen is None else card(service, seen, _rate(service, percent)))

    def look(path: str | None, percent: float) -> tuple[Seen | None, str]:
        seen = None if path is None else service.see(Path(path).name, Path(path).read_bytes(), shown=True)
        return seen, show(seen, percent)

    def pick(percent: float, event: gr.SelectData) -> tuple[Seen, str]:
        example = examples[event.index]
        seen = service.see(example.name, example.data, shown=True)
        return seen, show(seen, percent)

    # annotations as strings would name Gradio's event in a module that its inspection does not look into
    pick.__annotations__["event"] = gr.SelectData
    file.upload(look, [file, slider], [kept, answer], **HIDDEN)
    file.clear(lambda: (None, str(EMPTY)), None, [kept, answer], **HIDDEN)
    gallery.select(pick, [slider], [kept, answer], **HIDDEN)
    slider.input(show, [kept, slider], answer, trigger_mode="always_last", **HIDDEN)


def _many(service: Service, slider: gr.Slider, max_upload_mb: float) -> None:
    files = gr.File(
        label=f"Drop images here (up to {MANY}, of {max_upload_mb:g} MB each)",
        file_count="multiple",
        file_types=["image"],
        height=150,
        elem_id="many",
    )
    said = gr.HTML("", elem_id="said")
    frame = gr.Dataframe(visible=False, interactive=False, elem_id="table", buttons=["fullscreen"])
    kept = gr.State((), time_to_live=KEPT)

    def show(many: Sequence[Seen], percent: float) -> tuple[str, Any]:
        if not many:
            return "", gr.update(visible=False)
        made = table(service, many, _rate(service, percent))
        return _summary(made), gr.update(value=_rounded(made), visible=True)

    def look(paths: list[str] | None, percent: float) -> tuple[Sequence[Seen], str, Any]:
        given = paths or []
        if len(given) > MANY:
            text = f"at most {MANY} files at once, got {len(given):,}: for more use dissensus predict"
            return (), str(problem(text)), gr.update(visible=False)
        seen = tuple(service.see(Path(path).name, Path(path).read_bytes()) for path in given)
        return seen, *show(seen, percent)

    files.upload(look, [files, slider], [kept, said, frame], api_visibility="private")
    files.delete(look, [files, slider], [kept, said, frame], api_visibility="private")
    files.clear(lambda: ((), *show((), 0)), None, [kept, said, frame], **HIDDEN)
    slider.input(show, [kept, slider], [said, frame], trigger_mode="always_last", **HIDDEN)


def _summary(made: pd.DataFrame) -> str:
    """How many of what, and the whole table as CSV in a link: no file of it is kept."""
    bad = int(made["error"].notna().sum())
    parts = [f"{len(made):,} {'image' if len(made) == 1 else 'images'}"]
    parts += [f"{int((made['verdict'] == 'out').sum()):,} out of distribution"] * bool(made["verdict"].notna().any())
    parts += [f"{bad:,} could not be read"] * bool(bad)
    content = base64.b64encode(made.to_csv(index=False).encode()).decode()
    link = f"<a download='verdicts.csv' href='data:text/csv;base64,{content}'>Download as CSV</a>"
    return f"<p role='status'>{', '.join(parts)}</p><p>{link}</p>"


def _rounded(made: pd.DataFrame) -> pd.DataFrame:
    """For reading: short numbers, the verdict near the name, no empty column, no None."""
    short = made.drop(columns=["label"]).dropna(axis=1, how="all")
    first = [name for name in ("path", "verdict", "class") if name in short]
    short = short[[*first, *[name for name in short if name not in first]]]
    numbers = {name: 4 for name in ("confidence", "score", "p_value") if name in short}
    return short.round(numbers).astype(object).where(short.notna(), "")


def _by_program(max_upload_mb: float) -> str:
    return f"""
`POST /api/predict` takes images as multipart form data in the field `files`, up to {max_upload_mb:g} MB a request, and
answers in JSON; `?false_alarms=0.01` asks at another rate.

    curl -F files=@cat.jpg -F files=@what.png ADDRESS/api/predict

ADDRESS is that of this page.

`GET /api/health` says whether it answers and for which run, `GET /api/schema` documents it all as OpenAPI.
"""
