"""The huge case: open a set of 1e8 rows and train an epoch on a sample of it, each in a process of its own.

The shards are links to one file of 65,536 rows, so that the set takes 100 MB on disk; nothing in Dissensus knows.
Memory is RssAnon, as in the memory case; for opening, what comes on top of the imports, which take 500 MB themselves.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import memory
from benchmarks.measure import Bar, Sizes
from dissensus._core import documents
from dissensus.features import FeatureSet
from dissensus.features._metadata import named, table
from dissensus.features._shards import FEATURES, INDEX, METADATA, Index, Shard, Shards, write_shard
from dissensus.models import tails
from dissensus.models.ensemble import Ensemble
from dissensus.training import fit

SHARD_ROWS, CLASSES = 65536, 100
SAMPLE = 0.05  # of the rows, drawn with replacement: 4.9 million, more than 4 GiB and so shuffled in blocks
OPEN, TRAIN = Bar("<", 500, " MB"), Bar("<", 1500, " MB")
OPENING = "import sys; from benchmarks.huge import opening; opening(*sys.argv[1:])"
TRAINING = "import sys; from benchmarks.huge import training; training(*sys.argv[1:])"


def huge(sizes: Sizes, repeats: int) -> Sequence[memory.MemoryUse]:
    """Measure memory and time of opening the set, and of one epoch over a sample."""
    with tempfile.TemporaryDirectory(prefix="dissensus-bench-", ignore_cleanup_errors=True) as folder:
        rows = generate(Path(folder), sizes.huge_shards, sizes.features)
        results = []
        for name, code, bar, what in (
            ("huge-open", OPENING, OPEN, "open"),
            ("huge-epoch", TRAINING, TRAIN, f"one epoch of 5 members over a random {SAMPLE:.0%} of"),
        ):
            answer = memory.ask(code, [folder])
            description = f"{what} {rows:,} x {sizes.features} float16 features in {sizes.huge_shards:,} shards"
            use = memory.MemoryUse(
                description, answer["rss_anon"], answer["vm_hwm"], answer["seconds"], name=name, bar=bar
            )
            results.append(use)
    return results


def generate(folder: Path, shards: int, width: int) -> int:
    """Write a set whose shards are all the same file; return its number of rows."""
    for name in (FEATURES, METADATA):
        (folder / name).mkdir()
    generator, names = np.random.default_rng(0), [f"class-{i:03}" for i in range(CLASSES)]
    labels = generator.integers(0, CLASSES, SHARD_ROWS)
    features = generator.standard_normal((SHARD_ROWS, width), np.float32).astype(np.float16)
    first = write_shard(folder, 0, features, table(label=named(labels, names)))
    written = [first]
    for number in range(1, shards):
        shard = Shard(number=number, rows=SHARD_ROWS, features=first.features, metadata=first.metadata)
        for source, target in zip(first.files, shard.files, strict=True):
            os.link(folder / source, folder / target)
        written.append(shard)
    counts = np.bincount(labels, minlength=CLASSES) * shards
    index = Index(
        written_by="dissensus benchmarks", columns=("label",), shape=(width,), dtype="float16",
        count=shards * SHARD_ROWS, classes=tuple(names), class_counts=tuple(counts.tolist()), group_names=(),
        provenance={}, shards=Shards.of(written),
    )  # fmt: skip
    documents.write(folder / INDEX, index)
    return shards * SHARD_ROWS


def opening(folder: str) -> None:
    """Open the set, look at it, and print peaks and seconds as one line of JSON."""
    with memory.peaks() as imported:
        pass
    with memory.peaks() as peak:
        start = time.perf_counter()
        features = FeatureSet.open(folder)
        seconds = time.perf_counter() - start
        assert len(features.labels_at(range(0, len(features), max(1, len(features) // 1000)))) >= 1000
        assert features.rows([0, -1]).shape[0] == 2
    growth = peak["RssAnon"] - imported["RssAnon"] if peak else None
    print(json.dumps({"rss_anon": growth, "vm_hwm": peak.get("VmHWM"), "seconds": seconds}))


def training(folder: str) -> None:
    """Train one epoch over a random sample of the rows; print peaks and seconds as one line of JSON."""
    with memory.peaks() as peak:
        features = FeatureSet.open(folder)
        start = time.perf_counter()
        count = round(SAMPLE * len(features))
        # Sorted, and without a permutation of all rows.
        drawn = np.unique(np.random.default_rng(0).integers(0, len(features), count))
        sample = features.subset(drawn)
        ensemble = Ensemble(tails.create("linear", sample.width, len(sample.classes)), members=5)
        fit(ensemble, sample, "sed-a2d", active=2, epochs=1, batch_size=4096, scores=())
        seconds = time.perf_counter() - start
    print(json.dumps({"rss_anon": peak.get("RssAnon"), "vm_hwm": peak.get("VmHWM"), "seconds": seconds}))
