"""The page and the API: what they say against the detector itself, what they refuse, how they bear a crowd."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images

from dissensus import Detector, Ensemble, FeatureSet, ImageSet, backbones, fit
from dissensus._core.errors import DataError
from dissensus.cli import main
from dissensus.evaluation.examples import Example
from dissensus.features import extract
from dissensus.images.thumbnails import thumbnail
from dissensus.models import tails
from dissensus.serve import cards, examples, responses
from dissensus.serve.gauge import gauge
from dissensus.serve.neighbours import Neighbours
from dissensus.serve.service import Inspection, Service
from tests.browser import CHROMIUM, browser
from tests.conftest import blobs, linear

SERVES = importlib.util.find_spec("gradio") is not None
needs_gradio = pytest.mark.skipif(not SERVES, reason="needs gradio: pip install '.[serve]'")


def png(pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


def huge() -> bytes:
    """A PNG whose header promises 20,000 x 20,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


def photo() -> bytes:
    file = io.BytesIO()
    Image.fromarray(load_sample_images().images[0][:300, :300]).save(file, "JPEG")
    return file.getvalue()


BAD = {
    "paper.png": (b"%PDF-1.7 nothing to see", "not an image"),
    "empty.png": (b"", "empty file"),
    "half.jpg": (photo()[:4000], "truncated"),
    "huge.png": (huge(), "20000 x 20000 pixels, more than the limit of 89 million"),
}


@pytest.fixture(scope="module")
def scans() -> ImageSet:
    found = load_digits()
    return ImageSet.from_arrays(
        (found.images * 255 / 16).astype(np.uint8), found.target, classes=[str(c) for c in range(10)]
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory, scans) -> Path:
    """A folder with train features, a calibrated run, and some files."""
    folder = tmp_path_factory.mktemp("served")
    backbone = backbones.create("lite0", layers=1, size=64)
    train = extract(scans.subset(slice(0, 500)), backbone, folder / "train", workers=0, progress=False)
    held_out = extract(scans.subset(slice(500, 700)), backbone, folder / "held-out", workers=0, progress=False)
    ensemble = Ensemble(tails.create("linear", train.width, 10), members=4, seed=0)
    fit(
        ensemble, train, "deep-ensemble", epochs=6, lr=1e-2, batch_size=64, label_smoothing=0.1,
        out=folder / "run", progress=False,
    )  # fmt: skip
    shutil.copytree(folder / "run", folder / "plain")
    Detector.load(folder / "run").calibrate(held_out).save(folder / "run")
    (folder / "digit.png").write_bytes(png(np.asarray(scans.image(1000))))
    (folder / "photo.png").write_bytes(_strangest(Detector.load(folder / "run")))
    for name, (data, _) in BAD.items():
        (folder / name).write_bytes(data)
    return folder


def _strangest(detector: Detector) -> bytes:
    """Of some small patches of a photograph, the one that members disagree on most: some do pass for digits."""
    grey = Image.fromarray(load_sample_images().images[0]).convert("L").resize((80, 53))
    patches = [grey.crop((x, y, x + 8, y + 8)) for x in range(0, 72, 8) for y in range(0, 45, 8)]
    return png(patches[int(detector.predict(patches).score.argmax())])


@pytest.fixture(scope="module")
def service(place) -> Service:
    return Service(Detector.load(place / "run"), "run")


# what is shown


def test_service_says_what_the_detector_says(service, place):
    paths = [place / "digit.png", place / "photo.png"]
    expected = service.detector.predict(paths)
    for path, verdict in zip(paths, expected, strict=True):
        inspection = service.inspect(path.name, path.read_bytes())
        found, limit = service.verdict(inspection)
        assert found.votes == verdict.votes
        assert found.verdict == verdict.verdict
        assert found.score == pytest.approx(verdict.score, abs=1e-5)
        assert (found.score > limit) == found.out
        assert service.top_classes(inspection)[0] == (found.class_name, pytest.approx(found.confidence))
    assert [v.verdict for v in expected] == ["in", "out"]


