"""Adapting: the pool, the questions, the adapted run, the endpoint and the tab."""

from __future__ import annotations

import io
import json
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dissensus import Detector, Ensemble
from dissensus._core import documents
from dissensus._core.errors import DataError, DissensusError
from dissensus.adaptation import Adaptation, adapt, ask
from dissensus.features import FeatureSet
from dissensus.serve import adapting
from dissensus.serve.service import Service
from tests.browser import CHROMIUM, browser
from tests.serve.conftest import BAD, needs_gradio, png


@pytest.fixture(scope="module")
def inverted(scans) -> list[tuple[str, bytes]]:
    """Scans of another place: black on white."""
    return [(f"scan-{i}.png", png(255 - np.asarray(scans.image(1000 + i)))) for i in range(20)]


def uploads(files: list[tuple[str, bytes]]) -> list[adapting.Upload]:
    return [(name, lambda data=data: data) for name, data in files]


@pytest.fixture(scope="module")
def pool(service, inverted) -> adapting.Pool:
    return adapting.read(service, uploads(inverted))


def truth(scans, pool: adapting.Pool, rows) -> dict[str, int]:
    return {pool.keys[row]: int(scans.labels[1000 + pool.places[row]]) for row in rows}


def test_pool_has_every_image_once(service, inverted):
    files = [("paper.png", BAD["paper.png"][0]), *inverted[:3], ("copy.png", inverted[1][1])]
    pool = adapting.read(service, uploads(files))
    assert pool.names == ("scan-0.png", "scan-1.png", "scan-2.png")
    assert pool.places == (1, 2, 3)
    assert pool.problems == (("paper.png", "not an image"), ("copy.png", "the same image as scan-1.png"))
    assert all(picture.startswith("data:image/") for picture in pool.pictures)
    expected = service.inspect("a", inverted[2][1]).outputs.features[0]
    assert torch.equal(pool.features[2], expected)


def test_pool_reads_no_more_than_it_may(service):
    def never() -> bytes:
        raise AssertionError("read")

    with pytest.raises(DataError, match="at most 200 images at once; got 201"):
        adapting.read(service, [("a.png", never)] * 201)
    with pytest.raises(DataError, match=r"none of the 1 files is a readable image: empty\.png: empty file"):
        adapting.read(service, uploads([("empty.png", b"")]))


def test_questions_are_those_of_ask(service, pool):
    questions = adapting.questions(service, pool, 5)
    expected = ask(
        service.detector.ensemble, FeatureSet.from_arrays(pool.features), 5, classes=service.detector.classes
    )
    assert [question.row for question in questions] == expected.rows.tolist()
    assert [question.reason for question in questions] == expected.reasons
    for question, votes in zip(questions, expected.votes.tolist(), strict=True):
        assert set(question.votes) == set(votes)
        assert votes.count(question.votes[0]) == max(map(votes.count, votes))
    assert len(adapting.questions(service, pool, 48)) == len(pool)
    for count in (0, 49):
        with pytest.raises(DissensusError, match=f"count must be within 1..48; got {count}"):
            adapting.questions(service, pool, count)


def test_answered_questions_stay(service, pool, inverted):
    answered = adapting.questions(service, pool, 4)[1:3]
    more = adapting.questions(service, pool, 6, labelled=answered)
    assert more[:2] == answered
    assert len({question.key for question in more}) == 6
    assert adapting.questions(service, pool, 1, labelled=answered) == answered
    place = answered[0].row
    less = adapting.read(service, uploads([file for i, file in enumerate(inverted) if i != place]))
    assert adapting.questions(service, less, 1, labelled=answered) == answered[1:]


def test_adapted_is_what_adapt_says(service, pool, scans):
    labels = truth(scans, pool, [0, 3, 4, 9])
    found = adapting.adapted(service, pool, labels | {"gone": 3})
    classes = service.detector.classes
    labelled = FeatureSet.from_arrays(pool.features[[0, 3, 4, 9]], list(labels.values()), classes=classes)
    expected = adapt(service.detector.ensemble, labelled, classes=classes, run="run")
    assert found.document == expected.document
    assert found.ensemble.fingerprint == expected.ensemble.fingerprint
    with pytest.raises(DataError, match="none is given"):
        adapting.adapted(service, pool, {"gone": 3})
    with pytest.raises(DataError, match=r"within 0\.\.9; got 10"):
        adapting.adapted(service, pool, {pool.keys[0]: 10})


