"""The processes of --devices: if one dies or freezes, all of them end, with one line.

A process that dies ends the command within `GRACE` seconds. Each process also gives a sign of life every `BEAT` seconds
from a thread of its own, so that one that computes for long is not mistaken for one that is frozen. The first process
watches the others and they watch it. The signs go through the store of the process group, which the first process
holds. A second thread counts its own ticks, not the time: a command that is suspended as a whole (Ctrl-Z) goes on.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lightning_fabric import Fabric

from dissensus._core.durations import duration
from dissensus._core.errors import RunError
from dissensus._core.terminal import say

BEAT = 0.5
GRACE = 5.0  # seconds that the main thread has to notice by itself that another process is gone
SUCCESS, FAILURE, INTERRUPTED = 1, 2, 3  # how a process ended; the last is Ctrl-C
CONNECTION = re.compile(r"gloo|nccl|connection (closed|reset)|broken pipe", re.IGNORECASE)


@contextmanager
def watching(fabric: Fabric, patience: float) -> Iterator[None]:
    """Watch the other processes of the command within the block.

    Args:
        fabric: Lightning Fabric, launched.
        patience: Seconds without a sign of life after which a process counts as frozen.

    Raises:
        RunError: In the process that reports it, if another one has died. With a frozen one, the process ends itself
            and those that it launched: a collective operation that waits for a frozen process cannot be interrupted.
    """
    if fabric.world_size == 1:
        yield
        return
    watch = Watch(fabric, patience)
    try:
        yield
    except BaseException as error:
        line, by_another = watch.reason(error)
        watch.stop(INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILURE)
        if line:
            raise RunError(line) from error
        if by_another:
            raise SystemExit(1) from error
        raise
    watch.stop(SUCCESS)


class Watch:
    """Two threads that watch other processes until `stop`."""

    def __init__(self, fabric: Fabric, patience: float) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        launcher = fabric.strategy.launcher
        self.rank, self.world, self.patience = fabric.global_rank, fabric.world_size, patience
        self.children: list[Any] = list(getattr(launcher, "procs", ()))
        self.silent = dict.fromkeys(range(1, self.world) if self.rank == 0 else [0], 0.0)
        self.gone = dict[int, str]()  # process -> what became of it
        self.ended = dict[int, int]()  # process -> SUCCESS, FAILURE or INTERRUPTED
        self.stopped = threading.Event()
        self.store = PrefixStore("dissensus", _get_default_store().clone())
        here = f"{socket.gethostname()} {{}}"
        if self.rank == 0:
            self.store.set("first", here.format(os.getpid()))
        launched = self.rank > 0 and self.store.get("first").decode() == here.format(os.getppid())
        self.parent = os.getppid() if launched else None  # which this process ends, if it is frozen
        for thread in threading.enumerate():
            if thread.name == "child-process-observer":  # Lightning's, which kills this process without a word
                thread._child_processes = []  # type: ignore[attr-defined]
        self.threads = [threading.Thread(target=each, daemon=True) for each in (self._beat, self._watch)]
        for thread in self.threads:
            thread.start()

    def reason(self, error: BaseException) -> tuple[str, bool]:
        """Return the line to report instead of an error, if any, and whether another process reports what happened."""
        broken = isinstance(error, RuntimeError)  # perhaps a collective operation without its other side
        lost = broken and bool(CONNECTION.search(str(error)))
        if self.rank == 0:
            if broken:
                self._wait(lambda: bool(self.gone), GRACE / 2)
            return (self.line() if self.gone or lost else ""), False
        if broken or isinstance(error, SystemExit):
            self._wait(lambda: 0 in self.gone or 0 in self.ended, GRACE / 2)
        if 0 in self.gone and 0 not in self.ended:
            return (self.line() if self.rank == 1 else ""), True
        return "", lost or (broken and self._first_failed)

    def line(self) -> str:
        """What happened, in one line."""
        rank, how = next(iter(sorted(self.gone.items())), (None, "has ended"))
        which = "one" if rank is None else f"process {rank + 1} of {self.world}"
        return f"all processes of a command must live until its end; {which} {how}: run the same command again"

    def stop(self, how: int) -> None:
        """Stop watching, and tell the others how this process ended; the first waits for those that it launched."""
        with suppress(RuntimeError):  # the store is gone, with the first process
            if 0 not in self.gone:
                self.store.set(f"ended/{self.rank}", str(how))
            if self.rank == 0 and how != SUCCESS:  # the store goes with this process: let the others read it first
                others = [f"ended/{rank}" for rank in range(1, self.world)]
                self._wait(lambda: bool(self.gone) or self.store.check(others), GRACE / 2)
        self.stopped.set()
        for thread in self.threads:
            thread.join(1)
        if how != SUCCESS:
            for child in self.children:
                with suppress(Exception):  # it is killed below
                    child.wait(GRACE)
            self._kill_children()

    @property
    def _first_failed(self) -> bool:
        return self.ended.get(0) in (FAILURE, INTERRUPTED)

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        for _ in range(int(seconds / 0.05)):
            if condition() or self.stopped.wait(0.05):
                return

    def _beat(self) -> None:
        """Give signs of life, and look for those of others."""
        seen = dict.fromkeys(self.silent, 0)
        while not self.stopped.wait(BEAT):
            try:
                self.store.add(f"beat/{self.rank}", 1)
                for rank in self.silent:
                    beats = self.store.add(f"beat/{rank}", 0)
                    if beats != seen[rank]:
                        seen[rank], self.silent[rank] = beats, 0.0
                    if rank not in self.ended and self.store.check([f"ended/{rank}"]):
                        self.ended[rank] = int(self.store.get(f"ended/{rank}"))
            except RuntimeError:
                if self.rank:
                    self.gone.setdefault(0, "has ended")
                else:  # a defect of the store, not of a process
                    self.stopped.set()
                return

    def _watch(self) -> None:
        """End this process if others are gone and the main thread does not end it."""
        since = 0.0
        while not self.stopped.wait(BEAT):
            for rank, child in enumerate(self.children, self.rank + 1):
                if code := child.poll():
                    how = f"was killed by signal {-code}" if code < 0 else f"has ended with code {code}"
                    self.gone.setdefault(rank, how)
            frozen = False
            for rank in self.silent:
                self.silent[rank] += BEAT
                if self.silent[rank] >= self.patience and rank not in self.ended and rank not in self.gone:
                    self.gone[rank] = f"gives no sign of life for {duration(self.patience)}"
                    frozen = True
            failed = self.rank > 0 and self._first_failed
            lost = [rank for rank in self.gone if self.ended.get(rank) != SUCCESS]
            since += BEAT if lost or failed else 0
            if frozen or since >= (GRACE / 2 if failed else GRACE):
                self._end(silent=failed)

    def _end(self, *, silent: bool) -> None:
        if not silent and self.rank == (1 if 0 in self.gone else 0):
            say(f"dissensus: error: {self.line()}")
        self._kill_children()
        if self.parent is not None and not silent and os.getppid() == self.parent:  # the first process, frozen
            os.kill(self.parent, getattr(signal, "SIGKILL", signal.SIGTERM))
        os._exit(0 if silent and self.ended.get(0) == INTERRUPTED else 2)

    def _kill_children(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