def test_another_rate_needs_no_other_look(service, place, monkeypatch):
    inspection = service.inspect("digit.png", (place / "digit.png").read_bytes())
    monkeypatch.setattr(service.detector.members, "encoder", None)
    p_value = service.verdict(inspection)[0].p_value
    assert service.verdict(inspection, min(0.99, p_value))[0].out
    assert not service.verdict(inspection, p_value * 0.99)[0].out
    assert service.detector.threshold.false_alarms == 0.05  # as before


def test_rates_are_those_that_the_calibration_supports(service):
    low, high = service.rates  # 200 samples: 1/201 is the least
    assert (low, high) == (0.5, 20)
    service.detector_at(low / 100)
    with pytest.raises(DataError, match="needs 249 calibration samples"):
        service.detector_at((low - 0.1) / 100)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_with_the_reason(service, name):
    data, reason = BAD[name]
    inspection = service.inspect(name, data)
    assert inspection == Inspection(name, error=reason)
    assert f"{name}: {reason}" in cards.card(service, inspection)
    assert responses.result(service, inspection)["error"] == reason


def test_card_has_verdict_gauge_classes_and_members(service, place):
    for name, head in (("digit.png", "In distribution"), ("photo.png", "Out of distribution")):
        inspection = service.inspect(name, (place / name).read_bytes(), details=True)
        text = cards.card(service, inspection)
        assert head in text
        assert "<svg" in text
        assert text.count("class='bar'") == 5
        assert text.count("<span>member") == 4
        assert "held-out images" in text


def test_names_and_classes_are_escaped(service, place):
    inspection = service.inspect("<script>x</script>.png", (place / "digit.png").read_bytes(), details=True)
    for text in (cards.card(service, inspection), cards.problem("<script>")):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("p_value", "said"),
    [
        (1 / 200, "None of the 199 held-out images looks as unusual (p = 0.005)."),
        (2 / 200, "Of the 199 held-out images, 1 looks at least as unusual (p = 0.01)."),
        (1.0, "Of the 199 held-out images, 199 look at least as unusual (p = 1)."),
    ],
)
def test_p_value_in_words(p_value, said):
    assert cards.in_words(p_value, 199) == said


def test_gauge_turns_from_usual_to_unusual():
    assert "rotate(-90.0" in gauge(1.0, 0.05, 99)
    assert "rotate(90.0" in gauge(0.01, 0.05, 99)
    assert "rotate(0.0" in gauge(0.1, 0.05, 99)  # half of the logarithm
    assert "; out:" in gauge(0.05, 0.05, 99)
    assert "; in:" in gauge(0.06, 0.05, 99)


def test_uncalibrated_run_has_no_verdict(place):
    plain = Service(Detector.load(place / "plain"), "plain")
    inspection = plain.inspect("digit.png", (place / "digit.png").read_bytes())
    assert plain.rates is None
    assert "No verdict" in cards.card(plain, inspection)
    assert responses.facts(plain) == {"run": "plain", "score": "pds", "calibrated": False, "false_alarms": None}
    assert responses.result(plain, inspection)["verdict"] is None


def test_table_has_a_row_for_every_file(service, place):
    inspection = [service.inspect(name, (place / name).read_bytes()) for name in ("digit.png", "paper.png")]
    frame = responses.table(service, inspection)
    assert list(frame["path"]) == ["digit.png", "paper.png"]
    assert list(frame.columns)[-4:] == [f"member {m}" for m in (1, 2, 3, 4)]
    assert frame["error"][1] == "not an image"
    assert frame["verdict"][0] == "in"


# neighbours and examples


def test_nearest_of_a_training_image_is_itself(place, scans):
    train = FeatureSet.open(place / "train")
    found = Neighbours(train, scans.subset(slice(0, 500))).nearest(train.rows([7])[0])
    assert found[0].similarity == pytest.approx(1, abs=1e-3)
    assert (found[0].class_name, found[0].name) == ("7", "7")
    assert found[0].picture.startswith("data:image/")
    assert [n.similarity for n in found] == sorted((n.similarity for n in found), reverse=True)


