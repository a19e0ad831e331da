"""What is printed: names of files and classes come from others, and must not control the terminal.

A file may be called "\\x1b[2J.jpg", which clears the screen if it is printed as it is. All output goes through
this module.
"""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO

# Control characters (C0, DEL, C1), line separators, and the marks that reverse the order of what follows them.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text as one line, with control characters and bytes that are not UTF-8 written out, except `keep`.

    >>> print(printable("cat\x1b[2J.jpg"))
    cat\x1b[2J.jpg
    """
    if text.isascii() and text.isprintable():
        return text
    text = text.encode("utf-8", "backslashreplace").decode()
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else _written_out(match[0]), text)


def _written_out(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def write_any_text(stream: TextIO | None) -> None:
    """Let a stream write characters that its encoding lacks as escapes; by default it raises, as on Windows' cp1252."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def say(message: str) -> None:
    """Print one line to stderr, since stdout is for results."""
    print(printable(message), file=sys.stderr, flush=True)


def show(text: object, *, end: str = "\n", file: TextIO | None = None) -> None:
    """Print a result of one or more lines to stdout, or to `file`, at once."""
    print(printable(str(text), keep="\t\n"), end=end, file=file, flush=True)
