"""dissensus predict: a verdict for every image, as they come."""

from __future__ import annotations

import io
import sys
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from dissensus._core.errors import DissensusError
from dissensus.cli.parser import Arguments, say, share, uncalibrated

EXAMPLE = "dissensus predict runs/mine photos/*.jpg"
PLAIN: Arguments = {
    "run": {"help": "a run folder, best calibrated first: dissensus calibrate"},
    "paths": {
        "nargs": "+",
        "metavar": "PATH",
        "help": "images, folders of images, - for a list of paths on stdin, or one feature folder or .npz file",
    },
}


def predict(
    run: str,
    paths: list[str],
    format: Literal["auto", "table", "jsonl", "csv"] = "auto",
    out: str | None = None,
    explain: bool = False,
    false_alarms: str | None = None,
    batch_size: int = 64,
    workers: int | None = None,
    engine: Literal["eager", "onnx"] = "eager",
    accelerator: str = "auto",
    progress: bool = True,
) -> None:
    """Say of every image what it is, how sure that is, and whether it is out of distribution.

    Images are read as they come, in constant memory. One that cannot be read has an error in its place.

    Args:
        run: a run folder.
        paths: images, folders of images, or - for a list of paths on stdin.
        format: auto is a table on a terminal and JSON lines elsewhere.
        out: a file to write instead of stdout, .jsonl or .csv.
        explain: show each member's vote.
        false_alarms: share of ID samples that may be called out, instead of the calibrated one: the same calibration.
        batch_size: images at once through the trunk; verdicts come by this many for each worker, twice.
        workers: processes that read images; by default one a core, at most 8; 0: none, for paths that come slowly.
        engine: how the trunk runs: eager PyTorch, or onnx, which is faster on CPUs.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
        progress: show a progress bar when stderr is a terminal and stdout is not.
    """
    from tqdm import tqdm

    from dissensus._core.files import make_folder, replacing
    from dissensus.cli import inputs, rows
    from dissensus.detection.detector import Detector

    form = _form(format, out)
    if batch_size < 1 or (workers is not None and workers < 0):
        raise DissensusError(f"--batch-size is at least 1 and --workers at least 0; got {batch_size} and {workers}")
    device = inputs.launch(accelerator, 1, 1, "32-true").device
    detector = Detector.load(run, engine=engine, device=device)
    if false_alarms is not None:
        if detector.threshold is None:
            raise DissensusError(f"--false-alarms needs a calibrated run; {run} is not: dissensus calibrate {run}")
        detector.threshold = detector.threshold.at(share("--false-alarms", false_alarms))
    elif detector.threshold is None:
        say(uncalibrated(run))
    if out is not None:
        make_folder(Path(out).parent)
    seen: Counter[str] = Counter()
    start = time.monotonic()
    with replacing(Path(out)) if out is not None else nullcontext() as target:
        # names that are not UTF-8 go through as they are
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                utf8 = stream.encoding.lower().replace("-", "") == "utf8"
                stream.reconfigure(errors="surrogateescape" if utf8 else "backslashreplace")
        named = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
        with open(target, "w", **named) if target else nullcontext(sys.stdout) as file:  # type: ignore[call-overload]
            write = rows.writer(form, file, detector, explain)
            hidden = True if not progress or (out is None and sys.stdout.isatty()) else None
            verdicts = rows.verdicts(detector, paths, batch_size, workers)
            for verdict in tqdm(verdicts, desc="predict", unit="image", leave=False, disable=hidden):
                write(verdict)
                seen["error" if verdict.error else verdict.verdict] += 1
        if not seen:
            raise DissensusError(
                f"there must be an image to judge; {', '.join(paths)[:200]} names none: check the path"
            )
        if seen.total() == seen["error"]:
            raise DissensusError(
                f"there must be an image that can be read; none of {seen.total():,} can: check the paths"
            )
    seconds = time.monotonic() - start
    parts = [f"{seen['out']:,} out of distribution"] * (detector.threshold is not None)
    parts += [f"{seen['error']:,} could not be read"] * bool(seen["error"])
    say(f"{seen.total():,} in {seconds:.1f} s ({seen.total() / seconds:.0f} a second): {', '.join(parts)}".rstrip(": "))


def _form(format: str, out: str | None) -> str:
    if out is None:
        if sys.stdout is None:
            raise DissensusError("verdicts go to stdout; it is closed: open it, or give --out FILE")
        return format if format != "auto" else "table" if sys.stdout.isatty() else "jsonl"
    suffix = Path(out).suffix.lower().lstrip(".")
    if suffix not in ("jsonl", "csv"):
        raise DissensusError(f"--out must end in .jsonl or .csv; got {out!r}")
    if format not in ("auto", suffix):
        raise DissensusError(f"--format and the suffix of --out must agree; got {format} and {out}: leave one out")
    return suffix
