"""Measure two sides in turn and report the median of their paired ratios.

An absolute time says little on a shared machine. Two times measured one after the other see the same machine, so
repeat i gives a ratio a_i / b_i; the median of these ratios and their quartiles are reported.

Each side runs in its own process, as it would in use. In a shared process one side would reuse memory that the other
has freed and so avoid page faults, and the ratio would depend on the order.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from dissensus._core.errors import DissensusError

WARM_UP = 3  # runs of each side before timing starts
PAUSE_SECONDS = 0.02  # between runs, because threads of the other side may still be spinning
END_SECONDS = 5.0  # for the process of a side to clean up


@dataclass(frozen=True)
class Sizes:
    """Sizes used by the cases; the defaults are those of the paper's ImageNet experiments."""

    features: int = 768
    classes: int = 1000
    batch: int = 256
    members: int = 5
    many: int = 50  # members of a large ensemble
    active: int = 2
    fit_batches: int = 20  # batches per epoch where whole fits are compared
    rows: int = 1_281_167  # training samples of the memory case, as many as ImageNet has
    huge_shards: int = 1526  # of 65,536 rows each: 1e8 rows
    disk_rows: int = 3_000_000  # training samples of the shuffle case: 4.6 GB, more than a run touches
    images: int = 768  # images per extraction: enough to make the start of the reading processes negligible
    requests: int = 8  # of each client of the serve case, per repeat
    pixels: int = 224  # image height and width
    image_batch: int = 64
    compiler: str = "inductor"  # of torch.compile
    job_rows: int = 5000  # training samples of a whole job
    job_classes: int = 50
    job_passes: int | None = None  # over the training samples, per member; None: as many as `fit` makes


QUICK = Sizes(
    features=32, classes=20, batch=256, many=10, fit_batches=3, rows=20_000, disk_rows=20_000, huge_shards=3, images=16,
    requests=1, pixels=64, image_batch=8, compiler="aot_eager", job_rows=300, job_classes=3, job_passes=20,
)  # fmt: skip


class Side(NamedTuple):
    """One of the two sides of a comparison.

    Attributes:
        description: what it runs.
        make: returns the function to time. It is called in the side's own process, so it must be picklable.
        steps: training steps, or images, per run.
        burst: runs timed as one. In training one step follows another while the threads are awake.
    """

    description: str
    make: Callable[[], Callable[[], object]]
    steps: int = 1
    burst: int = 5


class Bar(NamedTuple):
    """The value that a result should reach."""

    sign: str  # "<=", ">=", "<" or ">"
    limit: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}{self.unit}"

    def met(self, value: float) -> bool:
        """Return whether `value` reaches the bar."""
        below, above = value < self.limit, value > self.limit
        return {"<": below, ">": above, "<=": not above, ">=": not below}[self.sign]


class Result(Protocol):
    """A result: one row of the table, one object of the JSON."""

    @property
    def name(self) -> str:
        """The name of the row."""

    @property
    def description(self) -> str:
        """What was measured."""

    def record(self) -> dict[str, Any]:
        """Return the result as plain values, rounded."""

    def row(self) -> list[str]:
        """Return the cells of the table: name, value, bar, whether the bar is met, and time."""


