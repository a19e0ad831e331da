"""The server: bind the port first, then create the application, and serve until Ctrl-C."""

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
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address[4])
    except OSError as error:
        bound.close()
        raise DissensusError(
            f"the address must be free; {host}:{port} is not ({error.strerror}): choose another --host or --port"
        ) from error
    return bound


def serve(
    service: Service,
    examples: Sequence[Example],
    where: socket.socket,
    *,
    max_upload_mb: float,
    ready: Callable[[], None],
) -> None:
    """Serve on a socket that `bind` returned until interrupted; call `ready` once the server answers."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that hangs up must not end the server
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    with tempfile.TemporaryDirectory(prefix="dissensus-serve-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        import uvicorn

        from dissensus.serve import api, page  # Gradio reads the environment when it is imported

        app = api.create(service, int(max_upload_mb * 1e6))
        page.mount(app, page.create(service, examples, max_upload_mb), max_upload_mb)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
        where.listen(1024)

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                ready()  # from here on an interrupt is handled

        Server(config).run(sockets=[where])
