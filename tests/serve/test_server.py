"""The command and the API: what they answer, what they reject, how they bear a crowd."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dissensus import Ensemble, fit
from dissensus._core.errors import DissensusError
from dissensus.cli import main
from tests.conftest import blobs, linear
from tests.serve.conftest import BAD, Server, needs_gradio


def refusal(capsys, *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["serve", *map(str, arguments)])
    assert stopped.value.code == 2
    *warnings, line = capsys.readouterr().err.splitlines()
    assert all(warning.startswith("dissensus: warning: ") for warning in warnings), warnings
    return line


def test_without_gradio_one_line(capsys, monkeypatch, place):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install '.[serve]'" in refusal(capsys, place / "run")


@needs_gradio
def test_refusals(capsys, place, tmp_path, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"127.0.0.1:{port} is not (Address already in use)" in refusal(capsys, place / "run", "--port", port)
    assert "--port must be within" in refusal(capsys, place / "run", "--port", 70000)
    assert "--host must be an address" in refusal(capsys, place / "run", "--host", "nowhere.invalid")
    assert "no such folder" in refusal(capsys, tmp_path / "none", "--port", 0)
    assert "--max-upload-mb" in refusal(capsys, place / "run", "--max-upload-mb", 0)
    assert "--allow-host takes names" in refusal(capsys, place / "run", "--allow-host", "http://a.example")
    with monkeypatch.context() as patched:
        patched.setenv("DISSENSUS_TOKEN", "short")
        assert "DISSENSUS_TOKEN must have 16 to 200 characters" in refusal(capsys, place / "run", "--port", 0)
    held_out = place / "held-out"
    assert "--train must be the features" in refusal(capsys, place / "run", "--port", 0, "--train", held_out)
    shutil.copytree(place / "run", tmp_path / "no-knn")
    ensemble = Ensemble.load(place / "run" / "ensemble")
    del ensemble.fitted["knn"]
    ensemble.save(tmp_path / "no-knn" / "ensemble")
    refused = refusal(capsys, tmp_path / "no-knn", "--port", 0, "--images", place)
    assert "this run has no fitted score knn and --train is not given" in refused
    fit(linear(), blobs(), "deep-ensemble", epochs=1, out=tmp_path / "features-only", progress=False)
    assert "images need a trunk" in refusal(capsys, tmp_path / "features-only", "--port", 0)


@needs_gradio
def test_of_two_servers_that_start_together_the_second_is_told(service, monkeypatch):
    """Both bind before one listens."""
    from dissensus.serve import page, server
    from dissensus.serve.access import Access

    monkeypatch.setattr(page, "create", lambda *about: None)
    monkeypatch.setattr(page, "mount", lambda *about: None)
    with server.bind("127.0.0.1", 0) as one, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(one.getsockname())
        other.listen()
        port = one.getsockname()[1]
        before = [signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGTERM)]
        try:
            with pytest.raises(DissensusError, match=rf"127\.0\.0\.1:{port} is not \(Address already in use\)"):
                server.serve(Unclosed(service), (), one, access=Access(), ready=None)
        finally:
            for number, handler in zip((signal.SIGPIPE, signal.SIGTERM), before, strict=True):
                signal.signal(number, handler)


class Unclosed:
    """A service that is used after the server ends."""

    def __init__(self, service) -> None:
        self.service = service

    def __getattr__(self, name: str):
        return (lambda: None) if name == "close" else getattr(self.service, name)


def test_only_own_folders_are_cleaned_and_no_link_is_followed(tmp_path, monkeypatch):
    from dissensus.serve import server

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old, documents, theirs = (
        tmp_path / name for name in (f"{server.PREFIX}old", "documents", f"{server.PREFIX}theirs")
    )
    for folder in (old, documents, theirs):
        folder.mkdir()
        os.utime(folder, (0, 0))
    (tmp_path / f"{server.PREFIX}link").symlink_to(documents)
    lstat = Path.lstat

    def another_user(path):
        return os.stat_result([*lstat(path)[:4], 12345, *lstat(path)[5:]]) if path == theirs else lstat(path)

    monkeypatch.setattr(Path, "lstat", another_user)
    with server._temporary_folder() as folder:
        assert folder.is_dir()
        assert not old.exists()
    assert [*documents.iterdir(), *theirs.iterdir()] == []
    assert theirs.exists()
    assert not folder.exists()


def ask(url: str, *files: tuple[str, bytes], **query: object) -> tuple[int, dict]:
    import httpx

    found = httpx.post(f"{url}/api/predict", files=[("files", file) for file in files], params=query, timeout=60)
    return found.status_code, found.json()


def fits(value: object, schema: dict, parts: dict) -> bool:
    """Whether a value follows a JSON schema of the few kinds used here."""
    if "$ref" in schema:
        return fits(value, parts[schema["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in schema:
        return any(fits(value, one, parts) for one in schema["anyOf"])
    kinds = {"string": str, "integer": int, "number": int | float, "boolean": bool, "array": list, "object": dict}
    if not isinstance(value, (kinds | {"null": type(None)})[schema["type"]]) or value not in schema.get(
        "enum", [value]
    ):
        return False
    if isinstance(value, dict):
        same = set(value) == set(schema["required"])
        return same and all(fits(v, schema["properties"][k], parts) for k, v in value.items())
    return all(fits(v, schema["items"], parts) for v in value) if isinstance(value, list) else True


@needs_gradio
def test_api_says_what_the_detector_says_and_what_its_schema_says(server, service, place):
    import httpx

    files = [(name, (place / name).read_bytes()) for name in ("digit.png", "photo.png", "paper.png")]
    status, answer = ask(server.url, *files)
    assert status == 200
    expected = [service.result(service.inspect(*file)) for file in files]
    for found, wanted in zip(answer["results"], expected, strict=True):
        assert found["score"] == (None if wanted["score"] is None else pytest.approx(wanted["score"], abs=1e-4))
        same = ("path", "label", "class", "p_value", "verdict", "error", "votes")
        assert {key: found[key] for key in same} == {key: wanted[key] for key in same}
    assert [r["verdict"] for r in answer["results"]] == ["nothing unusual", "out", None]

    document = httpx.get(f"{server.url}/api/schema").json()
    described = document["paths"]["/api/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert fits(answer, described, document["components"]["schemas"])
    assert not fits({**answer, "score": None}, described, document["components"]["schemas"])
    health = httpx.get(f"{server.url}/api/health").json()
    assert health["status"] == "ok"
    assert (health["run"], health["calibrated"], health["false_alarms"]) == ("run", True, 0.05)


@needs_gradio
def test_api_at_another_rate(server, place):
    file = ("digit.png", (place / "digit.png").read_bytes())
    p_value = ask(server.url, file)[1]["results"][0]["p_value"]
    assert ask(server.url, file, false_alarms=min(0.99, p_value + 0.001))[1]["results"][0]["verdict"] == "out"
    assert ask(server.url, file, false_alarms=0.01)[1]["false_alarms"] == 0.01
    for rate, text in ((0.0001, "needs 9999 calibration samples"), (2, "less than 1"), ("much", "valid number")):
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
        (httpx.post(target, content=iter([b"x"])), 422),
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

    events = httpx.get(f"{server.url}/config").json()["dependencies"]
    upload = next(event["id"] for event in events if any(kind == "upload" for _, kind in event["targets"]))
    for number, path in enumerate((str(place / "digit.png"), "https://example.com/cat.png")):
        data = [{"path": path, "meta": {"_type": "gradio.FileData"}}, 5]
        request = {"data": data, "fn_index": upload, "session_hash": f"thief{number}"}
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
    killed = tmp_path / "dissensus-serve-killed"
    killed.mkdir()
    os.utime(killed, (0, 0))
    made = Server(place / "plain", "--host", "0.0.0.0")
    assert not killed.exists()
    (folder,) = tmp_path.glob("dissensus-serve-*")
    assert made.url.startswith("http://localhost:")
    status, answer = ask(made.url, ("digit.png", (place / "digit.png").read_bytes()))
    assert (status, answer["calibrated"], answer["results"][0]["verdict"]) == (200, False, None)
    assert ask(made.url, ("a.png", b""), false_alarms=0.1)[0] == 400
    many = [(f"{i}.png", (place / "digit.png").read_bytes()) for i in range(100)]
    with ThreadPoolExecutor() as pool:
        last = pool.submit(ask, made.url, *many)
        while made.waiting() == 0 and not last.done():
            time.sleep(0.01)
        said = made.stop(signal.SIGTERM, 0)
        status, answer = last.result()
    assert (status, len(answer["results"])) == (200, 100)  # what was received is answered
    assert "not calibrated" in said
    assert "WARNING: listening on every address of this machine" in said
    assert "Traceback" not in said
    assert not folder.exists()


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
