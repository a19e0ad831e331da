"""The JSON API: POST /api/predict and /api/ask, GET /api/health and /api/schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, Literal

from fastapi import FastAPI, File, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus.serve import adapting
from dissensus.serve.service import Service

PREDICT, ASK = "/api/predict", "/api/ask"
WAITING = 256  # requests at once
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Probability(BaseModel):
    """One of the most probable classes."""

    class_name: str = Field(alias="class")
    probability: float


class Part(BaseModel):
    """One of the scores that are combined."""

    score: str = Field(description="its name")
    p_value: float = Field(description="how unusual this score alone is among held-out images")


class Result(BaseModel):
    """One file. If it cannot be read, error says why and the rest is null."""

    path: str = Field(description="the file's name as sent")
    label: int | None = Field(description="predicted class, as a number")
    class_name: str | None = Field(alias="class", description="predicted class, by name")
    confidence: float | None = Field(description="probability of that class")
    score: float | None = Field(description="higher = more out of distribution")
    p_value: float | None = Field(
        description="how unusual the score is among held-out images; null if the run is not calibrated"
    )
    verdict: Literal["out", "nothing unusual"] | None = Field(description="null if the run is not calibrated")
    error: str | None
    votes: list[str] = Field(description="each member's class")
    parts: list[Part] = Field(description="the scores that are combined; empty if there is only one")
    threshold: float | None = Field(description="the score above which the verdict is out")
    top: list[Probability] = Field(description="the most probable classes")


class Answer(BaseModel):
    """What a prediction returns."""

    run: str = Field(description="name of the run folder")
    score: str = Field(description="the score; several are joined by +")
    calibrated: bool
    false_alarms: float | None = Field(description="the rate of these verdicts")
    results: list[Result] = Field(description="one for each file, in order")


class Asked(BaseModel):
    """An image to label."""

    row: int = Field(description="its place among the files, from 0")
    path: str = Field(description="the file's name as sent")
    reason: str = Field(description="how the members vote")


class Unused(BaseModel):
    """A file that is no candidate."""

    path: str
    error: str


class Questions(BaseModel):
    """What to label."""

    run: str = Field(description="name of the run folder")
    questions: list[Asked] = Field(description="most informative first")
    errors: list[Unused] = Field(description="files that cannot be read, and copies of others")


class Error(BaseModel):
    """What is wrong with a request."""

    error: str


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": Answer, "description": "at least one file was read"},
    400: {
        "model": Error,
        "description": "a rate that the calibration does not support, or a request that cannot be parsed",
    },
    411: {"model": Error, "description": "no Content-Length"},
    413: {"model": Error, "description": "too large"},
    422: {"model": Error, "description": "no file, or none that is a readable image"},
    503: {"model": Error, "description": "too many requests are waiting"},
}


def create(service: Service, max_upload: int) -> FastAPI:
    """Create the application, without its page, for requests of up to `max_upload` bytes."""
    app = FastAPI(
        title="Dissensus",
        version=__version__,
        description=f"Predictions of the ensemble {service.name} for images, in uploads of up to {max_upload:,} bytes.",
        openapi_url="/api/schema",
        docs_url=None,  # those pages load scripts from other servers
        redoc_url=None,
    )

    def predict(
        files: Annotated[list[UploadFile], File(description="one or several images")],
        false_alarms: Annotated[
            float | None, Query(description="false-alarm rate instead of the calibrated one, such as 0.01")
        ] = None,
    ) -> JSONResponse:
        """Predict class, score and verdict of every file, in order.

        A single file that is not an image is error 422; among several it is a result with an error.
        """
        answer = service.facts(false_alarms)  # checks the rate before any image is run
        inspections = [service.inspect(file.filename or "", file.file.read()) for file in files]
        answer["results"] = [service.result(one, false_alarms) for one in inspections]
        bad = [one for one in inspections if one.error is not None]
        if len(bad) < len(inspections):
            return JSONResponse(answer)
        if len(bad) == 1:
            return JSONResponse({"error": f"{bad[0].name}: {bad[0].error}"}, 422)
        return JSONResponse({"error": f"none of the {len(bad)} files is a readable image", **answer}, 422)

    def ask(
        files: Annotated[list[UploadFile], File(description="unlabelled images")],
        count: Annotated[int, Query(description="how many to label")] = adapting.COUNT,
    ) -> JSONResponse:
        """Choose the images whose labels tell most about which members are right."""
        if reason := adapting.why_not(service):
            return JSONResponse({"error": reason}, 400)
        pool = adapting.read(service, [(file.filename or "", file.file.read) for file in files])
        asked = [
            {"row": one.row, "path": one.name, "reason": one.reason} for one in adapting.questions(service, pool, count)
        ]
        errors = [{"path": name, "error": why} for name, why in pool.problems]
        return JSONResponse({"run": service.name, "questions": asked, "errors": errors})

    async def health() -> JSONResponse:
        """Return the status and the name of the run."""
        return JSONResponse({"status": "ok", "version": __version__, **service.facts()})

    async def unknown() -> JSONResponse:
        return JSONResponse({"error": f"there are POST {PREDICT} and {ASK}, GET /api/health and /api/schema"}, 404)

    app.add_api_route(PREDICT, predict, methods=["POST"], response_class=JSONResponse, responses=RESPONSES)
    responses = RESPONSES | {200: {"model": Questions, "description": "what to label"}}
    app.add_api_route(ASK, ask, methods=["POST"], response_class=JSONResponse, responses=responses)
    app.add_api_route("/api/health", health, methods=["GET"], response_class=JSONResponse)
    # Before the page, which is mounted at the root and answers everything else.
    app.add_api_route("/api/{rest:path}", unknown, methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
    app.add_exception_handler(DissensusError, _error_response)
    app.add_exception_handler(HTTPException, _error_response)
    app.add_exception_handler(RequestValidationError, _error_response)
    app.add_middleware(Limits, most=max_upload)
    return app


class Limits:
    """Middleware that rejects uploads that are too large, before they are read, or too many at once."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], most: int) -> None:
        self.app, self.most, self.running = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests within the limits."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith("/api/"):
            await self.app(scope, receive, send)
            return
        if (rejection := self._rejection(dict(scope["headers"]).get(b"content-length"))) is not None:
            await _discard(receive, 4 * self.most)
            await rejection(scope, receive, send)
            return
        self.running += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.running -= 1

    def _rejection(self, length: bytes | None) -> JSONResponse | None:
        if length is None:
            return JSONResponse({"error": "an upload must state its size: send Content-Length"}, 411)
        if int(length) > self.most:
            text = (
                f"an upload may have {self.most / 1e6:g} MB; got {int(length) / 1e6:.1f} MB: send fewer images at once"
            )
            return JSONResponse({"error": text}, 413)
        if self.running >= WAITING:
            text = f"{WAITING} uploads are waiting: try again later"
            return JSONResponse({"error": text}, 503, {"Retry-After": "5"})
        return None


async def _discard(receive: Receive, most: int) -> None:
    """Receive up to `most` bytes and drop them, so that the client finishes sending and reads the answer."""
    received, more = 0, True
    while more and received < most:
        message = await receive()
        received += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def _error_response(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = [str(part) for part in first["loc"][1:]]
        rule = "images must be sent as files of a multipart form, in the field files: curl -F files=@cat.jpg"
        text = rule if "files" in where or not where else f"{'.'.join(where)}: {first['msg'].lower()}"
        return JSONResponse({"error": text}, 422)
    return JSONResponse({"error": str(error)}, 400)
