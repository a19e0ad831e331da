"""Whether a server can be reached: the clients of others would retry for minutes."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

SECONDS = 5


def reachable(url: str) -> bool:
    """Whether a server accepts connections; behind a proxy, which cannot be seen from here, it is assumed to."""
    try:
        address = urlsplit(url)
        host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
        if host in ("localhost", "127.0.0.1", "::1") or not getproxies():
            connect(host, port)
    except (OSError, ValueError):  # ValueError: the URL has no valid host or port
        return False
    return True


def connect(host: str, port: int) -> None:
    """Connect to a server and hang up.

    Raises:
        OSError: If it does not accept connections, or host or port cannot be any.
    """
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except (ValueError, OverflowError) as error:
        raise OSError(f"no such address: {error}") from error


def shown(url: str) -> str:
    """Return scheme, host and port of a URL, which can be printed: the rest may hold a password.

    >>> shown("https://me:secret@example.org:8080/path?key=secret")
    'https://example.org:8080'
    """
    return re.sub(r"^([^:/?#]+://)?(?:[^/?#]*@)?([^/?#]*).*$", r"\1\2", url, flags=re.DOTALL)


def without_credentials(text: str) -> str:
    """Return a text without the credentials of the URLs in it.

    >>> without_credentials("GET https://me:secret@example.org/path failed")
    'GET https://example.org/path failed'
    """
    return re.sub(r"(?<=://)[^/?#\s]*@", "", text)
