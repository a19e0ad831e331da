"""The command line: one file per command, whose function's signature is the flags and whose docstring is the help.

Results go to stdout or --out, messages and progress to stderr. A user's mistake is one line and exit code 2.
Heavy imports stay inside the functions, so that --help does not wait for PyTorch.
"""

from __future__ import annotations

import errno
import importlib
import os
import select
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from dissensus._core import digests
from dissensus._core.errors import DissensusError, DissensusWarning
from dissensus._core.places import is_url, storage_problem
from dissensus._core.terminal import write_any_text
from dissensus.cli import parser
from dissensus.cli.command import COMMANDS, HELD, fail, show_warnings_in_one_line

__all__ = ["COMMANDS", "main"]

# Importing them fills COMMANDS, in the order in which --help shows them.
for _module in (
    "demo", "run", "extract", "merge", "train", "tune", "join", "evaluate", "calibrate", "predict", "watch", "ask",
    "adapt", "export", "serve", "study", "report", "suite", "lists",
):  # fmt: skip
    importlib.import_module(f"dissensus.cli.{_module}")

READER_GONE = 128 + 13  # as programs end that SIGPIPE kills; Windows has no such signal
RESUMABLE = ("demo", "extract", "run", "study", "train", "tune")
# Errors of the system about a path or a disk, which the user can fix.
OF_THE_USER = {
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO,
    errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    name = ""
    write_any_text(sys.stdout)
    try:
        name, arguments, verify = parser.parse(sys.argv[1:] if argv is None else argv)
        with warnings.catch_warnings(), digests.unverified(not verify), HELD:
            warnings.simplefilter("always", DissensusWarning)  # of several methods, each has its own
            show_warnings_in_one_line()
            COMMANDS[name].function(**arguments)
    except DissensusError as error:
        fail(str(error))
    except KeyboardInterrupt:
        hint = "; the same command goes on from here" if name in RESUMABLE else ""
        print(f"\ndissensus: stopped{hint}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        return READER_GONE
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        fail("there is too little memory for this: use fewer members, a smaller batch or a smaller tail")
    except Exception as error:
        problem = None if isinstance(error, OSError) and error.errno in OF_THE_USER else storage_problem(error)
        if problem is not None and _uses_urls(sys.argv[1:] if argv is None else argv):
            fail(f"cannot use a URL of this command: {problem}; check the URL, your credentials and the network")
        if not isinstance(error, OSError) or error.errno not in OF_THE_USER:
            if getattr(error, "errno", None) == errno.EINVAL and _reader_is_gone():  # a broken pipe on Windows
                return READER_GONE
            raise
        fail(f"{error.strerror}: {error.filename or 'a file'}; check the path, its rights and the space left")
    return 0


def _reader_is_gone() -> bool:
    """Whether the program that reads stdout, such as `head`, has ended; the rest of the output is then dropped.

    The signal SIGPIPE is not used for this: it would also kill a command whose connection to a server is closed.
    """
    stdout = sys.__stdout__
    if stdout is None:
        return False
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(stdout.fileno(), 0)  # errors are always reported
        gone = bool(poll.poll(0))
    else:
        gone = _cannot_write(stdout)
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
    return gone


def _cannot_write(stream: TextIO) -> bool:
    """Whether writing what a stream still holds fails; Windows cannot ask a pipe for its state."""
    try:
        stream.flush()
    except OSError:
        return True
    return False


def _uses_urls(argv: Sequence[str]) -> bool:
    return any(is_url(argument) for argument in argv)
