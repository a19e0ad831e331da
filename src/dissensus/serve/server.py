"""The server: bind the port first, then create the application, and serve until Ctrl-C or SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from dissensus._core.errors import DissensusError
from dissensus.serve.access import Access
from dissensus.serve.examples import Example
from dissensus.serve.service import Service
from dissensus.serve.settings import Limits

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

EVERYWHERE = ("0.0.0.0", "::", "")
PREFIX, LOCK = "dissensus-serve-", "lock"


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to an address, without listening yet; port 0 picks a free one."""
    if not 0 <= port <= 65535:
        raise DissensusError(f"--port must be within 0..65535; got {port}: try 7860")
    try:
        address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(*address[:3])
    except OSError as error:
        raise DissensusError(
            f"--host must be an address of this machine; got {host!r} ({error.strerror}): try 127.0.0.1"
        ) from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, _exclusive(), 1)
        bound.bind(address[4])
    except OSError as error:
        bound.close()
        raise _not_free(host, port, error) from error
    return bound


def _exclusive() -> int:
    """The option to bind an address that no other server has, at once after one that ended.

    SO_REUSEADDR does that on POSIX; on Windows it would let two servers share an address.
    """
    return getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR)


def _not_free(host: str, port: int, error: OSError) -> DissensusError:
    return DissensusError(
        f"the address must be free; {host}:{port} is not ({error.strerror}): choose another --host or --port"
    )


def serve(
    service: Service,
    examples: Sequence[Example],
    where: socket.socket,
    *,
    access: Access,
    ready: Callable[[], None],
) -> None:
    """Serve on a socket that `bind` returned; call `ready` once the server answers.

    Ends with KeyboardInterrupt or, on SIGTERM, with SystemExit(0): both after the requests that were received are
    answered, within `Limits.max_seconds`.
    """
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that hangs up must not end the server
    signal.signal(signal.SIGTERM, _end)  # uvicorn handles it while it serves, and calls this at last
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with _temporary_folder() as folder, contextlib.closing(service):
        os.environ["GRADIO_TEMP_DIR"] = str(folder)
        import uvicorn

        from dissensus.serve import api, page  # Gradio reads the environment when it is imported

        app = api.create(service, access)
        page.mount(app, page.create(service, examples, service.limits.max_upload_mb), service.limits.max_upload_mb)
        try:
            where.listen(1024)
        except OSError as error:  # another server bound the address too, and was faster
            host, port = where.getsockname()[:2]
            raise _not_free(host, port, error) from error

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                ready()  # from here on an interrupt is handled

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                app.state.stopping = True
                await super().shutdown(sockets)

        Server(config(app, service.limits)).run(sockets=[where])


def config(app: FastAPI, limits: Limits) -> uvicorn.Config:
    """Return how uvicorn serves an application; what clients do wrong is not logged, so that they cannot fill a log."""
    import uvicorn

    from dissensus.serve.connections import Connection

    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(limits.max_seconds) + 1,
    )


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder for uploads, removed at the end; those of servers that were killed are removed now."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):  # gone; in use
            if _is_own(folder) and time.time() - folder.stat().st_mtime > 60:  # a younger one may not be locked yet
                with FileLock(folder / LOCK, timeout=0):
                    pass
                shutil.rmtree(folder)  # after the release: Windows does not remove a file that is held
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, FileLock(Path(name) / LOCK, timeout=0):
        (Path(name) / "uploads").mkdir()
        yield Path(name) / "uploads"


def _is_own(folder: Path) -> bool:
    """Whether this user made a folder; links in it, or in its place, could lead the lock to any other file."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid())
