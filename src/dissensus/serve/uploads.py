"""Limits on what is received: bytes of a body as they come, requests and bytes that wait, room on the disk."""

from __future__ import annotations

import shutil
import tempfile

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dissensus.serve.asgi import SAFE, App, Message, Receive, Scope, Send, discard

WAITING = 256  # requests with a complete body
HELD = 64  # bodies of the largest size, together
PAGE = 25  # files of the largest size in one drop on the page
PAGE_PATH = "/gradio_api/upload"
AGAIN = {"Retry-After": "5", "Connection": "close"}


class Uploads:
    """Counts what requests hold.

    Args:
        most: Bytes of a request; of an upload on the page `PAGE` times as many.
    """

    def __init__(self, most: int) -> None:
        self.most, self.waiting, self.held = most, 0, 0

    @property
    def full(self) -> bool:
        """Whether another upload would be rejected."""
        return self.waiting >= WAITING or self.held > HELD * self.most

    def around(self, app: App) -> App:
        """Return the application behind these limits."""

        async def limited(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["method"] in SAFE:
                await app(scope, receive, send)
                return
            most = {PAGE_PATH: PAGE * self.most, "/login": 10_000}.get(scope["path"], self.most)
            try:
                self._check(dict(scope["headers"]).get(b"content-length", b"0"), most, scope["path"])
            except HTTPException as error:
                await discard(receive, 4 * self.most)
                answer = JSONResponse({"error": error.detail}, error.status_code, error.headers)
                await answer(scope, receive, send)
                return
            await self._counted(app, scope, receive, send, most)

        return limited

    def _check(self, length: bytes, most: int, path: str) -> None:
        """Raise if a body of this length, as its header says, is not accepted."""
        if len(length) > 15 or int(length) > most:
            raise _too_large(most, f"{int(length[:15]) / 1e6:.1f} MB")
        if self.full:
            raise HTTPException(503, "too many uploads are waiting: try again later", AGAIN)
        if path == PAGE_PATH and shutil.disk_usage(tempfile.gettempdir()).free < 2 * most:
            raise HTTPException(503, "there is too little room for uploads: try again later", AGAIN)

    async def _counted(self, app: App, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        received, complete = 0, False

        async def counted() -> Message:
            nonlocal received, complete
            message = await receive()
            if complete:  # that the client leaves
                return message
            size = len(message.get("body", b""))
            received += size
            self.held += size
            if received > most:
                await discard(receive, 4 * self.most)
                raise _too_large(most, "more")
            if message["type"] == "http.request" and not message.get("more_body"):
                complete = True
                self.waiting += 1
            if self.waiting > WAITING or self.held > HELD * self.most:
                raise HTTPException(503, "too many uploads are waiting: try again later", AGAIN)
            return message

        try:
            await app(scope, counted, send)
        finally:
            self.held -= received
            self.waiting -= complete


def _too_large(most: int, got: str) -> HTTPException:
    text = f"an upload may have {most / 1e6:g} MB; got {got}: send fewer images at once"
    return HTTPException(413, text, {"Connection": "close"})
