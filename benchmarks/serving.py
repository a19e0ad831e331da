"""The server under load: throughput of shared passes, and thousands of requests, a third of them garbage.

    python -m benchmarks --cases serve
    python -m benchmarks.serving --requests 3000 --clients 32

The server is a process of its own, without the page, on a free port of this machine; so are no others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from benchmarks.images import CLASSES, HEIGHT, WIDTH, _detector
from benchmarks.measure import Bar, Comparison, Sizes, interleave
from dissensus._core import extras
from dissensus._core.errors import DissensusError
from dissensus.functional.expressions import DEFAULT_SCORE

CLIENTS = 32
FORM = b"multipart/form-data; boundary=boundary"
GROWTH = 100e6  # bytes of memory that the second half of the load may add
SECONDS = 120.0  # for the server to start, and for an answer


class Answer(NamedTuple):
    """A response: its status (0: the connection was closed) and how long it took."""

    status: int
    seconds: float


def serve(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare the throughput of 32 clients, one image per pass, with that of shared passes; and its p99 with its mean.

    One image per pass is what a server without a queue does. A single image is run twice in eager mode.
    """
    extras.require("serve", "case serve")
    requests = [_upload(f"{i}.jpg", data) for i, data in enumerate(photographs(CLIENTS))]
    p99, mean = list[float](), list[float]()

    def load(port: int, note: bool) -> float:
        seconds, answers = asyncio.run(together(port, requests * sizes.requests, CLIENTS))
        if wrong := [answer.status for answer in answers if answer.status != 200]:
            raise DissensusError(f"the server must answer every image; got status {wrong[0]}")
        if note:
            times = 1000 * np.array([answer.seconds for answer in answers])
            p99.append(float(np.percentile(times, 99)))
            mean.append(float(times.mean()))
        return seconds

    with running(sizes, 1) as (one, _), running(sizes, CLIENTS) as (many, _):
        first, second = interleave(
            "serve", partial(load, one, False), partial(load, many, True), min(repeats, 5), warm_up=1
        )
    count = len(requests) * sizes.requests
    alone, shared = (tuple(1000 * value / count for value in values) for values in (first, second))
    what = f"{CLIENTS} clients, lite0 at {sizes.pixels} px, {sizes.members} members, one image per pass"
    note = f"{1000 / float(np.median(shared)):.0f} images/s"
    return [
        Comparison("serve", what, "up to 32 images per pass", Bar(">=", 3), alone, shared, note),
        Comparison(
            "serve-p99", "99th percentile of the time of a request, 32 images per pass", "its mean", Bar("<=", 3),
            tuple(p99[-len(second) :]), tuple(mean[-len(second) :]),
        ),
    ]  # fmt: skip


def photographs(count: int) -> list[bytes]:
    """Return different JPEG files of 500 x 375 pixels."""
    generator, files = np.random.default_rng(0), []
    for i in range(count):
        photograph = load_sample_images().images[i % 2]
        top, left = (
            int(generator.integers(extent - size + 1))
            for extent, size in zip(photograph.shape, (HEIGHT, WIDTH), strict=False)
        )
        file = io.BytesIO()
        Image.fromarray(photograph[top : top + HEIGHT, left : left + WIDTH]).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    return files


@contextlib.contextmanager
def running(sizes: Sizes, batch: int, engine: str = "eager") -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own; yield its port and process id."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(sizes, batch, engine, there))
    process.start()
    there.close()
    try:
        if not here.poll(SECONDS):
            raise DissensusError(f"the server must start within {SECONDS:g} s: free some memory")
        try:
            port: int = here.recv()
        except EOFError as error:
            raise DissensusError("the server ended while it started: see its message above") from error
        yield port, process.pid or 0
    finally:
        process.terminate()
        process.join(SECONDS)
        process.kill()


def _serve(sizes: Sizes, batch: int, engine: str, pipe: Connection) -> None:
    import uvicorn

    from dissensus.detection.detector import Detector
    from dissensus.serve import api, server
    from dissensus.serve.service import Service
    from dissensus.serve.settings import Limits

    detector = _detector(sizes, classes=CLASSES, score=DEFAULT_SCORE)
    if engine != "eager":
        threshold, detector = detector.threshold, Detector(detector.ensemble, backbone=detector.backbone, engine=engine)
        detector.threshold = threshold
    where = server.bind("127.0.0.1", 0)
    where.listen(1024)
    service = Service(detector, "benchmark", limits=Limits(max_batch=batch))
    pipe.send(where.getsockname()[1])
    with contextlib.closing(service):
        uvicorn.Server(server.config(api.create(service), service.limits)).run(sockets=[where])


