"""Connections over a socket: deadlines, room for newcomers, and what a stop waits for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from dissensus.serve import connections, server
from dissensus.serve.settings import Limits

HEAD = b"POST /work HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class App:
    """Answers GET at once, streams GET /stream without end, refuses /refused unread, and answers POST when it may."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.working = threading.Event()

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/refused":
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/stream":
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await receive()
            return
        if scope["method"] == "POST":
            self.working.set()
            await self.go.wait()
        await send({"type": "http.response.body", "body": b"done"})


class Running:
    def __init__(self) -> None:
        self.app = App()
        self.clients: list[socket.socket] = []
        self.socket = server.bind("127.0.0.1", 0)
        self.socket.listen()
        self.port = self.socket.getsockname()[1]
        self.server = uvicorn.Server(server.config(self.app, Limits(max_seconds=5)))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    def connect(self, data: bytes) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        self.clients.append(client)
        client.sendall(data)
        return client

    def release(self) -> None:
        """Let the app answer POST."""
        connection = next(iter(self.server.server_state.connections))
        connection.loop.call_soon_threadsafe(self.app.go.set)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive()


def read(client: socket.socket, until: bytes = b"\0") -> bytes:
    """Everything up to a word, or until the server closes; b"" if it was aborted."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while until not in data and (part := client.recv(65536)):
            data += part
    return data


@pytest.fixture
def running(monkeypatch):
    monkeypatch.setattr(connections, "HEADER", 0.3)
    monkeypatch.setattr(connections, "STEP_SECONDS", 0.3)
    made = Running()
    yield made
    for client in made.clients:
        client.close()
    made.server.force_exit = True
    made.stop()


def test_slow_headers_and_bodies_are_ended(running):
    slow = {b"header": running.connect(b"POST / HTTP/1.1\r\nHost: lo"), b"body": running.connect(HEAD + b"\r\nabc")}
    silent = running.connect(b"")
    for part, client in slow.items():
        answer = read(client)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the %s of the request came too slowly" % part in answer
    assert read(silent) == b""


@pytest.mark.parametrize("rest", [50_000, 100_000])
def test_a_body_that_ends_after_the_answer_does_not_hold_the_connection(rest, running):
    client = running.connect(HEAD.replace(b"/work", b"/refused") + b"\r\n")
    assert b"413" in client.recv(65536)
    client.sendall(bytes(rest))  # a part of the body, or all of it
    assert read(client) == b""
    running.app.go.set()
    assert b"done" in read(running.connect(GET))


def test_drops_of_a_body_do_not_extend_the_deadline_but_progress_does(running, monkeypatch):
    client = running.connect(HEAD + b"\r\n")
    started = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - started < 3:
            client.sendall(b"x")
            time.sleep(0.02)
    assert time.monotonic() - started < 2
    monkeypatch.setattr(connections, "STEP", 10)
    client = running.connect(HEAD + b"\r\n")
    for _ in range(10):
        client.sendall(bytes(10_000))
        time.sleep(0.05)
    assert running.app.working.wait(5)


def test_a_second_request_has_a_deadline_too(running):
    client = running.connect(GET.replace(b"Connection: close\r\n", b""))
    assert b"done" in read(client, b"done")
    client.sendall(b"GET / HT")
    assert b" 408 " in read(client)


def test_newcomers_are_served_when_slow_ones_hold_every_connection(running, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS", 5)
    monkeypatch.setattr(connections, "HEADER", 30.0)
    working = running.connect(HEAD.replace(b"100000", b"0") + b"\r\n")
    assert running.app.working.wait(5)
    for data in [GET.replace(b"/", b"/stream", 1)] * 2 + [b"GET / HT"] * 20:
        running.connect(data)
    for _ in range(3):
        assert b"done" in read(running.connect(GET))
    assert len(running.server.server_state.connections) <= 6
    running.release()
    assert b"done" in read(working, b"done")


def test_newcomers_are_told_when_all_are_at_work(running, monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS", 2)
    clients = [running.connect(HEAD.replace(b"100000", b"0") + b"\r\n") for _ in range(2)]
    while len(running.server.server_state.tasks) < 2:
        time.sleep(0.01)
    assert read(running.connect(GET)).startswith(b"HTTP/1.1 503 ")
    running.release()
    assert all(b"done" in read(client, b"done") for client in clients)


def test_malformed_forms_are_not_logged(running):
    import logging

    assert not logging.getLogger("python_multipart.multipart").isEnabledFor(logging.WARNING)
    assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)


def test_a_stop_finishes_requests_and_cuts_streams(running):
    stream = running.connect(GET.replace(b"/", b"/stream", 1))
    assert b"x" in read(stream, b"x")
    working = running.connect(HEAD.replace(b"100000", b"0") + b"\r\n")
    assert running.app.working.wait(5)
    running.server.should_exit = True
    read(stream)  # closed, although the other is not finished
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", running.port), timeout=1)
    running.release()
    assert b"done" in read(working, b"done")
    running.thread.join(5)
    assert not running.thread.is_alive()