def test_nearest_keeps_to_its_memory(place, monkeypatch):
    train = FeatureSet.open(place / "train")
    monkeypatch.setattr("dissensus.serve.neighbours.VALUES", 50 * train.width)
    few = Neighbours(train)
    assert (len(few.rows), few.total) == (50, 500)
    row = int(few.rows[3])
    assert few.nearest(train.rows([row])[0])[0].name == f"row {row}"


def test_images_must_be_those_of_the_features(place, scans):
    train = FeatureSet.open(place / "train")
    with pytest.raises(DataError, match="these are others"):
        Neighbours(train, scans.subset(slice(1, 501)))
    with pytest.raises(DataError, match="500 rows"):
        Neighbours(FeatureSet.from_arrays(train.rows(slice(0, 500))), scans.subset(slice(0, 400)))


def test_examples_of_a_folder(place, tmp_path):
    found = examples.of_folder(str(place))
    assert sorted(e.name for e in found) == ["digit.png", "photo.png"]  # the bad ones are left out
    with pytest.raises(DataError, match="none that can be read"):
        examples.of_folder(str(tmp_path))
    with pytest.raises(DataError, match="there is none"):
        examples.of_folder(str(tmp_path / "nothing"))
    assert examples.of_run(place / "run") == []  # never evaluated


def test_saved_examples_are_as_small_as_they_were(scans):
    example = Example(picture=thumbnail(scans.image(3)), place="id/3", truth="3", answer="3", votes=("3",), pds=1.0)
    made = examples._of_evaluation(example, "id")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(made.data))), np.asarray(scans.image(3)))


# the command


def refusal(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", *map(str, arguments)])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_without_gradio_one_line(capsys, monkeypatch, place):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install '.[serve]'" in refusal(capsys, place / "run")


@needs_gradio
def test_refusals(capsys, place, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} is not (Address already in use)" in refusal(capsys, place / "run", "--port", port)
    assert "--port must be within" in refusal(capsys, place / "run", "--port", 70000)
    assert "--host must be an address" in refusal(capsys, place / "run", "--host", "nowhere.invalid")
    assert "no such folder" in refusal(capsys, tmp_path / "none", "--port", 0)
    assert "--max-upload-mb" in refusal(capsys, place / "run", "--max-upload-mb", 0)
    assert "got --images alone" in refusal(capsys, place / "run", "--port", 0, "--images", place)
    fit(linear(), blobs(), "deep-ensemble", epochs=1, out=tmp_path / "features-only", progress=False)
    assert "images need a trunk" in refusal(capsys, tmp_path / "features-only", "--port", 0)


# the server


class Server:
    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "dissensus", "serve", *map(str, arguments), "--port", "0"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.stderr.read()

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        text = self.process.communicate(timeout=20)[1]
        assert self.process.returncode == 130
        return text


@pytest.fixture(scope="module")
def server(place):
    made = Server(place / "run", "--train", place / "train", "--examples", place, "--max-upload-mb", 2)
    yield made
    if made.process.poll() is None:
        said = made.stop()
        assert said.endswith("\ndissensus: stopped\n")
        assert said.count("Traceback") == said.count("InvalidPathError: ")  # whoever asks for files is on record


def ask(url: str, *files: tuple[str, bytes], **query: object) -> tuple[int, dict]:
    import httpx

    found = httpx.post(f"{url}/api/predict", files=[("files", file) for file in files], params=query, timeout=60)
    return found.status_code, found.json()


def fits(value: object, schema: dict) -> bool:
    """Whether a value is as a JSON schema of the few kinds used here says."""
    kinds = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list, "object": dict}
    allowed = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(value is None if kind == "null" else isinstance(value, kinds[kind]) for kind in allowed):
        return False
    if isinstance(value, dict):
        return set(value) == set(schema["required"]) and all(fits(v, schema["properties"][k]) for k, v in value.items())
    return all(fits(v, schema["items"]) for v in value) if isinstance(value, list) else True