async def together(port: int, requests: Sequence[bytes], clients: int) -> tuple[float, list[Answer]]:
    """Send requests, so many at a time, each on a connection of its own; return the seconds and the answers."""
    left, answers = iter(enumerate(requests)), dict[int, Answer]()

    async def client() -> None:
        for place, request in left:
            answers[place] = await _send(port, request)

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - start, [answers[place] for place in range(len(requests))]


async def _send(port: int, request: bytes) -> Answer:
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        if not request.endswith(b"\0HANG UP"):
            async with asyncio.timeout(SECONDS):
                await writer.drain()
                head = await reader.readline()
                await reader.read()
            return Answer(int(head.split()[1]) if head else 0, time.perf_counter() - start)
    except TimeoutError as error:
        raise DissensusError(
            f"the server must answer and close within {SECONDS:g} s: it held {request[:50]!r}"
        ) from error
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # as after a refusal of a body that is too large
    finally:
        writer.close()
    return Answer(0, time.perf_counter() - start)


def _request(
    body: bytes, *, path: str = "/api/predict", kind: bytes = b"multipart/form-data; boundary=boundary"
) -> bytes:
    head = [
        f"POST {path} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", b"Content-Type: " + kind,
        b"Content-Length: %d" % len(body),
    ]  # fmt: skip
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def _upload(name: str, data: bytes, path: str = "/api/predict") -> bytes:
    head = b'Content-Disposition: form-data; name="files"; filename="%s"\r\n\r\n' % name.encode()
    return _request(b"--boundary\r\n" + head + data + b"\r\n--boundary--\r\n", path=path)


def garbage(seed: int) -> bytes:
    """Return a request that no client should send, one of a dozen kinds."""
    generator = random.Random(seed)
    good = photographs(1)[0] if seed % 12 in (1, 2, 3) else b""
    damaged = bytearray(good)
    for _ in range(20 if good else 0):
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
    chunk = b"%x\r\n%s\r\n" % (2**20, bytes(2**20))
    lie = b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    kinds: list[Callable[[], bytes]] = [
        lambda: _upload("noise.png", generator.randbytes(5000)),
        lambda: _upload("half.jpg", good[: len(good) // 2]),
        lambda: _upload("damaged.jpg", bytes(damaged)),
        lambda: _upload("rate.jpg", good, "/api/predict?false_alarms=1e-310"),
        lambda: _upload("empty.png", b""),
        lambda: _upload("huge.bmp", _header(30000)),
        lambda: _upload("large.bmp", _header(9000)),
        lambda: _request(generator.randbytes(500)),
        lambda: _request(b'{"files": 3}', kind=b"application/json"),
        lambda: lie + chunk * 30 + b"0\r\n\r\n",
        lambda: generator.randbytes(200) + b"\r\n\r\n",
        lambda: _request(b"x" * 1000)[:-500] + b"\0HANG UP",
    ]
    return kinds[seed % len(kinds)]()


def _header(side: int) -> bytes:
    """A BMP file that promises side x side pixels and has few."""
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "BMP")
    data = bytearray(file.getvalue())
    data[18:26] = side.to_bytes(4, "little") * 2
    return bytes(data)


def memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Load a server; return 1 if it fails: 5xx other than 503, an image without an answer, or memory that grows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--pixels", type=int, default=Sizes().pixels, help="height and width for the trunk")
    parser.add_argument("--engine", default="eager")
    options = parser.parse_args(argv)
    extras.require("serve", "this")
    good = [_upload(f"{i}.jpg", data) for i, data in enumerate(photographs(8))]
    requests = [garbage(i // 3) if i % 3 == 2 else good[i % len(good)] for i in range(options.requests)]
    sizes = Sizes(pixels=options.pixels)
    with running(sizes, CLIENTS, options.engine) as (port, pid):
        half = len(requests) // 2
        seconds, answers = asyncio.run(together(port, requests[:half], options.clients))
        before = memory(pid)
        more = asyncio.run(together(port, requests[half:], options.clients))
        after = memory(pid)
    seconds, answers = seconds + more[0], answers + more[1]
    statuses = Counter(answer.status for answer in answers)
    times = 1000 * np.array([answer.seconds for answer in answers if answer.status == 200])
    failed = [status for status in statuses if status >= 500 and status != 503]
    unanswered = [i for i, answer in enumerate(answers) if i % 3 != 2 and answer.status not in (200, 503)]
    record = {
        "requests": len(answers),
        "seconds": round(seconds, 1),
        "statuses": dict(sorted(statuses.items())),
        "p50_ms": round(float(np.percentile(times, 50))) if len(times) else None,
        "p99_ms": round(float(np.percentile(times, 99))) if len(times) else None,
        "memory_mb": [round(before / 1e6), round(after / 1e6)],
    }
    print(json.dumps(record, indent=2))
    return int(bool(failed or unanswered) or after - before > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
