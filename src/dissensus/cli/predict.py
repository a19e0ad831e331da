"""dissensus predict: a verdict for every image."""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from contextlib import nullcontext
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus.cli.command import PartOf, Share, command, hold, say, uncalibrated


@command("predict", "dissensus predict runs/mine photos/*.jpg")
def predict(
    run: str,
    paths: list[str],
    *,
    format: Literal["auto", "table", "jsonl", "csv"] = "auto",
    out: str | None = None,
    explain: bool = False,
    false_alarms: Share | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    engine: str | None = None,
    accelerator: str = "auto",
    on: Literal["local", "ray"] = "local",
    part: PartOf | None = None,
    progress: bool = True,
) -> None:
    """Predict the class of every image, its confidence, and whether the image is out of distribution.

    Images are streamed in constant memory. An image that cannot be read, or a path in a list that does not exist, has
    an error in its row.

    Args:
        run: a run folder, preferably calibrated: dissensus calibrate.
        paths: images and folders of images; or one list (.txt), table (.csv), .tar, feature folder or .npz file; or
            tars as a pattern, such as 'new-{000..999}.tar'; or - for a list of paths on stdin. Paths or URLs. For a
            joined run, features of every backbone, separated by commas.
        format: auto is a table on a terminal and JSON lines elsewhere.
        out: a file to write instead of stdout, .jsonl or .csv.
        explain: show each member's vote and, if scores are combined, each score's p-value.
        false_alarms: share of ID samples that may be called out, instead of the calibrated one.
        batch_size: images per batch; each worker prefetches two batches.
        workers: processes that read images; by default one per core, at most 8; 0 for paths that arrive slowly.
        engine: how the trunk runs: dissensus list engines; onnx is faster on CPUs. By default eager, or onnx-int8 for a
            run that was trained on its features.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        on: local, or ray for the Ray cluster at RAY_ADDRESS; all its nodes must have access to RUN, the images and OUT.
        part: predict only the K-th of N parts, counted from 1, for job arrays; dissensus merge joins them.
        progress: show a progress bar if stderr is a terminal and stdout is not.
    """
    from tqdm import tqdm

    from dissensus._core import cluster
    from dissensus._core.files import replacing
    from dissensus._core.outputs import writing
    from dissensus._core.places import absolute
    from dissensus.cli import inputs, rows
    from dissensus.detection.detector import Detector

    cluster.check(on)
    file_format = _file_format(format, out)
    if batch_size < 1 or (workers is not None and workers < 0):
        raise DissensusError(
            f"--batch-size must be at least 1 and --workers at least 0; got {batch_size} and {workers}: try 64 and 2"
        )
    rows.check_paths(paths)
    if out is not None:
        hold(writing(out))
    device = inputs.launch(accelerator=accelerator).device
    detector = Detector.load(run, engine=engine, device=device)
    if false_alarms is not None:
        if detector.threshold is None:
            raise DissensusError(f"--false-alarms needs a calibrated run; {run} is not: dissensus calibrate {run}")
        detector.threshold = detector.threshold.at(false_alarms)
    elif detector.threshold is None:
        say(uncalibrated(run))
    counts: Counter[str] = Counter()
    start = time.monotonic()
    if on == "ray" or part is not None:
        from dissensus.cli import parts

        if out is None:
            raise DissensusError("--on ray and --part write a file; none is given: add --out")
        folder = place(out).with_name(f"{place(out).name}.parts")
        task = parts.Task.of(
            detector, rows.source_of(paths), run=absolute(run), folder=absolute(str(folder)), file_format=file_format,
            explain=explain, false_alarms=false_alarms, batch_size=batch_size, engine=engine, device=str(device),
            workers=0 if on == "ray" else workers,
        )  # fmt: skip
        counts = parts.predict(task, detector, place(out), part, on, progress)
        _report(counts, time.monotonic() - start, detector.threshold is not None)
        return
    verdicts = rows.verdicts(detector, paths, batch_size, workers)
    with replacing(place(out)) if out is not None else nullcontext() as target:
        # Names that are not UTF-8 are passed through unchanged.
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                utf8 = stream.encoding.lower().replace("-", "") == "utf8"
                stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
        mode = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
        with open(target, "w", **mode) if target else nullcontext(sys.stdout) as file:  # type: ignore[call-overload]
            write = rows.writer(file_format, file, detector, explain)
            hidden = True if not progress or (out is None and sys.stdout.isatty()) else None
            for verdict in tqdm(verdicts, desc="predict", unit="image", leave=False, disable=hidden):
                write(verdict)
                counts["error" if verdict.error else verdict.verdict] += 1
        if not counts:
            raise DissensusError(f"no image to predict; {', '.join(paths)[:200]} names none: check the path")
        if counts.total() == counts["error"]:
            raise DissensusError(f"at least one image must be readable; none of {counts.total():,} is: check the paths")
    _report(counts, time.monotonic() - start, detector.threshold is not None)


def _report(counts: Counter[str], seconds: float, calibrated: bool) -> None:
    """Print how many verdicts there are of each kind."""
    from dissensus.detection.verdicts import NOTHING_UNUSUAL, OUT

    found = f"{counts[OUT]:,} out of distribution, nothing unusual found in {counts[NOTHING_UNUSUAL]:,}"
    parts = [found] * calibrated
    parts += [f"{counts['error']:,} could not be read"] * bool(counts["error"])
    rate = f"{counts.total():,} in {seconds:.1f} s ({counts.total() / seconds:.0f} per second)"
    say(f"{rate}: {', '.join(parts)}" if parts else rate)


def _file_format(format: str, out: str | None) -> str:
    if out is None:
        if sys.stdout is None:
            raise DissensusError("verdicts go to stdout; it is closed: open it, or give --out FILE")
        return format if format != "auto" else "table" if sys.stdout.isatty() else "jsonl"
    suffix = place(out).suffix.lower().lstrip(".")
    if suffix not in ("jsonl", "csv"):
        raise DissensusError(f"--out must end in .jsonl or .csv; got {out!r}")
    if format not in ("auto", suffix):
        raise DissensusError(f"--format and the suffix of --out must agree; got {format} and {out}: leave one out")
    return suffix
