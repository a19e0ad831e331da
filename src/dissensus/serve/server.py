"""The server: a bound port first, then the application, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence

from dissensus._core.errors import DissensusError
from dissensus.serve.examples import Example
from dissensus.serve.service import Service

EVERYWHERE = ("0.0.0.0", "::", "")


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, not yet listening; port 0 takes a free one."""
    remedy = "choose another --host or --port"
    if not 0 <= port <= 65535:
        raise DissensusError(f"--port must be within 0..65535; got {port}: try 7860")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(*found[:3])
    except OSError as error:
        raise DissensusError(
            f"--host must be an address of this machine; got {host!r} ({error.strerror}): try 127.0.0.1"
        ) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
    except OSError as error:
        made.close()
        raise DissensusError(f"the address must be free; {host}:{port} is not ({error.strerror}): {remedy}") from error
    return made


def serve(
    service: Service,
    examples: Sequence[Example],
    where: socket.socket,
    *,
    max_upload_mb: float,
    ready: Callable[[], None],
) -> None:
    """Answer at that socket until interrupted; what is uploaded goes to a folder that is removed in the end."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a visitor who hangs up must not end the server
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with tempfile.TemporaryDirectory(prefix="dissensus-serve-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        import uvicorn

        from dissensus.serve import api, page  # after the environment, which Gradio reads when it is imported

        app = api.create(service, int(max_upload_mb * 1e6))
        page.mount(app, page.create(service, examples, max_upload_mb), max_upload_mb)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
        where.listen(1024)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                ready()  # not before: an interrupt is handled from here on

        Server(config).run(sockets=[where])
