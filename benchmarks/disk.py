"""The shuffle case: training from a cold disk, in a full permutation and in blocks.

- shuffle: only reading is timed. A run in blocks reads one whole window.
- shuffle-steps: whole training steps, as `fit` takes them; blocks are read ahead while steps run. A run in blocks takes
  the steps of one window and waits for the next one, after a first window that is not timed.

Before every run the feature files are dropped from the page cache, as if the set were far larger than memory. A run
opens the folder again, because pages that a process has mapped are not dropped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from benchmarks import measure
from benchmarks.measure import Bar, Comparison, Sizes
from benchmarks.steps import cpu_fabric, stepper
from dissensus._core.errors import DissensusError
from dissensus.features import FeatureSet, FeatureWriter
from dissensus.training.batches import Batches, Pool
from dissensus.training.options import Task, TrainOptions
from dissensus.training.order import BlockOrder

BAR = Bar(">=", 5)
REPEATS = 5  # at most: every run reads from disk
FULL_STEPS = 40
CHUNK_ROWS = 16384
IO = Path("/proc/self/io")
CHECKED_BYTES = 2**26  # a run that reads at least so much must read it from the disk


def shuffle(sizes: Sizes, repeats: int) -> Sequence[Comparison]:
    """Compare training in a full permutation with training in blocks, both from a cold disk."""
    require(sizes)
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "features"
        _generate(folder, sizes)
        return [
            _compared(row, what, folder, sizes, min(repeats, REPEATS), run)
            for row, what, run in (
                ("shuffle", "the batch of a step", _reading),
                ("shuffle-steps", "a training step", _training),
            )
        ]


Run = Callable[[Batches, Sizes, int, int], float]


def _compared(name: str, what: str, folder: Path, sizes: Sizes, repeats: int, run: Run) -> Comparison:
    window = len(BlockOrder(sizes.disk_rows, 2 * sizes.features, 0).window(0, 0))
    in_windows = max(1, window // sizes.batch)  # the first window, but for a part of a batch
    full = _run(folder, sizes, "full", min(FULL_STEPS, in_windows), run)
    blocks = _run(folder, sizes, "blocks", in_windows, run)
    seconds = measure.interleave(name, full, blocks, repeats, warm_up=1)
    full_ms, blocks_ms = (tuple(1000 * value for value in values) for values in seconds)
    size = f"{sizes.disk_rows:,} x {sizes.features} float16 features, batches of {sizes.batch}"
    return Comparison(name, f"{what} from a cold disk, {size}, full permutation", "in blocks", BAR, full_ms, blocks_ms)


def require(sizes: Sizes) -> None:
    """Raise if the temporary folder has no space for the features."""
    needed, folder = 1.05 * sizes.disk_rows * (2 * sizes.features + 8) + 50e6, tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DissensusError(
            f"case shuffle needs {needed / 1e9:.1f} GB in {folder}; {free / 1e9:.1f} GB are free: "
            "set TMPDIR to a folder with more space, or choose other cases"
        )


def evict(folder: Path) -> None:
    """Drop the files of a folder from the page cache, once they are written."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(folder: Path, sizes: Sizes, shuffle: Literal["full", "blocks"], steps: int, run: Run) -> Callable[[], float]:
    """Return a function that evicts the files, calls `run` on the batches, and returns the seconds per step."""

    def seconds() -> float:
        evict(folder)
        features = FeatureSet.open(folder)
        options = TrainOptions(epochs=1, batch_size=sizes.batch, shuffle=shuffle)
        settings = options.resolve("sed-a2d", sizes.members, Task(len(features)))
        last = steps if run is _reading else None  # do not read ahead: that would be timed as well
        batches = Batches(Pool(features), None, settings, cpu_fabric(), last)
        before = _bytes_read()
        try:
            first = 0
            if shuffle == "full":
                batches(0, torch.arange(sizes.active))  # draws the permutation, which an epoch does once
                first = 1
            result = run(batches, sizes, first, steps)
        finally:
            batches.close()
        read, needed = _bytes_read() - before, steps * sizes.batch * 2 * sizes.features
        if needed >= CHECKED_BYTES and IO.is_file() and read < needed // 2:
            raise DissensusError(
                f"case shuffle reads from a cold disk; {folder.parent} gave {read / 1e6:.0f} of {needed / 1e6:.0f} MB "
                "from memory: set TMPDIR to a folder on a disk"
            )
        return result

    return seconds


def _reading(batches: Batches, sizes: Sizes, first: int, steps: int) -> float:
    """Read the batches of so many steps; return the seconds per step, in which nothing else is done."""
    members, start = torch.arange(sizes.active), time.perf_counter()
    for step in range(first, first + steps):
        batches(step, members)
    return (time.perf_counter() - start) / steps


def _training(batches: Batches, sizes: Sizes, first: int, steps: int) -> float:
    """Take so many training steps; return the seconds per step."""
    take = stepper(sizes, sizes.members, sizes.active)
    if batches.settings.shuffle == "blocks":
        for step in range(first, first + steps + 1):  # one step of the second window, which has been read now
            take(batches(step, take.draw(step)), take.draw(step), 1.0)
        first += steps + 1
    start = time.perf_counter()
    for step in range(first, first + steps):
        take(batches(step, take.draw(step)), take.draw(step), 1.0)
    return (time.perf_counter() - start) / steps


def _bytes_read() -> int:
    """Bytes that this process has fetched from disks; 0 where the system does not say."""
    lines = IO.read_text(encoding="ascii").splitlines() if IO.is_file() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)


def _generate(folder: Path, sizes: Sizes) -> None:
    generator = torch.Generator().manual_seed(0)
    names = [str(c) for c in range(sizes.classes)]
    chunk = torch.randn(CHUNK_ROWS, sizes.features, generator=generator)
    with FeatureWriter(folder, shape=sizes.features, classes=names) as writer:
        for start in tqdm(range(0, sizes.disk_rows, CHUNK_ROWS), desc="shuffle: features", leave=False, disable=None):
            rows = min(CHUNK_ROWS, sizes.disk_rows - start)
            labels = torch.randint(sizes.classes, (rows,), generator=generator)
            writer.add(chunk[:rows] * (1 + start / sizes.disk_rows), labels)
