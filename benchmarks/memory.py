"""The memory case: peak memory of one epoch over as many features as ImageNet has, in a separate process.

Measured is anonymous resident memory (RssAnon). It leaves out pages of the memory-mapped feature files, which the
system may drop at any time. The run writes checkpoints and its result, as every run does.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.measure import Bar, Sizes
from benchmarks.steps import cpu_fabric
from dissensus._core.errors import DissensusError
from dissensus.features import FeatureSet, FeatureWriter
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training._fit import fit

STATUS = Path("/proc/self/status")
BAR = Bar("<", 3000, " MB")  # 3 GB of 10^9 bytes
POLL_SECONDS = 0.02
CHUNK_ROWS = 16384
CHILD = "import sys; from benchmarks.memory import child; child(*sys.argv[1:])"


@dataclass(frozen=True)
class MemoryUse:
    """Peaks in MB (10^6 bytes); None where the system does not report them."""

    description: str
    rss_anon: float | None
    vm_hwm: float | None
    epoch_seconds: float
    name: str = "memory"
    bar: Bar = BAR

    @property
    def met(self) -> bool | None:
        """Whether the peak is below the bar; None if it was not measured."""
        return None if self.rss_anon is None else self.bar.met(self.rss_anon)

    def record(self) -> dict[str, Any]:
        """Return the result as plain values, rounded."""
        return {
            "name": self.name,
            "megabytes": None if self.rss_anon is None else round(self.rss_anon, 1),
            "of": self.description,
            "bar": str(self.bar),
            "met": self.met,
            "vm_hwm_megabytes": None if self.vm_hwm is None else round(self.vm_hwm, 1),
            "epoch_seconds": round(self.epoch_seconds, 3),
            "repeats": 1,
            "note": f"{STATUS} does not exist here: memory was not measured" if self.rss_anon is None else None,
        }

    def row(self) -> list[str]:
        """Return the cells of the table."""
        value = f"not measured, no {STATUS}" if self.rss_anon is None else f"{self.rss_anon:.0f} MB"
        met = {True: "yes", False: "no", None: "?"}[self.met]
        return [self.name, value, str(self.bar), met, f"{self.epoch_seconds:.0f} s"]


def one_epoch(sizes: Sizes, repeats: int) -> Sequence[MemoryUse]:
    """Measure the peak memory of one epoch over as many features as ImageNet has."""
    require(sizes)
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-", ignore_cleanup_errors=True) as folder:
        _generate(Path(folder) / "features", sizes)
        arguments = [folder, *map(str, (sizes.many, sizes.active, sizes.batch))]
        # In its own session Ctrl-C does not reach it; subprocess.run kills it. Its progress bar goes to our stderr.
        answer = ask(CHILD, arguments)
    description = (
        f"peak of one epoch, {sizes.rows:,} x {sizes.features} float16 features, "
        f"C={sizes.classes}, M={sizes.many}, active={sizes.active}, linear tail"
    )
    return [MemoryUse(description, answer["rss_anon"], answer["vm_hwm"], answer["seconds"])]


def require(sizes: Sizes) -> None:
    """Raise if the temporary folder has no space for the features and the run."""
    weights = 4 * sizes.many * sizes.classes * (sizes.features + 1)
    # A checkpoint holds the weights and two moments, and exists twice while it is replaced; then the final weights.
    needed = sizes.rows * (2 * sizes.features + 8) * 1.02 + 8 * weights + 50e6
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DissensusError(
            f"case memory needs {needed / 1e9:.1f} GB in {folder}; {free / 1e9:.1f} GB are free: "
            "set TMPDIR to a folder with more space, or choose other cases"
        )


def _generate(folder: Path, sizes: Sizes) -> None:
    generator = torch.Generator().manual_seed(0)
    names = [str(c) for c in range(sizes.classes)]
    with FeatureWriter(folder, shape=sizes.features, classes=names) as writer:
        for start in tqdm(range(0, sizes.rows, CHUNK_ROWS), desc="memory: features", leave=False, disable=None):
            rows = min(CHUNK_ROWS, sizes.rows - start)
            labels = torch.randint(sizes.classes, (rows,), generator=generator)
            writer.add(torch.randn(rows, sizes.features, generator=generator), labels)


def ask(code: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run code in a process of its own, and return the JSON of its last line."""
    return _answer(
        subprocess.run(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    )


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    if done.returncode < 0:
        hint = ": the machine was probably out of memory" if done.returncode == -signal.SIGKILL else ""
        raise DissensusError(f"the training process of case memory was ended by signal {-done.returncode}{hint}")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        answer = {"error": f"exit code {done.returncode}, see its message above"}
    if "error" in answer:
        raise DissensusError(f"the training process of case memory failed: {answer['error']}")
    return answer


def child(folder: str, members: str, active: str, batch: str) -> None:
    """Train one epoch on `folder`/features and print peaks and seconds, or the error, as one line of JSON."""
    try:
        with peaks() as peak:
            features = FeatureSet.open(Path(folder) / "features")
            ensemble = Ensemble(tails.create("linear", features.width, len(features.classes)), members=int(members))
            start = time.perf_counter()
            fit(
                ensemble, features, "sed-a2d", active=int(active), epochs=1, batch_size=int(batch),
                out=Path(folder) / "run", fabric=cpu_fabric(),
            )  # fmt: skip
            seconds = time.perf_counter() - start
        answer: dict[str, Any] = {"rss_anon": peak.get("RssAnon"), "vm_hwm": peak.get("VmHWM"), "seconds": seconds}
    except (DissensusError, OSError, MemoryError, RuntimeError) as error:
        answer = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    print(json.dumps(answer))


@contextmanager
def peaks() -> Iterator[dict[str, float]]:
    """Record the largest RssAnon and VmHWM in MB while the block runs; stays empty without /proc."""
    peak: dict[str, float] = {}
    over = threading.Event()

    def watch() -> None:
        while True:
            for line in STATUS.read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(":")
                if name in ("RssAnon", "VmHWM"):
                    peak[name] = max(peak.get(name, 0.0), int(value.split()[0]) * 1024 / 1e6)
            if over.wait(POLL_SECONDS):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    if STATUS.is_file():
        watcher.start()
    try:
        yield peak
    finally:
        over.set()
        if watcher.is_alive():
            watcher.join()
