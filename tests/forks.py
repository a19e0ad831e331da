"""Commands in processes of their own, without start-up time: one process imports everything, then forks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SERVER = """
import json, multiprocessing.util, os, sys, time, traceback, warnings
import torch
torch.set_num_threads(1)
import torch.distributed
from dissensus import backbones
from dissensus.features import _extract, writer
from dissensus.cli import inputs, main
backbones.create("test_vit", "random", size=32)
warnings.simplefilter("error")
warnings.simplefilter("ignore", ResourceWarning)  # Ctrl-C may come between open() and `with`

def run(ask):
    os.setsid()  # as a shell gives a command a process group of its own
    os.environ.update(ask["env"])
    sys.stdout.flush()
    for number, path in ((0, os.devnull), (1, ask["out"]), (2, ask["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    sys.stdin = open(0, closefd=False)  # the other one has been read
    try:
        exec(ask["first"], {"__name__": "first"})
        return main(ask["argv"])
    except SystemExit as stop:
        return stop.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        multiprocessing.util._exit_function()

print("ready", flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    if "argv" in ask:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = run(ask)
            finally:
                os._exit(code)
        print(pid, flush=True)
    else:
        until, found = time.monotonic() + ask["seconds"], (0, 0)
        while not found[0] and time.monotonic() < until:
            found = os.waitpid(ask["pid"], os.WNOHANG)
            time.sleep(0.002)
        print(os.waitstatus_to_exitcode(found[1]) if found[0] else "alive", flush=True)
"""

# The process ends itself at the so-many-th call of a function, before or after it.
FATAL = """
import os, signal
from pathlib import Path
original, seen = {where}.{name}, []
def fatal(*args, **options):
    seen.append(None)
    if len(seen) == {number} and not {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    result = original(*args, **options)
    if len(seen) == {number}:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
{where}.{name} = fatal
"""


class Command:
    """One command at work; `first` in `Forks.start` is code it runs before, to slow it down or to break it."""

    def __init__(self, forks: Forks, pid: int, out: Path, err: Path) -> None:
        self.forks, self.pid, self._out, self._err = forks, pid, out, err
        self.code: int | None = None

    def wait(self, seconds: float = 60) -> int:
        if self.code is None:
            answer = self.forks.ask({"pid": self.pid, "seconds": seconds})
            assert answer != "alive", self.err
            self.code = int(answer)
        return self.code

    def ended(self) -> bool:
        if self.code is None and (answer := self.forks.ask({"pid": self.pid, "seconds": 0.01})) != "alive":
            self.code = int(answer)
        return self.code is not None

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()


class Forks:
    """The process that forks."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.count = scratch, 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def ask(self, what: dict[str, object]) -> str:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(json.dumps(what), file=self.server.stdin, flush=True)
        return self.server.stdout.readline().strip()

    def start(self, *argv: object, first: str = "", env: dict[str, str] | None = None) -> Command:
        self.count += 1
        out, err = (self.scratch / f"{self.count}.{kind}" for kind in ("out", "err"))
        for path in (out, err):
            path.touch()
        asked = {"argv": [str(a) for a in argv], "first": first, "env": env or {}, "out": str(out), "err": str(err)}
        return Command(self, int(self.ask(asked)), out, err)

    def run(self, *argv: object, first: str = "") -> Command:
        command = self.start(*argv, first=first)
        command.wait()
        return command

    def pair(self, *argv: object, first: str = "") -> list[Command]:
        """Two processes of one command, as torchrun starts them; `first` may look at RANK."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test",
        }  # fmt: skip
        options = ("--devices", 2, "--accelerator", "cpu")
        return [
            self.start(*argv, *options, first=first, env={**shared, "RANK": rank, "LOCAL_RANK": rank})
            for rank in ("0", "1")
        ]

    def close(self) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait(60)
        self.server.stdout.close()


def until(condition, seconds: float = 30) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.002)
