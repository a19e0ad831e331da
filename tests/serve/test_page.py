"""The page in a browser."""

from __future__ import annotations

import csv
import io
import json

import pytest

from dissensus import FeatureSet
from dissensus.serve.neighbours import Neighbours
from tests.axe import LOOKS, needs_axe, serious
from tests.browser import CHROMIUM, browser
from tests.serve.conftest import needs_gradio


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


def load(tab, url: str, **options) -> None:
    tab.open("about:blank")  # what a page says when it is left, in the middle of a request, is not noted
    tab.problems.clear()
    tab.requests.clear()
    tab.open(url, **options)
    tab.wait("!!document.querySelector('#one input[type=file]')")


def answer(tab, head: str) -> str:
    """What the card says, once its headline is that."""
    tab.wait(f"document.querySelector('#answer h2')?.innerText.includes({json.dumps(head)})")
    return tab.eval("document.querySelector('#answer').innerText")


def go(tab, name: str) -> None:
    """Choose a tab."""
    tab.eval(f"[...document.querySelectorAll('button[role=tab]')].find(t => t.innerText.includes('{name}')).click()")


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
    low, high = Neighbours.of(service.detector, FeatureSet.open(place / "train")).usual
    assert f"Usual is {low:.2f} to {high:.2f}" in said
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
def test_page_predicts_many_with_pictures_and_a_table(server, tab, place):
    load(tab, server.url)
    go(tab, "Many")
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
    shown = """[...document.querySelectorAll('.dv-many li')].map(one => [
        one.className, one.querySelector('.badge').innerText.slice(2), one.querySelector('img')?.naturalWidth ?? 0])"""
    assert tab.eval(shown) == [
        ["is-error", "cannot be read", 0], ["is-out", "out of distribution", 128], ["is-in", "nothing unusual", 128],
    ]  # fmt: skip
    colours = "[...document.querySelectorAll('.dv-many .badge')].map(one => getComputedStyle(one).color)"
    error, out, inside = tab.eval(colours)
    assert error == out != inside
    tab.eval(f"{SLIDE}(20)")
    tab.wait("document.querySelector('#rate input[type=number]').value === '20'")


@needs_gradio
def test_page_shows_the_address_it_was_found_at(server, tab):
    address = server.url.replace("127.0.0.1", "localhost")
    load(tab, address)
    go(tab, "API")
    tab.wait("document.querySelector('#api .address')?.textContent.startsWith('http')")
    assert f"curl -F files=@cat.jpg -F files=@what.png {address}/api/predict" in tab.eval(
        "document.querySelector('#api').innerText"
    )
    assert tab.eval("fetch(document.querySelector('#api a').href).then(answer => answer.json())")["status"] == "ok"


@needs_gradio
def test_captions_do_not_cover_thumbnails(server, tab):
    load(tab, server.url)
    tab.wait("document.querySelectorAll('#examples .thumbnail-item img').length > 1")
    covered = """[...document.querySelectorAll('#examples .thumbnail-item')].filter(one =>
        one.querySelector('.caption-label').getBoundingClientRect().top
            < one.querySelector('img').getBoundingClientRect().bottom - 1).length"""
    assert tab.eval(covered) == 0


@needs_gradio
@needs_axe
def test_axe_finds_nothing_serious(server, tab, place):
    for width, scheme in LOOKS:
        load(tab, server.url, width=width, prefers_color_scheme=scheme)
        tab.upload("#one input[type=file]", place / "photo.png")
        answer(tab, "Out of distribution")
        assert serious(tab) == [], (width, scheme)
    for name in ("Many", "Adapt", "API"):  # dark, on a desk
        load(tab, server.url, prefers_color_scheme=scheme)
        go(tab, name)
        if name != "API":
            kind = "#many" if name == "Many" else "#pool"
            tab.wait(f"!!document.querySelector('{kind} input[type=file]')")
            tab.upload(f"{kind} input[type=file]", *[place / file for file in ("digit.png", "photo.png", "paper.png")])
            tab.wait("document.querySelectorAll('.dv-many li, #asked figure').length > 1")
        assert serious(tab) == [], name


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