def test_archive_is_a_run(service, place, pool, scans, tmp_path):
    near = Service(service.detector, "run", run=place / "run")
    adapted = adapting.adapted(near, pool, truth(scans, pool, range(5)))
    path = adapting.archive(near, adapted, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["run-adapted.zip"]
    with zipfile.ZipFile(path) as file:
        file.extractall(tmp_path)
    folder = tmp_path / "run-adapted"
    detector = Detector.load(folder)
    assert detector.ensemble.fingerprint == adapted.ensemble.fingerprint
    assert detector.threshold is None
    assert detector.classes == service.detector.classes
    assert documents.read(Adaptation, folder / "adaptation.json") == adapted.document
    detector.predict([place / "digit.png"])


def test_runs_that_cannot_be_adapted(service, place, monkeypatch):
    assert adapting.why_not(service) == ""
    other = Service(Detector.load(place / "run"), "run")
    del other.detector.ensemble.fitted["knn"]
    assert "this run keeps none" in adapting.why_not(other)
    member = service.detector.ensemble.member(0)
    single = Detector(Ensemble(member, members=1, init="template"), backbone=service.detector.members.backbone)
    assert "this run has one" in adapting.why_not(Service(single, "run"))
    monkeypatch.setattr(other.detector.members, "backbone", SimpleNamespace(shape=(8, 2, 2)))
    assert "vectors; this run's are (8, 2, 2)" in adapting.why_not(other)


@needs_gradio
def test_api_asks(server, service, inverted):
    import httpx

    files = [("files", file) for file in (("paper.png", BAD["paper.png"][0]), *inverted)]
    answer = httpx.post(f"{server.url}/api/ask", files=files, params={"count": 3}, timeout=60)
    assert answer.status_code == 200
    found = answer.json()
    expected = adapting.questions(service, adapting.read(service, uploads([file for _, file in files])), 3)
    assert found == {
        "run": "run",
        "questions": [{"row": one.row, "path": one.name, "reason": one.reason} for one in expected],
        "errors": [{"path": "paper.png", "error": "not an image"}],
    }
    for params, chosen, text in (
        ({"count": 99}, files, "input should be less than or equal to 48"), ({}, files[:1], "none of the 1 files"),
        ({"count": "x"}, files, "count: input should be a valid integer"),
    ):  # fmt: skip
        answer = httpx.post(f"{server.url}/api/ask", files=chosen, params=params, timeout=60)
        assert 400 <= answer.status_code < 500
        assert text in answer.json()["error"]


CHOOSE = """((place, option) => {
    const one = document.querySelectorAll('#asked select')[place]
    one.value = option
    one.dispatchEvent(new Event('change', {bubbles: true}))
})"""
COUNT = """(value => {
    const number = document.querySelector('#count input[type=number]')
    number.value = value
    number.dispatchEvent(new Event('input', {bubbles: true}))
    number.dispatchEvent(new Event('blur', {bubbles: true}))
})"""
SHOWN = "document.querySelector('#adapted').innerText"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@needs_gradio
def test_tab_asks_adapts_and_gives_the_run(server, tab, place, inverted, tmp_path, scans):
    folder = tmp_path / "pool"
    folder.mkdir()
    for name, data in inverted:
        (folder / name).write_bytes(data)
    tab.open(server.url, width=1280)
    tab.wait("!!document.querySelector('#one input[type=file]')")
    tab.eval("[...document.querySelectorAll('button[role=tab]')].find(t => t.innerText.includes('Adapt')).click()")
    tab.wait("!!document.querySelector('#pool input[type=file]')")
    tab.upload("#pool input[type=file]", *sorted(folder.iterdir()), place / "paper.png")
    tab.wait("document.querySelectorAll('#asked select').length == 8", 60)
    said = tab.eval("document.querySelector('#asked').innerText")
    assert "8 of 20 images to label" in said
    assert "1 left out (paper.png: not an image)" in said
    assert tab.eval("[...document.querySelectorAll('#asked select')].every(one => one.value === '')")
    assert tab.eval("document.querySelectorAll('#asked select')[0].options.length") == 11

    names = tab.eval("[...document.querySelectorAll('#asked figure img')].map(one => one.alt)")
    labels = [int(scans.labels[1000 + int(name[5:-4])]) for name in names]
    for at in range(4):  # faster than they are answered: none is lost
        tab.eval(f"{CHOOSE}({at}, {labels[at]})")
    tab.wait(f"{SHOWN}.includes('of 4 labels')")
    assert "as it is" in tab.eval(SHOWN)
    tab.eval(f"{CHOOSE}(3, '')")  # skip
    tab.wait(f"{SHOWN}.includes('of 3 labels')")

    tab("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    tab.wait("!!document.querySelector('#download')")
    tab.eval("document.querySelector('#download').click()")
    for _ in range(200):
        if (tmp_path / "run-adapted.zip").is_file():
            break
        tab.eval("new Promise(done => setTimeout(done, 100))")
    with zipfile.ZipFile(io.BytesIO((tmp_path / "run-adapted.zip").read_bytes())) as file:
        document = json.loads(file.read("run-adapted/adaptation.json"))
    assert (document["labels"], document["run"]) == (3, "run")

    tab.eval(f"{COUNT}(10)")
    tab.wait("document.querySelectorAll('#asked select').length == 10")
    chosen = tab.eval("[...document.querySelectorAll('#asked select')].map(one => one.value)")
    assert chosen == [*map(str, labels[:3]), *[""] * 7]
    assert not [said for said in tab.problems if "Method not implemented" not in said]
