"""Requests to the application in this process: limits, access, batches, metrics, and its OpenAPI document."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import re
import threading
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio")

import httpx
from starlette.responses import Response

from dissensus._core.errors import DissensusError
from dissensus.serve import api, uploads
from dissensus.serve.access import Access
from dissensus.serve.service import Service
from dissensus.serve.settings import Limits
from tests.serve.conftest import png

HEADERS = {"host": "localhost", "content-type": "multipart/form-data; boundary=b"}
TOKEN = "a-token-of-some-length"


def form(*files: tuple[str, bytes], field: str = "files") -> bytes:
    head = 'Content-Disposition: form-data; name="{}"; filename="{}"\r\n\r\n'
    parts = [b"--b\r\n" + head.format(field, name).encode() + data + b"\r\n" for name, data in files]
    return b"".join(parts) + b"--b--\r\n"


def flat(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


class Client:
    """Requests to an application without a server."""

    def __init__(self, service: Service, access: Access | None = None) -> None:
        self.app = api.create(service, access)

    def __call__(self, method: str, path: str, **options) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def predict(self, *files: tuple[str, bytes], query: str = "", **headers: str) -> httpx.Response:
        return self("POST", f"/api/predict{query}", content=form(*files), headers=HEADERS | headers)

    def raw(self, messages, path: str = "/api/predict", headers=HEADERS, problems=None) -> tuple[int, bytes, int]:
        """Send messages as they are; return status, body and how many were received; note what asyncio would log."""
        sent, given, received = [], iter(messages), 0

        async def receive():
            nonlocal received
            try:
                message = next(given)
            except StopIteration:
                await asyncio.sleep(20)
                return {"type": "http.disconnect"}
            received += 1
            return await message if asyncio.iscoroutine(message) else message

        async def send(message) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()], "http_version": "1.1",
            "scheme": "http", "server": ("localhost", 80), "client": ("1.2.3.4", 5), "root_path": "", "state": {},
        }  # fmt: skip

        async def answer() -> None:
            if problems is not None:
                asyncio.get_running_loop().set_exception_handler(lambda loop, problem: problems.append(problem))
            await self.app(scope, receive, send)
            await asyncio.sleep(0)
            gc.collect()  # forgotten exceptions are logged then

        asyncio.run(answer())
        return sent[0]["status"], b"".join(one.get("body", b"") for one in sent), received


@pytest.fixture(scope="module")
def small(place) -> Service:
    from dissensus import Detector

    limits = Limits(max_upload_mb=0.1, max_pixels=0.05, max_seconds=5, max_batch=8)
    made = Service(Detector.load(place / "run"), "run", limits=limits)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(small) -> Client:
    return Client(small)


@pytest.fixture
def digit(place) -> tuple[str, bytes]:
    return "digit.png", (place / "digit.png").read_bytes()


# limits


def test_bytes_are_counted_as_they_come(client):
    """A body in chunks passed whatever its Content-Length said."""
    body = form(("large.png", bytes(400_000)))
    chunks = [
        {"type": "http.request", "body": body[i : i + 10_000], "more_body": True} for i in range(0, len(body), 10_000)
    ]
    for headers in (HEADERS, HEADERS | {"content-length": "10", "transfer-encoding": "chunked"}):
        endless = (chunk for _ in range(100) for chunk in chunks)  # 40 MB
        status, answer, received = client.raw(endless, headers=headers)
        assert status == 413
        assert b"an upload may have 0.1 MB; got more" in answer
        assert received * 10_000 < 600_000
    status, answer, received = client.raw(iter(chunks), headers=HEADERS | {"content-length": "9" * 30})
    assert (status, b"an upload may have 0.1 MB" in answer) == (413, True)


def test_the_page_and_login_have_limits_too(client, small):
    chunk = {"type": "http.request", "body": bytes(100_000), "more_body": True}
    status, _, received = client.raw((chunk for _ in range(1000)), path="/gradio_api/upload")
    assert received <= 5  # there is no page here: it is answered unread
    assert status == 404
    status, _, received = Client(small, Access(token=TOKEN)).raw((chunk for _ in range(1000)), path="/login")
    assert (status, received) == (413, 5)  # the first, and what is dropped


def test_too_many_waiting_uploads_are_rejected(client, digit, monkeypatch):
    monkeypatch.setattr(uploads, "WAITING", 0)
    answer = client.predict(digit)
    assert (answer.status_code, answer.json()) == (503, {"error": "too many uploads are waiting: try again later"})
    assert answer.headers["retry-after"] == "5"
    assert client("GET", "/api/ready").status_code == 503
    assert client("GET", "/api/health").status_code == 200
    monkeypatch.undo()
    monkeypatch.setattr(uploads, "HELD", 0)
    assert client.predict(digit).status_code == 503
    monkeypatch.undo()
    assert client.predict(digit).status_code == 200  # what was rejected holds nothing
    assert client("GET", "/api/ready").json() == {"status": "ready"}


def test_images_are_rejected_by_their_header(client, digit, small, monkeypatch):
    answer = client.predict(("wide.png", flat(300, 200)))
    assert (answer.status_code, answer.json()["error"]) == (
        422, "wide.png: 300 x 200 pixels, more than the limit of 0.05 million",
    )  # fmt: skip
    fits = ("fits.png", flat(250, 200))
    assert client.predict(fits).status_code == 200
    monkeypatch.setattr("dissensus.serve.service.decode", None)  # none is decoded
    answer = client.predict(*[fits] * 6)
    assert answer.status_code == 413
    assert "send fewer at once" in answer.json()["error"]


def test_a_jpeg_has_a_limited_number_of_scans(client):
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", progressive=True)
    start, _, scan = file.getvalue().rpartition(b"\xff\xda")
    assert client.predict(("a.jpg", start + b"\xff\xda" + scan)).status_code == 200
    bomb = start + (b"\xff\xda" + scan[:-2]) * 300 + b"\xff\xd9"
    assert client.predict(("a.jpg", bomb)).json()["error"] == "a.jpg: more than 200 scans"


@pytest.mark.parametrize("rate", ["1e-310", "0", "-0.1", "nan", "inf", "-inf", "1", "1e999", "5e-324", "x", ""])
def test_rates_are_checked(client, digit, rate):
    answer = client.predict(digit, query=f"?false_alarms={rate}")
    assert answer.status_code in (400, 422)
    assert "\n" not in answer.json()["error"]


def test_names_that_json_cannot_hold_are_replaced(client, digit):
    body = form(("\\ud800.png", digit[1]))
    headers = HEADERS | {"content-type": "multipart/form-data; boundary=b; charset=unicode_escape"}
    assert client("POST", "/api/predict", content=body, headers=headers).status_code == 200


# the queue


class Held:
    """Holds the passes of a service until it is let go."""

    def __init__(self, service: Service, monkeypatch) -> None:
        self.go, self.begun, self.sizes = threading.Event(), threading.Event(), []
        run = service._predict

        def slow(pixels):
            self.begun.set()
            assert self.go.wait(20)
            self.sizes.append(len(pixels))
            return run(pixels)

        monkeypatch.setattr(service, "_predict", slow)


def test_a_request_has_a_limited_time_and_leaves_the_queue(small, digit, monkeypatch):
    held = Held(small, monkeypatch)
    monkeypatch.setattr(small, "limits", replace(small.limits, max_seconds=0.2))
    client = Client(small)
    answer = client.predict(digit)
    assert answer.status_code == 503
    assert answer.json()["error"].startswith("a request may take 0.2 s; this one took longer")
    assert client.predict(digit, digit).status_code == 503  # waits behind it
    assert small.batcher.waiting == 2
    held.go.set()
    assert small.inspect(*digit).error is None
    assert held.sizes == [1, 1]  # the second request was not run


def test_a_client_that_leaves_takes_its_images_along(small, client, digit, monkeypatch):
    held = Held(small, monkeypatch)
    blocking = small.submit(digit[0], lambda: digit[1])
    assert held.begun.wait(10)

    async def leave():
        while small.batcher._preparing:
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    body = {"type": "http.request", "body": form(digit, digit, digit), "more_body": False}
    problems = []
    status, answer, _ = client.raw([body, leave()], problems=problems)
    assert (status, answer) == (499, b'{"error":"the client left"}')
    assert problems == [], "a client that leaves is not logged"
    held.go.set()
    assert blocking.result(10).error is None
    assert small.inspect(*digit).error is None
    assert held.sizes == [1, 1]


def test_results_do_not_depend_on_the_batch(small, client, scans, monkeypatch):
    files = [(f"{i}.png", png(np.asarray(scans.image(1000 + i)))) for i in range(8)]
    held = Held(small, monkeypatch)
    blocking = small.submit(files[0][0], lambda: files[0][1])
    assert held.begun.wait(10)
    jobs = [small.submit(name, lambda data=data: data) for name, data in files]
    while small.batcher._preparing:
        pass
    held.go.set()
    blocking.result(10)
    together = [small.result(job.result(10)) for job in jobs]
    alone = [small.result(small.inspect(*file)) for file in files]
    assert held.sizes == [1, 8, *[1] * 8]
    for one, other in zip(together, alone, strict=True):
        for key in ("confidence", "score"):
            assert one.pop(key) == pytest.approx(other.pop(key), rel=1e-6, abs=1e-6)
        for top, other_top in zip(one.pop("top"), other.pop("top"), strict=True):
            assert top["class"] == other_top["class"]
            assert top["probability"] == pytest.approx(other_top["probability"], abs=2e-6)  # of 6 digits
        assert one == other


def test_observers_see_each_prediction_once_and_may_fail(place, digit, caplog):
    from dissensus import Detector

    service = Service(Detector.load(place / "run"), "run")
    seen = []
    service.observers += [lambda verdict: 1 / 0, seen.append]
    client = Client(service)
    assert client.predict(digit, ("bad.png", b"x")).status_code == 200
    assert client("POST", "/api/ask", content=form(digit), headers=HEADERS).status_code == 200
    service.inspect(*digit, observed=False)
    bad, good = sorted(seen, key=lambda verdict: verdict.name)  # the one that is not decoded may come first
    assert [(one.name, one.error) for one in (good, bad)] == [("digit.png", None), ("bad.png", "not an image")]
    assert 0 < good.p_value <= 1
    assert "ZeroDivisionError" in caplog.text
    service.close()
    assert client("GET", "/api/health").status_code == 503


def test_metrics_count_requests_verdicts_and_passes(place, digit):
    from dissensus import Detector

    service = Service(Detector.load(place / "run"), "run")
    client = Client(service)
    client.predict(digit, ("photo.png", (place / "photo.png").read_bytes()), ("bad.png", b"x"))
    client.predict(("bad.png", b"x"))
    client("GET", "/secret/of/somebody")
    answer = client("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    expected = {
        'dissensus_requests_total{path="/api/predict",status="200"}': 1,
        'dissensus_requests_total{path="/api/predict",status="422"}': 1,
        'dissensus_requests_total{path="other",status="404"}': 1,
        'dissensus_verdicts_total{verdict="nothing unusual"}': 1,
        'dissensus_verdicts_total{verdict="out"}': 1,
        'dissensus_verdicts_total{verdict="unreadable"}': 2,
        "dissensus_p_value_count": 2,
        'dissensus_request_seconds_count{path="/api/predict"}': 2,
        "dissensus_queue_images": 0,
        "dissensus_images_total": 4,
    }
    assert {name: float(values[name]) for name in expected} == expected
    assert 2 <= float(values["dissensus_passes_total"]) <= 4
    service.close()


def test_uploads_that_drift_raise_the_alarm(place):
    from dissensus import Detector
    from dissensus.serve.cards import watched

    service = Service(Detector.load(place / "run"), "run")
    client = Client(service)
    assert watched(service.monitor) == ""
    service.inspect("1.png", (place / "digit.png").read_bytes())
    assert "What came in: 1 image, no alarm" in watched(service.monitor)
    for number in range(40):
        service.inspect(f"{number}.png", (place / "photo.png").read_bytes())
    text = client("GET", "/metrics").text
    assert "dissensus_watch_alarm 1.0" in text
    assert "dissensus_watch_samples 41.0" in text
    shown = watched(service.monitor)
    assert "no longer what this detector was calibrated on" in shown
    (picture,) = re.findall("src='data:image/svg\\+xml;base64,([^']*)'", shown)
    assert ElementTree.fromstring(base64.b64decode(picture)).tag.endswith("svg")
    service.close()
    plain = Service(Detector.load(place / "plain"), "plain")
    assert plain.monitor is None
    plain.close()


# access


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True), ("LOCALHOST:7860", True), ("127.0.0.1:1", True), ("[::1]:7860", True),
        ("192.168.1.5:80", True), ("photos.example.org", True), ("photos.example.org.:443", True),
        ("bound.example.org", True), ("evil.example", False), ("localhost.evil.example", False), ("", False),
        ("localhost@evil.example", False), ("localhost:80:80", False), ("127.0.0.1.nip.io", False),
    ],
)  # fmt: skip
def test_hosts(small, host, allowed):
    client = Client(small, Access(["photos.example.org"], bound="bound.example.org"))
    answer = client("GET", "/api/health", headers={"host": host})
    assert answer.status_code == (200 if allowed else 400)
    assert allowed or "--allow-host" in answer.json()["error"]
    assert Client(small, Access(["*"]))("GET", "/api/health", headers={"host": host}).status_code == (
        200 if allowed or host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io") else 400
    )


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost", True), ("https://photos.example.org", True), ("http://localhost:3000", False),
        ("http://127.0.0.1", False), ("https://evil.example", False), ("null", False), ("http://[", False),
    ],
)  # fmt: skip
def test_origins(small, digit, origin, allowed):
    client = Client(small, Access(["photos.example.org"]))
    assert client.predict(digit, origin=origin).status_code == (200 if allowed else 403)
    assert client("GET", "/api/ready", headers={"origin": origin}).status_code == 200


def test_pages_of_other_servers_cannot_read_answers(small):
    """Gradio lets pages of other ports of this machine read, with the cookie."""
    permission = {"access-control-allow-origin": "http://localhost:3000", "access-control-allow-credentials": "true"}

    async def shared(scope, receive, send) -> None:
        await Response("secret", headers=permission)(scope, receive, send)

    client = Client(small)
    client.app = Access(["photos.example.org"]).around(shared)
    for origin, readable in (
        ("http://localhost:3000", False), ("null", False), ("http://localhost", True),
        ("http://photos.example.org", True),
    ):  # fmt: skip
        headers = client("GET", "/", headers={"origin": origin}).headers
        assert (permission.keys() <= headers.keys()) == readable
        assert readable or not any(name.startswith("access-control-") for name in headers)


def test_a_token_is_needed(small, digit):
    client = Client(small, Access(token=TOKEN))
    for path in ("/api/health", "/api/ready"):
        assert client("GET", path).status_code == 200
    for path in ("/metrics", "/api/schema", "/", "/gradio_api/info"):
        assert client("GET", path).status_code == 401
    for value in ("", "Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", b"Bearer \xe9"):
        answer = client.predict(digit, authorization=value)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.predict(digit, authorization=f"Bearer {TOKEN}").status_code == 200

    page = client("GET", "/", headers={"accept": "text/html"})
    assert page.status_code == 401
    assert 'action="/login"' in page.text
    assert client("POST", "/login", data={"token": "wrong"}).status_code == 401
    answer = client("POST", "/login", data={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert client("GET", "/metrics", headers={"cookie": cookie.partition(";")[0]}).status_code == 200
    assert client("GET", "/metrics", headers={"cookie": "dissensus_token=x"}).status_code == 401


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"token": "short"}, "DISSENSUS_TOKEN must have 16 to 200 characters without spaces; got 5"),
        ({"token": "é" * 20}, "DISSENSUS_TOKEN"), ({"token": "with spaces in it"}, "DISSENSUS_TOKEN"),
        ({"hosts": ["http://a.example"]}, "--allow-host takes names without protocol and port"),
        ({"hosts": ["a.example:80"]}, "--allow-host"),
    ],
)  # fmt: skip
def test_misuse_of_access(options, text):
    with pytest.raises(DissensusError, match=text) as raised:
        Access(**options)
    assert options.get("token", "never") not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_upload_mb", 0), ("max_pixels", 90), ("max_seconds", float("nan")), ("max_batch", 0), ("max_wait_ms", -1)],
)
def test_misuse_of_limits(name, value):
    with pytest.raises(DissensusError, match=f"--{name.replace('_', '-')} must be from .*: try"):
        Limits(**{name: value})


# the document


def test_the_api_is_as_its_document_says(small):
    """Requests that the OpenAPI document allows, and others: no 5xx, and answers of the kinds that it lists."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    chosen, statuses = CHECKS.get_by_names(names), set()
    schema = schemathesis.openapi.from_asgi("/api/schema", api.create(small, Access(["testserver"])))
    operations = [found.ok() for found in schema.get_all_operations()]
    assert sorted(one.path for one in operations) == ["/api/ask", "/api/health", "/api/predict", "/api/ready"]
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=12 if operation.method == "post" else 2, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def run(case) -> None:
            statuses.add(case.call_and_validate(checks=chosen).status_code)

        run()
    assert {200, 422} <= statuses
