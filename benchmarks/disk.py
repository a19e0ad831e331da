"""The shuffle case: batches from a cold disk, in a full permutation and in blocks.

Only reading is timed: it is what a training step waits for. Before every run the feature files are dropped from the
page cache, as if the set were far larger than memory. A run opens the folder again, because pages that a process has
mapped are not dropped.
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
from benchmarks.steps import cpu_fabric
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
    """Compare batches in a full permutation with batches in blocks, both from a cold disk."""
    require(sizes)
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "features"
        _generate(folder, sizes)
        row_bytes = 2 * sizes.features
        window = len(BlockOrder(sizes.disk_rows, row_bytes, 0).window(0, 0))
        in_windows = max(1, window // sizes.batch)  # the first window, but for a part of a batch
        steps = {"full": min(FULL_STEPS, in_windows), "blocks": in_windows}
        seconds = measure.interleave(
            "shuffle", _run(folder, sizes, "full", steps["full"]), _run(folder, sizes, "blocks", steps["blocks"]),
            min(repeats, REPEATS), warm_up=1,
        )  # fmt: skip
    full, blocks = (tuple(1000 * value for value in values) for values in seconds)
    size = f"{sizes.disk_rows:,} x {sizes.features} float16 features, batches of {sizes.batch}"
    return [
        Comparison(
            "shuffle", f"the batch of a step from a cold disk, {size}, full permutation", "in blocks", BAR, full, blocks
        )
    ]


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


def _run(folder: Path, sizes: Sizes, shuffle: Literal["full", "blocks"], steps: int) -> Callable[[], float]:
    """Return a function that evicts the files, reads the batches of so many steps, and returns the seconds per step."""

    def run() -> float:
        evict(folder)
        features = FeatureSet.open(folder)
        options = TrainOptions(epochs=1, batch_size=sizes.batch, shuffle=shuffle)
        settings = options.resolve("sed-a2d", sizes.members, Task(len(features)))
        batches, members = Batches(Pool(features), None, settings, cpu_fabric(), steps), torch.arange(sizes.active)
        first = 0
        if shuffle == "full":
            batches(0, members)  # draws the permutation, which an epoch does once
            first = 1
        before, start = _bytes_read(), time.perf_counter()
        for step in range(first, first + steps):
            batches(step, members)
        seconds = time.perf_counter() - start
        batches.close()
        read, needed = _bytes_read() - before, steps * sizes.batch * 2 * sizes.features
        if needed >= CHECKED_BYTES and IO.is_file() and read < needed // 2:
            raise DissensusError(
                f"case shuffle reads from a cold disk; {folder.parent} gave {read / 1e6:.0f} of {needed / 1e6:.0f} MB "
                "from memory: set TMPDIR to a folder on a disk"
            )
        return seconds / steps

    return run


def _bytes_read() -> int:
    """Bytes that this process has fetched from disks; 0 where the system does not say."""
    lines = IO.read_text().splitlines() if IO.is_file() else []
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
