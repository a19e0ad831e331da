"""Whether a server can be reached: the clients of others would retry for minutes."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

SECONDS = 5


def reachable(url: str) -> bool:
    """Whether a server accepts connections; behind a proxy, which cannot be seen from here, it is assumed to."""
    address = urlsplit(url)
    local = address.hostname in ("localhost", "127.0.0.1", "::1")
    if getproxies() and not local:
        return True
    try:
        socket.create_connection(
            (address.hostname or "", address.port or (80 if address.scheme == "http" else 443)), timeout=SECONDS
        ).close()
    except OSError:
        return False
    return True
