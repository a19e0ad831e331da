"""Types of ASGI, and answers given before an application sees a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing


async def discard(receive: Receive, most: int) -> None:
    """Receive up to `most` bytes and drop them, so that the client finishes sending and reads the answer."""
    received, more = 0, True
    while more and received < most:
        message = await receive()
        received += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
