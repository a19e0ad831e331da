"""Connections that cannot be held open: uvicorn's protocol with deadlines for header and body, and a limit."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 512
HEADER = 10.0  # seconds until the header is complete
STEP, STEP_SECONDS = 2**16, 10.0  # bytes of a body that must come in so many seconds
BODY = 300.0  # seconds until the body is complete
Phase = Literal["header", "body", "work"]
PHASES: dict[Any, Phase] = {h11.IDLE: "header", h11.SEND_BODY: "body"}
ANSWER = "HTTP/1.1 {} \r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{}"


class Connection(H11Protocol):
    """A connection to a client.

    It is closed if its header or body comes too slowly. If there are too many, the one that has been sending, idle or
    receiving a stream for the longest time is closed; those whose upload is being predicted never are.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.phase: Phase = "header"
        self.since = self.loop.time()  # the beginning of the phase
        self.step = self.received = 0
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Accept, and make room if there are too many."""
        super().connection_made(transport)
        self._start(HEADER)
        kept = [one for one in self.connections if isinstance(one, Connection) and not one.transport.is_closing()]
        if len(kept) > CONNECTIONS:
            others = [one for one in kept if one is not self and one.replaceable]
            if not others:
                self._refuse("503 Service Unavailable", "too many connections: try again later")
                return
            min(others, key=lambda one: one.since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive, and set the deadline that follows."""
        super().data_received(data)
        self.received += len(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def shutdown(self) -> None:
        """Close, unless a request is being received or predicted; streams are cut."""
        if self.phase == "work" and self.replaceable:
            self.transport.abort()
        else:
            super().shutdown()

    @property
    def replaceable(self) -> bool:
        """Whether nothing is lost that the client could not ask for again."""
        if self.phase != "work" or self.cycle is None:
            return True
        return self.scope["method"] == "GET" and bool(self.cycle.response_started)

    @property
    def _idle(self) -> bool:
        """Whether no request has begun, as of a browser that connects ahead."""
        return self.phase == "header" and not self.conn.trailing_data[0]

    @property
    def _answered(self) -> bool:
        """Whether the request whose body comes has its answer already, such as that it is too large."""
        return self.phase == "body" and self.cycle is not None and bool(self.cycle.response_complete)

    def _follow(self) -> None:
        phase = PHASES.get(self.conn.their_state, "work")
        if phase != self.phase:
            self._stop()
            self.phase, self.since, self.step = phase, self.loop.time(), self.received
        if phase == "work":
            return
        if phase == "body" and self.received - self.step >= STEP:
            self._stop()
            self.step = self.received
        # Between requests uvicorn's own clock runs, until the next byte: of a request, or of a body that was answered
        # before it was complete.
        if self.timer is None and (phase == "body" or self.timeout_keep_alive_task is None):
            left = BODY - (self.loop.time() - self.since)
            self._start(HEADER if phase == "header" else min(STEP_SECONDS, left))

    def _start(self, seconds: float) -> None:
        self.timer = self.loop.call_later(max(0.0, seconds), self._late)

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _late(self) -> None:
        self.timer = None
        if self.flow.read_paused:  # the server is slow, not the client
            self._start(STEP_SECONDS)
        elif self._idle or self._answered:
            self.transport.close()
        else:
            self._refuse("408 Request Timeout", f"the {self.phase} of the request came too slowly")

    def _refuse(self, status: str, text: str) -> None:
        if self.cycle is None or not self.cycle.response_started or self.cycle.response_complete:
            body = f'{{"error":"{text}"}}'
            self.transport.write(ANSWER.format(status, len(body), body).encode())
        self.transport.close()
