"""The JSON API: POST /api/predict, GET /api/health, GET /api/schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any

from fastapi import FastAPI, File, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus.serve.results import ANSWER, ERROR, facts, result
from dissensus.serve.service import Service

PREDICT = "/api/predict"
WAITING = 256  # requests that may be under way at once
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def create(service: Service, max_upload: int) -> FastAPI:
    """The application without its page; a request may bring `max_upload` bytes."""
    app = FastAPI(
        title="Dissensus",
        version=__version__,
        description=f"What the ensemble {service.name} says of images, in uploads of up to {max_upload:,} bytes.",
        openapi_url="/api/schema",
        docs_url=None,  # those pages fetch their scripts from elsewhere
        redoc_url=None,
    )

    def predict(
        files: Annotated[list[UploadFile], File(description="one image or several")],
        false_alarms: Annotated[
            float | None, Query(description="rate instead of the calibrated one, such as 0.01")
        ] = None,
    ) -> JSONResponse:
        """Class, score and verdict of every file, in order.

        One file that is no image is an error of 422; among several it is a result with an error.
        """
        answer = facts(service, false_alarms)  # refuses a rate before anything is run
        seen = [service.see(file.filename or "", file.file.read()) for file in files]
        answer["results"] = [result(service, one, false_alarms) for one in seen]
        bad = [one for one in seen if one.error is not None]
        if len(bad) < len(seen):
            return JSONResponse(answer)
        of = f"{bad[0].name}: {bad[0].error}" if len(bad) == 1 else f"none of the {len(bad)} files is a readable image"
        return JSONResponse({"error": of, **(answer if len(bad) > 1 else {})}, 422)

    async def health() -> JSONResponse:
        """Whether it answers, and for which run."""
        return JSONResponse({"status": "ok", "version": __version__, **facts(service)})

    async def unknown() -> JSONResponse:
        return JSONResponse({"error": f"there are POST {PREDICT}, GET /api/health and GET /api/schema"}, 404)

    app.add_api_route(PREDICT, predict, methods=["POST"], response_class=JSONResponse, responses=_documented())
    app.add_api_route("/api/health", health, methods=["GET"], response_class=JSONResponse)
    # before the page, which is mounted at the root and takes the rest
    app.add_api_route("/api/{rest:path}", unknown, methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
    app.add_exception_handler(DissensusError, _refuse)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse)
    app.add_middleware(Limits, most=max_upload)
    return app


class Limits:
    """Refuses what is too large before it is read, and what comes while too many are waiting."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], most: int) -> None:
        self.app, self.most, self.under_way = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is within the limits."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith("/api/"):
            await self.app(scope, receive, send)
            return
        if (refused := self._refused(dict(scope["headers"]).get(b"content-length"))) is not None:
            await _discard(receive, 4 * self.most)
            await refused(scope, receive, send)
            return
        self.under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.under_way -= 1

    def _refused(self, length: bytes | None) -> JSONResponse | None:
        if length is None:
            return JSONResponse({"error": "an upload must say its size: send Content-Length"}, 411)
        if int(length) > self.most:
            text = (
                f"an upload may have {self.most / 1e6:g} MB; this one has {int(length) / 1e6:.1f}: send less at a time"
            )
            return JSONResponse({"error": text}, 413)
        if self.under_way >= WAITING:
            text = f"{WAITING} uploads are waiting already: try again later"
            return JSONResponse({"error": text}, 503, {"Retry-After": "5"})
        return None


async def _discard(receive: Receive, most: int) -> None:
    """Take what is being sent, so that the sender comes to read the answer; not for ever."""
    taken, more = 0, True
    while more and taken < most:
        message = await receive()
        taken += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = [str(part) for part in first["loc"][1:]]
        wanted = "images must come as files of a multipart form, in its field files: curl -F files=@cat.jpg"
        text = wanted if "files" in where or not where else f"{'.'.join(where)}: {first['msg'].lower()}"
        return JSONResponse({"error": text}, 422)
    return JSONResponse({"error": str(error)}, 400)


def _documented() -> dict[int | str, dict[str, Any]]:
    def body(text: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": text, "content": {"application/json": {"schema": schema}}}

    return {
        200: body("at least one file was read", ANSWER),
        400: body("a rate that the calibration does not support, or a request that cannot be parsed", ERROR),
        411: body("no Content-Length", ERROR),
        413: body("too large", ERROR),
        422: body("no file, or none that is a readable image", ERROR),
        503: body("too many are waiting", ERROR),
    }