@dataclass(frozen=True)
class Comparison:
    """Times of two sides that ran in turn: element i of both belongs to repeat i.

    `note` is what else to report of the two sides, such as their accuracy.
    """

    name: str
    numerator: str
    denominator: str
    bar: Bar
    numerator_ms: tuple[float, ...]
    denominator_ms: tuple[float, ...]
    note: str = ""

    @property
    def ratios(self) -> NDArray[np.float64]:
        """The ratio of each repeat, (repeats,)."""
        return np.divide(self.numerator_ms, self.denominator_ms)

    @property
    def ratio(self) -> float:
        """The median of the paired ratios."""
        return float(np.percentile(self.ratios, 50))

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and upper quartile of the paired ratios."""
        low, high = np.percentile(self.ratios, [25, 75])
        return float(low), float(high)

    @property
    def description(self) -> str:
        """What is divided by what."""
        return f"{self.numerator} / {self.denominator}"

    def record(self) -> dict[str, Any]:
        """Return the comparison as plain values, rounded."""
        return {
            "name": self.name,
            "ratio": round(self.ratio, 3),
            "numerator": self.numerator,
            "denominator": self.denominator,
            "bar": str(self.bar),
            "met": self.bar.met(self.ratio),
            "numerator_ms": round(float(np.median(self.numerator_ms)), 3),
            "denominator_ms": round(float(np.median(self.denominator_ms)), 3),
            "repeats": len(self.numerator_ms),
            "ratio_quartiles": [round(value, 3) for value in self.quartiles],
            **({"note": self.note} if self.note else {}),
        }

    def row(self) -> list[str]:
        """Return the cells of the table; the times are the median of each side."""
        low, high = self.quartiles
        value = f"{self.ratio:.2f} [{low:.2f}, {high:.2f}]"
        times = " / ".join(f"{np.median(side):,.1f}" for side in (self.numerator_ms, self.denominator_ms))
        return [
            self.name,
            value,
            str(self.bar),
            "yes" if self.bar.met(self.ratio) else "no",
            ", ".join(filter(None, [f"{times} ms", self.note])),
        ]


def compare(
    name: str, numerator: Side, denominator: Side, bar: Bar, repeats: int, warm_up: int = WARM_UP
) -> Comparison:
    """Run both sides in turn, each in its own process, and return their times in milliseconds per step."""
    with _process(numerator) as one, _process(denominator) as other:
        seconds = interleave(name, one, other, repeats, warm_up)
    numerator_ms, denominator_ms = (
        tuple(1000 * value / (side.steps * side.burst) for value in values)
        for side, values in zip((numerator, denominator), seconds, strict=True)
    )
    return Comparison(name, numerator.description, denominator.description, bar, numerator_ms, denominator_ms)


def interleave(
    name: str, one: Callable[[], float], other: Callable[[], float], repeats: int, warm_up: int = WARM_UP
) -> tuple[list[float], list[float]]:
    """Call two functions in turn and return what each returned in every repeat after the warm-up.

    Which of the two goes first alternates, so that neither gains from its place.
    """
    values: tuple[list[float], list[float]] = [], []
    rounds = tqdm(range(-warm_up, repeats), desc=name, unit="repeat", leave=False, disable=None, dynamic_ncols=True)
    for repeat in rounds:
        for side in (0, 1) if repeat % 2 else (1, 0):
            value = (one, other)[side]()
            if repeat >= 0:
                values[side].append(value)
    return values


@contextlib.contextmanager
def _process(side: Side) -> Iterator[Callable[[], float]]:
    """Start a process for a side; yield a function that runs one burst there and returns its seconds."""
    # The fork server has imported everything but run nothing: no thread pool is copied and no memory was used before.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.run"])
    _start_fork_server()
    here, there = context.Pipe()
    # Not a daemon, because daemons cannot have worker processes.
    process = context.Process(target=_serve, args=(side.make, side.burst, there))
    process.start()
    there.close()

    def run() -> float:
        time.sleep(PAUSE_SECONDS)
        try:
            here.send(None)
            seconds: float = here.recv()
        except (EOFError, OSError) as error:
            process.join()
            raise DissensusError(
                f"the process of {side.description!r} ended with exit code {process.exitcode}: "
                "see its message above, or free some memory"
            ) from error
        return seconds

    try:
        yield run
    finally:
        process.terminate()
        process.join(END_SECONDS)
        process.kill()
        process.join()
        here.close()  # last: closing it would end the process as well, and its cleanup must not be interrupted


def _start_fork_server() -> None:
    """Start the fork server with SIGINT ignored, which it and all sides inherit: only this process handles Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)


def _serve(make: Callable[[], Callable[[], object]], burst: int, pipe: Connection) -> None:
    """Run and time one burst per message, until the other end of the pipe is closed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # clean up: a killed process leaks semaphores and workers
    run = make()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            pipe.recv()
            start = time.perf_counter()
            for _ in range(burst):
                run()
            seconds = time.perf_counter() - start
            pipe.send(seconds)
