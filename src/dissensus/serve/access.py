"""Who may use the server: allowed hosts against DNS rebinding, no requests of other servers' pages, and a token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.requests import cookie_parser

from dissensus._core.errors import DissensusError, short
from dissensus.serve.asgi import SAFE, App, Message, Receive, Scope, Send, discard

LOCAL = ("localhost", "127.0.0.1", "::1")
OPEN = ("/api/health", "/api/ready", "/login")  # without the token
COOKIE = "dissensus_token"
TOKEN = re.compile(r"[!-~]{16,200}")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:[0-9]{1,5})?")
FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Dissensus</title>
<body style="font-family: system-ui, sans-serif; max-width: 30em; margin: 4em auto">
<h1>Dissensus</h1><p>{}</p><form method="post" action="/login">
<label>Token <input type="password" name="token" autocomplete="current-password" autofocus required></label>
<button>Open</button></form></body></html>"""
ASKED = "This page needs the token that the server was started with."


class Access:
    """Decides which requests are answered.

    Args:
        hosts: Names under which the server is reached, besides those of this machine; "*": any. Addresses are allowed
            too, because a page that rebinds a name still sends the name. Pages of these hosts may send requests.
        token: What requests must carry as a bearer token, or the page's visitors enter; None: nothing.
        bound: The host that the server listens on, allowed too.

    Raises:
        DissensusError: If a host is not a name, or the token is short or has other characters.
    """

    def __init__(self, hosts: Iterable[str] = (), token: str | None = None, bound: str = "localhost") -> None:
        self.local = {*LOCAL, bound.lower()}
        self.named = frozenset(host.lower().rstrip(".") for host in hosts)
        for host in self.named - {"*"}:
            if not re.fullmatch(r"[a-z0-9_.-]+|[0-9a-f:]+", host):
                raise DissensusError(
                    f"--allow-host takes names without protocol and port; got {short(host)}: try photos.example.org"
                )
        if token is not None and not TOKEN.fullmatch(token):
            raise DissensusError(
                f"DISSENSUS_TOKEN must have 16 to 200 characters without spaces; got {len(token)} characters: try the "
                'output of python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        self.token = None if token is None else token.encode()
        # Stolen, it opens the page but is not the token.
        self.cookie = b"" if token is None else hmac.digest(token.encode(), b"page", hashlib.sha256).hex().encode()

    def around(self, app: App) -> App:
        """Return the application for allowed requests only."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and (refusal := self._refusal(scope)) is not None:
                if scope["method"] not in SAFE:
                    await discard(receive, 2**20)
                await refusal(scope, receive, send)
            elif scope["type"] in ("http", "lifespan"):
                await app(scope, receive, self._unshared(scope, send))

        return guarded

    def _unshared(self, scope: Scope, send: Send) -> Send:
        """Return `send` without permission for pages of other servers to read the answer, which Gradio may give."""
        headers = _texts(scope.get("headers", ()))
        if "origin" not in headers or self._is_own(headers["origin"], headers.get("host", "")):
            return send

        async def unshared(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(b"access-control-")]
                message = {**message, "headers": kept}
            await send(message)

        return unshared

    def _refusal(self, scope: Scope) -> Response | None:
        headers = _texts(scope["headers"])
        host = headers.get("host", "")
        if not self._is_allowed(host):
            text = f"this server does not answer for the host {short(host)}: start it with --allow-host NAME"
            return _error(400, text)
        if scope["method"] not in SAFE and "origin" in headers and not self._is_own(headers["origin"], host):
            text = f"requests from pages of other servers are rejected; the page is of {short(headers['origin'])}"
            return _error(403, text)
        if self.token is None or scope["path"] in OPEN or self._has_token(headers):
            return None
        if "text/html" in headers.get("accept", "") and scope["method"] in SAFE:
            return HTMLResponse(FORM.format(ASKED), 401)
        text = "a token is needed: send the header Authorization: Bearer TOKEN"
        return _error(401, text, {"WWW-Authenticate": "Bearer"})

    def _is_allowed(self, host: str) -> bool:
        found = HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found[1].strip("[]").rstrip(".")
        return "*" in self.named or name in self.named | self.local or _is_address(name)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page is of this server, or of a host that was named."""
        try:
            parts = urlsplit(origin.lower())
            return parts.netloc == host.lower() or (parts.hostname or "") in self.named
        except ValueError:
            return False

    def _has_token(self, headers: Mapping[str, str]) -> bool:
        assert self.token is not None
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(value.strip().encode(), self.token):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        return hmac.compare_digest(cookie.encode(), self.cookie)

    async def log_in(self, request: Request) -> Response:
        """Set the page's cookie for whoever sends the token."""
        if self.token is None:
            return RedirectResponse("/", 303)
        given = parse_qs((await request.body())[:2000].decode("latin-1")).get("token", [""])[0]
        if not hmac.compare_digest(given.strip().encode(), self.token):
            return HTMLResponse(FORM.format("This is not the token. " + ASKED), 401)
        answer = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, self.cookie.decode(), httponly=True, samesite="strict", secure=secure)
        return answer


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)