@needs_gradio
def test_api_says_what_the_detector_says_and_what_its_schema_says(server, service, place):
    import httpx

    files = [(name, (place / name).read_bytes()) for name in ("digit.png", "photo.png", "paper.png")]
    status, answer = ask(server.url, *files)
    assert status == 200
    expected = [responses.result(service, service.inspect(*file)) for file in files]
    for found, wanted in zip(answer["results"], expected, strict=True):
        assert found["score"] == (None if wanted["score"] is None else pytest.approx(wanted["score"], abs=1e-4))
        same = ("path", "label", "class", "p_value", "verdict", "error", "votes")
        assert {key: found[key] for key in same} == {key: wanted[key] for key in same}
    assert [r["verdict"] for r in answer["results"]] == ["in", "out", None]

    document = httpx.get(f"{server.url}/api/schema").json()
    described = document["paths"]["/api/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert fits(answer, described)
    health = httpx.get(f"{server.url}/api/health").json()
    assert health["status"] == "ok"
    assert (health["run"], health["calibrated"], health["false_alarms"]) == ("run", True, 0.05)


@needs_gradio
def test_api_at_another_rate(server, place):
    file = ("digit.png", (place / "digit.png").read_bytes())
    p_value = ask(server.url, file)[1]["results"][0]["p_value"]
    assert ask(server.url, file, false_alarms=min(0.99, p_value + 0.001))[1]["results"][0]["verdict"] == "out"
    assert ask(server.url, file, false_alarms=0.01)[1]["false_alarms"] == 0.01
    for rate, text in ((0.0001, "needs 9999 calibration samples"), (2, "between 0 and 1"), ("much", "valid number")):
        status, answer = ask(server.url, file, false_alarms=rate)
        assert 400 <= status < 500
        assert text in answer["error"]


@needs_gradio
def test_api_refuses_in_json(server, place):
    import httpx

    for name, (data, reason) in BAD.items():
        assert ask(server.url, (name, data)) == (422, {"error": f"{name}: {reason}"})
    status, answer = ask(server.url, *[(name, data) for name, (data, _) in BAD.items()])
    assert (status, answer["error"]) == (422, "none of the 4 files is a readable image")
    assert [r["error"] for r in answer["results"]] == [reason for _, reason in BAD.values()]
    status, answer = ask(server.url, ("large.png", bytes(2_100_000)))
    assert (status, answer["error"]) == (413, "an upload may have 2 MB; got 2.1 MB: send fewer images at once")
    target = f"{server.url}/api/predict"
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    for answer, status in (
        (httpx.post(target, content=iter([b"x"])), 411),
        (httpx.post(target, content=b"nonsense", headers=form), 400),
        (httpx.post(target, data={"files": "text"}), 422),
        (httpx.post(target, files={"other": b"x"}), 422),
        (httpx.get(target), 404),
        (httpx.get(f"{server.url}/api/nothing"), 404),
    ):
        assert answer.status_code == status
        assert list(answer.json()) == ["error"]


@needs_gradio
def test_page_reads_no_file_that_was_not_uploaded(server, place):
    import httpx

    for number, path in enumerate((str(place / "digit.png"), "https://example.com/cat.png")):
        data = [{"path": path, "meta": {"_type": "gradio.FileData"}}, 5]
        request = {"data": data, "fn_index": 0, "session_hash": f"thief{number}"}
        with httpx.Client(base_url=server.url, timeout=10) as client:
            client.post("/gradio_api/queue/join", json=request).raise_for_status()
            with client.stream("GET", f"/gradio_api/queue/data?session_hash=thief{number}") as lines:
                said = next(line for line in lines.iter_lines() if "process_completed" in line)
            assert client.get(f"/gradio_api/file={path}").status_code in (403, 404)
        assert not json.loads(said.removeprefix("data: "))["success"]


@pytest.mark.slow
@needs_gradio
def test_everybody_is_warned_of_and_a_stop_leaves_nothing(place, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = Server(place / "plain", "--host", "0.0.0.0")
    assert made.url.startswith("http://localhost:")
    status, answer = ask(made.url, ("digit.png", (place / "digit.png").read_bytes()))
    assert (status, answer["calibrated"], answer["results"][0]["verdict"]) == (200, False, None)
    assert ask(made.url, ("a.png", b""), false_alarms=0.1)[0] == 400
    said = made.stop()
    assert "not calibrated" in said
    assert "WARNING: listening on every address of this machine" in said
    assert "Traceback" not in said
    assert list(tmp_path.glob("dissensus-serve-*")) == []


@pytest.mark.slow
@needs_gradio
def test_two_hundred_at_once(server, place):
    import httpx
    import psutil

    good = ("digit.png", (place / "digit.png").read_bytes())
    bad = [(name, data) for name, (data, _) in BAD.items()]
    files = [good if i % 3 else bad[i % 4] for i in range(200)]
    before = psutil.Process(server.process.pid).memory_info().rss

    def one(file: tuple[str, bytes]) -> tuple[int, str]:
        status, answer = ask(server.url, file)
        return status, answer.get("error") or answer["results"][0]["class"]

    with ThreadPoolExecutor(200) as pool:
        asked = [pool.submit(one, file) for file in files]
        time.sleep(0.2)
        assert httpx.get(f"{server.url}/api/health", timeout=20).json()["status"] == "ok"  # in the midst of it
        for i in range(20):  # who hang up in the middle
            with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as rude:
                rude.sendall(b"POST /api/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n" + bytes(i))
        found = [future.result() for future in asked]
    expected = ask(server.url, good)[1]["results"][0]["class"]
    for file, (status, said) in zip(files, found, strict=True):
        assert (status, said) == ((200, expected) if file is good else (422, f"{file[0]}: {BAD[file[0]][1]}"))
    assert psutil.Process(server.process.pid).memory_info().rss - before < 300e6


# the page in a browser


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
    said = answer(tab, "In distribution")
    verdict, _ = service.verdict(service.inspect("digit.png", (place / "digit.png").read_bytes()))
    assert f"Class {verdict.class_name}, confidence {verdict.confidence:.0%}" in said
    assert "Nearest training images" in said
    assert tab.eval("document.querySelectorAll('#answer .gauge .mark').length") == 1
    tab.eval(f"{SLIDE}(20)")
    tab.wait("document.querySelector('#answer').innerText.includes('At 20% false alarms')")

    load(tab, server.url)
    tab.upload("#one input[type=file]", place / "photo.png")
    assert "do not rely on the class" in answer(tab, "Out of distribution")
    load(tab, server.url)
    tab.upload("#one input[type=file]", place / "huge.png")
    assert "more than the limit of 89 million" in answer(tab, "This file cannot be used")
    load(tab, server.url)
    tab.eval("document.querySelector('#examples button.thumbnail-item').click()")
    answer(tab, "distribution")

    assert not [url for url in tab.requests if not url.startswith((server.url, "data:"))]
    # Gradio's client says of its own event stream that closing is not implemented
    assert not [said for said in tab.problems if "Method not implemented" not in said]


@needs_gradio
def test_page_predicts_many_into_a_table(server, tab, place):
    load(tab, server.url)
    tab.eval("[...document.querySelectorAll('button[role=tab]')].find(t => t.innerText.includes('Many')).click()")
    tab.wait("!!document.querySelector('#many input[type=file]')")
    tab.upload("#many input[type=file]", *[place / name for name in ("digit.png", "photo.png", "paper.png")])
    tab.wait("document.querySelector('#summary').innerText.includes('3 images')")
    assert "1 out of distribution, 1 could not be read" in tab.eval("document.querySelector('#summary').innerText")
    text = tab.eval("atob(document.querySelector('#summary a').href.split(',')[1])")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["path"], row["verdict"], row["error"]) for row in rows] == [
        ("digit.png", "in", ""), ("photo.png", "out", ""), ("paper.png", "", "not an image"),
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
