"""The JSON API: POST /api/predict and /api/ask, GET /api/health, /api/ready and /api/schema."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Annotated, Any

from fastapi import FastAPI, File, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from dissensus import __version__
from dissensus._core.errors import DissensusError
from dissensus.images import BadImage, size_of
from dissensus.serve import adapting, schema
from dissensus.serve.access import Access
from dissensus.serve.metrics import Metrics
from dissensus.serve.service import Inspection, Service, Upload
from dissensus.serve.settings import Limits
from dissensus.serve.uploads import Uploads

ROUTES = "POST /api/predict and /api/ask, GET /api/health, /api/ready and /api/schema"
GONE = 499  # nginx's status for a client that left; nobody receives it
Files = Annotated[list[UploadFile], File(description="one or several images")]
Rate = Annotated[
    float | None,
    Query(gt=0, lt=1, allow_inf_nan=False, description="false-alarm rate instead of the calibrated one, such as 0.01"),
]
Count = Annotated[int, Query(ge=1, le=adapting.MOST, description="how many to label")]


def create(service: Service, access: Access | None = None) -> FastAPI:
    """Create the application, without its page; `app.state.stopping` tells it that the server is stopping."""
    limits, access = service.limits, access or Access()
    app = FastAPI(
        title="Dissensus",
        version=__version__,
        description=f"Predictions of the ensemble {service.name} for images, in uploads of up to {limits.upload:,} "
        "bytes.",
        openapi_url="/api/schema",
        docs_url=None,  # those pages load scripts from other servers
        redoc_url=None,
    )
    app.state.stopping = False
    metrics, uploads = Metrics(service), Uploads(limits.upload)

    async def inspect(request: Request, files: Sequence[Upload], **how: Any) -> list[Inspection]:
        jobs = [service.submit(*file, **how) for file in files]
        return await _results(request, jobs, limits.max_seconds)

    async def predict(request: Request, files: Files, false_alarms: Rate = None) -> JSONResponse:
        """Predict class, score and verdict of every file, in order.

        A single file that is not an image is error 422; among several it is a result with an error.
        """
        answer = service.facts(false_alarms)  # checks the rate before any image is run
        given = [_upload(file) for file in files]
        if len(given) > limits.MANY_PIXELS:
            await run_in_threadpool(_check_pixels, limits, given)
        inspections = await inspect(request, given)
        bad = [one for one in inspections if one.error is not None]
        if len(bad) == len(inspections) == 1:
            return JSONResponse({"error": f"{bad[0].name}: {bad[0].error}"}, 422)
        answer["results"] = [service.result(one, false_alarms) for one in inspections]
        if len(bad) < len(inspections):
            return JSONResponse(answer)
        return JSONResponse({"error": f"none of the {len(bad)} files is a readable image", **answer}, 422)

    async def ask(request: Request, files: Files, count: Count = adapting.COUNT) -> JSONResponse:
        """Choose the images whose labels tell most about which members are right."""
        if reason := adapting.why_not(service):
            return JSONResponse({"error": reason}, 400)
        given = [_upload(file) for file in files]
        adapting.check_count(given)
        await run_in_threadpool(_check_pixels, limits, given)
        pool = adapting.pool(await inspect(request, given, observed=False))
        questions = await run_in_threadpool(adapting.questions, service, pool, count)
        asked = [{"row": one.row, "path": one.name, "reason": one.reason} for one in questions]
        errors = [{"path": name, "error": why} for name, why in pool.problems]
        return JSONResponse({"run": service.name, "questions": asked, "errors": errors})

    async def health() -> JSONResponse:
        """Return the status and the name of the run; the process should be started again if this fails."""
        if not service.batcher.alive:
            return JSONResponse({"error": "predictions have stopped: start the server again"}, 503)
        return JSONResponse({"status": "ok", "version": __version__, **service.facts()})

    async def ready() -> JSONResponse:
        """Return whether to send requests here; not while it is stopping or has too much to do."""
        if app.state.stopping:
            return JSONResponse({"error": "the server is stopping"}, 503)
        if uploads.full:
            return JSONResponse({"error": "too many requests are waiting"}, 503)
        return JSONResponse({"status": "ready"})

    async def unknown() -> JSONResponse:
        return JSONResponse({"error": f"there are {ROUTES}"}, 404)

    def add(path: str, function: Callable[..., Any], method: str, responses: schema.Responses) -> None:
        app.add_api_route(path, function, methods=[method], response_class=JSONResponse, responses=responses)

    add("/api/predict", predict, "POST", schema.PREDICT)
    add("/api/ask", ask, "POST", schema.ASK)
    add("/api/health", health, "GET", schema.HEALTH)
    add("/api/ready", ready, "GET", schema.READY)
    app.add_api_route("/metrics", metrics.page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/login", access.log_in, methods=["POST"], include_in_schema=False)
    # Before the page, which is mounted at the root and answers everything else.
    app.add_api_route("/api/{rest:path}", unknown, methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
    app.add_exception_handler(DissensusError, _error_response)
    app.add_exception_handler(HTTPException, _error_response)
    app.add_exception_handler(RequestValidationError, _error_response)
    for guard in (uploads, access, metrics):  # the last one is the first to see a request
        app.add_middleware(guard.around)
    return app


async def _results(request: Request, jobs: Sequence[Future[Inspection]], seconds: float) -> list[Inspection]:
    """Return the results of jobs; what has not begun is cancelled if the client leaves or the time is over."""
    futures = [asyncio.wrap_future(job) for job in jobs]
    everything, gone = asyncio.ensure_future(asyncio.wait(futures)), asyncio.ensure_future(_gone(request))
    try:
        both: set[asyncio.Future[Any]] = {everything, gone}
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if everything in done:
            return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        everything.cancel()
        gone.cancel()
    if done:
        raise HTTPException(GONE, "the client left")
    text = f"a request may take {seconds:g} s; this one took longer: send fewer or smaller images, or try again later"
    raise HTTPException(503, text, {"Retry-After": "5"})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _upload(file: UploadFile) -> Upload:
    def content() -> bytes:
        file.file.seek(0)
        return file.file.read()

    # A charset that the client chooses may decode to halves of characters, which JSON cannot hold.
    return (file.filename or "").encode(errors="replace").decode(), content


def _check_pixels(limits: Limits, uploads: Sequence[Upload]) -> None:
    """Raise if the images of one request have too many pixels together, from their headers alone."""
    most, total = limits.MANY_PIXELS * limits.pixels, 0
    for _, content in uploads:
        with contextlib.suppress(BadImage):  # which is not decoded
            width, height = size_of(content(), limits.pixels)
            total += width * height
    if total > most:
        raise HTTPException(
            413,
            f"the images of a request may have {most / 1e6:.3g} million pixels together; these have "
            f"{total / 1e6:.3g} million: send fewer at once",
        )


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
