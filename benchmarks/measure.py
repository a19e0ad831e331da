"""How the bench measures: two sides run in turn, medians, and their ratio.

A time says little on a shared machine; two that were taken side by side in one run say how they compare. Each side
lives in a process of its own, as it would in use: in a shared one, memory that one side has freed spares the other
the page faults of getting it, and the ratio depends on who came first.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
from tqdm import tqdm

from dissensus._core.errors import DissensusError

WARM_UP = 3  # runs of each side that are not counted
PAUSE_SECONDS = 0.02  # between runs: threads of the side that has just run may still be spinning
END_SECONDS = 2.0  # that a side's process has to end by itself


@dataclass(frozen=True)
class Sizes:
    """What the cases run on; the defaults are those of the paper's ImageNet experiments."""

    features: int = 768
    classes: int = 1000
    batch: int = 256
    members: int = 5
    many: int = 50  # members of a large ensemble
    active: int = 2
    fit_batches: int = 20  # batches of the epoch that whole fits are compared on
    rows: int = 1_281_167  # of the training set of the memory case: ImageNet's
    images: int = 768  # of an extraction: starting to read costs some seconds, which thousands make up for
    pixels: int = 224  # a side
    image_batch: int = 64


QUICK = Sizes(
    features=32, classes=20, batch=256, many=10, fit_batches=3, rows=20_000, images=16, pixels=64, image_batch=8
)


class Side(NamedTuple):
    """One of two things to compare."""

    words: str
    make: Callable[[], Callable[[], object]]  # called in the side's own process, so it has to be picklable
    steps: int = 1  # training steps in one run
    burst: int = 5  # runs that are timed as one: steps follow each other in training, with threads awake


class Bar(NamedTuple):
    """What a number has to reach."""

    sign: str  # "<=", ">=", "<" or ">"
    limit: float
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}{self.unit}"

    def met(self, value: float) -> bool:
        """Whether `value` reaches the bar."""
        below, above = value < self.limit, value > self.limit
        return {"<": below, ">": above, "<=": not above, ">=": not below}[self.sign]


class Entry(Protocol):
    """A result: one line of the table, one object of the JSON."""

    def record(self) -> dict[str, Any]:
        """The result as plain values, rounded."""

    def row(self) -> list[str]:
        """Name, value, bar, whether it is met, and what it is, for the table."""


@dataclass(frozen=True)
class Comparison:
    """Two sides, run in turn `repeats` times."""

    name: str
    numerator: str
    denominator: str
    bar: Bar
    numerator_ms: tuple[float, ...]
    denominator_ms: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over median."""
        return float(np.median(self.numerator_ms) / np.median(self.denominator_ms))

    @property
    def quartiles(self) -> tuple[float, float]:
        """Quartiles of the ratio within each repeat."""
        low, high = np.percentile(np.divide(self.numerator_ms, self.denominator_ms), [25, 75])
        return float(low), float(high)

    def record(self) -> dict[str, Any]:
        """The comparison as plain values, rounded."""
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
        }

    def row(self) -> list[str]:
        """One line of the table."""
        low, high = self.quartiles
        one, other = np.median(self.numerator_ms), np.median(self.denominator_ms)
        what = f"{self.numerator} ({one:.3g} ms) / {self.denominator} ({other:.3g} ms)"
        value = f"{self.ratio:.2f} [{low:.2f}, {high:.2f}]"
        return [self.name, value, str(self.bar), "yes" if self.bar.met(self.ratio) else "no", what]


def compare(
    name: str, numerator: Side, denominator: Side, bar: Bar, repeats: int, warm_up: int = WARM_UP
) -> Comparison:
    """Run both sides in turn and keep milliseconds a step."""
    with _process(numerator) as one, _process(denominator) as other:
        seconds = interleave(name, one, other, repeats, warm_up)
    millis = [
        tuple(1000 * value / (side.steps * side.burst) for value in values)
        for side, values in zip((numerator, denominator), seconds, strict=True)
    ]
    return Comparison(name, numerator.words, denominator.words, bar, millis[0], millis[1])


def interleave(
    name: str, one: Callable[[], float], other: Callable[[], float], repeats: int, warm_up: int = WARM_UP
) -> tuple[list[float], list[float]]:
    """Call both in turn, each first every other time; what they gave in `repeats` rounds after warming up."""
    found: tuple[list[float], list[float]] = [], []
    rounds = tqdm(range(-warm_up, repeats), desc=name, unit="repeat", leave=False, disable=None, dynamic_ncols=True)
    for turn in rounds:
        for side in (0, 1) if turn % 2 else (1, 0):
            value = (one, other)[side]()
            if turn >= 0:
                found[side].append(value)
    return found


@contextlib.contextmanager
def _process(side: Side) -> Iterator[Callable[[], float]]:
    """A process that has made the side; calling what is given runs a burst there and tells the seconds."""
    # Forked from a server that has only imported: no thread pool is copied, no memory has been used before.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks"])
    here, there = context.Pipe()
    # not a daemon: those may not have worker processes of their own. It ends when the pipe does.
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
                f"the bench's process for {side.words!r} ended with exit code {process.exitcode}; "
                "its message is above, or there was too little memory"
            ) from error
        return seconds

    try:
        yield run
    finally:
        here.close()  # it ends by itself, and tidily, unless it is in the middle of something long
        process.join(END_SECONDS)
        process.terminate()
        process.join()


def _serve(make: Callable[[], Callable[[], object]], burst: int, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, and ends this process
    run = make()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has what it wants
        while True:
            pipe.recv()
            start = time.perf_counter()
            for _ in range(burst):
                run()
            seconds = time.perf_counter() - start
            pipe.send(seconds)


def sizes_record(sizes: Sizes) -> dict[str, int]:
    """The sizes as plain values."""
    return asdict(sizes)
