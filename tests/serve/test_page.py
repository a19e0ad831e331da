"""The page in a browser."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.browser import CHROMIUM, browser
from tests.serve.conftest import needs_gradio


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def load(tab, url: str, **options) -> None:
    tab.problems.clear()
    tab.requests.clear()
    tab.open(url, **options)
    tab.wait("!!document.querySelector('#one input[type=file]')")


def answer(tab, head: str) -> str:
    """What the card says, once its headline is that."""
    tab.wait(f"document.querySelector('#answer h2')?.innerText.includes({json.dumps(head)})")
    return tab.eval("document.querySelector('#answer').innerText")


SLIDE = """(value => {
    const number = document.querySelector('#rate input[type=number]')
    number.value = value
    number.dispatchEvent(new Event('input', {bubbles: true}))
    number.dispatchEvent(new Event('blur', {bubbles: true}))
})"""


@needs_gradio
def test_page_predicts_uploads(server, tab, place, service):
    load(tab, server.url)
    tab.upload("#one input[type=file]", place / "digit.png")
    said = answer(tab, "Nothing unusual found")
    verdict, _ = service.verdict(service.inspect("digit.png", (place / "digit.png").read_bytes()))
    assert f"Class {verdict.class_name}, confidence {verdict.confidence:.0%}" in said
    assert "Nearest training images" in said
    assert tab.eval("[...document.querySelectorAll('#answer .dv-parts td:first-child')].map(t => t.innerText)") == list(
        service.detector.threshold.scores
    )
    assert tab.eval("document.querySelectorAll('#answer .gauge .mark').length") == 1
    tab.wait("document.querySelector('#watched')?.textContent.includes('What came in')")  # without a reload
    tab.eval("document.querySelector('#watched details').open = true")
    tab.wait("document.querySelector('#watched img').naturalWidth > 100")
    tab.eval(f"{SLIDE}(20)")
    tab.wait("document.querySelector('#answer').innerText.includes('At 20% false alarms')")

    load(tab, server.url)
    tab.upload("#one input[type=file]", place / "photo.png")
    assert "do not rely on the class" in answer(tab, "Out of distribution")
    load(tab, server.url)
    tab.upload("#one input[type=file]", place / "huge.png")
    assert "more than the limit of 40 million" in answer(tab, "This file cannot be used")
    load(tab, server.url)
    tab.eval("document.querySelector('#examples button.thumbnail-item').click()")
    tab.wait("/distribution|unusual/.test(document.querySelector('#answer h2')?.innerText)")

    assert not [url for url in tab.requests if not url.startswith((server.url, "data:"))]
    # Gradio's client says of its own event stream that closing is not implemented, and that a page was left
    expected = ("Method not implemented", "AbortError")
    assert not [said for said in tab.problems if not any(words in said for words in expected)]


@needs_gradio
def test_page_predicts_many_into_a_table(server, tab, place):
    load(tab, server.url)
    tab.eval("[...document.querySelectorAll('button[role=tab]')].find(t => t.innerText.includes('Many')).click()")
    tab.wait("!!document.querySelector('#many input[type=file]')")
    tab.upload("#many input[type=file]", *[place / name for name in ("digit.png", "photo.png", "paper.png")])
    tab.wait("document.querySelector('#summary').innerText.includes('3 images')")
    said = "1 out of distribution, nothing unusual found in 1, 1 could not be read"
    assert said in tab.eval("document.querySelector('#summary').innerText")
    text = tab.eval("atob(document.querySelector('#summary a').href.split(',')[1])")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["path"], row["verdict"], row["error"]) for row in rows] == [
        ("digit.png", "nothing unusual", ""), ("photo.png", "out", ""), ("paper.png", "", "not an image"),
    ]  # fmt: skip
    assert len(set(rows[0])) == 8 + 4


@needs_gradio
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(server, tab, place, scheme):
    load(tab, server.url, width=390, prefers_color_scheme=scheme)
    tab.upload("#one input[type=file]", place / "photo.png")
    answer(tab, "Out of distribution")
    assert tab.eval("innerWidth") == 390
    assert tab.eval("document.documentElement.scrollWidth") <= 390
    assert tab.eval("document.body.classList.contains('dark')") == (scheme == "dark")
    above = "getBoundingClientRect().top"
    assert tab.eval(f"document.querySelector('#answer').{above} < document.querySelector('#examples').{above}")


@needs_gradio
def test_page_says_that_a_file_is_too_large(server, tab, tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(3_000_000))
    load(tab, server.url)
    tab.upload("#one input[type=file]", tmp_path / "large.png")
    tab.wait("/maximum|too large|exceed/i.test(document.querySelector('.toast-wrap')?.innerText || '')")
