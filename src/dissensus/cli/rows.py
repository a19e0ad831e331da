"""Verdicts as they come, and how each is written: a line of a table, of JSON or of CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from dissensus._core.errors import DissensusError

if TYPE_CHECKING:  # not in predict.py, where the parser would execute it: --help must not wait for PyTorch
    from dissensus.detection.detector import Detector
    from dissensus.detection.verdicts import Verdict

COLUMNS = ("path", "label", "class", "confidence", "score", "p_value", "verdict", "error")


def verdicts(detector: Detector, paths: list[str], batch_size: int, workers: int | None) -> Iterator[Verdict]:
    """What the detector says of everything that the paths name."""
    from dissensus.cli import inputs
    from dissensus.images import walk

    if any(inputs.is_features(path) for path in paths):
        if len(paths) > 1:
            raise DissensusError(f"features are predicted one folder at a time; got {len(paths)} paths: give one")
        yield from detector.predict(inputs.find_features(paths[0])[0])
        return
    if "-" in paths and len(paths) > 1:
        raise DissensusError("- takes all paths from stdin; got others besides: give either")
    named = _lines() if paths == ["-"] else walk(paths)
    yield from detector.stream(named, batch_size=batch_size, workers=workers)


def _lines() -> Iterator[str]:
    if sys.stdin is None:
        raise DissensusError("- takes paths from stdin; it is closed: pipe a list into it")
    for line in sys.stdin:
        if name := line.rstrip("\r\n"):
            yield name


def writer(form: str, file: TextIO, detector: Detector, explain: bool) -> Callable[[Verdict], None]:
    """How to write one verdict."""
    if form == "jsonl":
        return lambda verdict: print(json.dumps(verdict.as_dict(votes=explain)), file=file, flush=True)
    if form == "csv":
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*COLUMNS, *["votes"] * explain])

        def write(verdict: Verdict) -> None:
            plain = verdict.as_dict()
            rows.writerow([*(plain[column] for column in COLUMNS), *[";".join(verdict.votes)] * explain])
            file.flush()

        return write
    from dissensus.features.extraction import one_line

    width = max(5, min(24, max(map(len, detector.classes))))
    known = detector.threshold is not None
    scored = max(6, len(detector.score_name))
    heads = ["verdict", "p-value"] * known + [detector.score_name.rjust(scored), "sure", "class".ljust(width), "path"]
    line = "  ".join(heads)
    print(f"{line}\n{'-' * len(line)}", file=file)

    def show(verdict: Verdict) -> None:
        if verdict.error:
            print(f"error: {verdict.error}: {one_line(verdict.name)}", file=file, flush=True)
            return
        cells = [f"{verdict.verdict:>7}", f"{verdict.p_value:7.4f}"] if known else []
        cells += [f"{verdict.score:.3f}".rjust(scored), f"{verdict.confidence:4.0%}"]
        cells += [(verdict.class_name or "")[:width].ljust(width), one_line(verdict.name)]
        print("  ".join(cells), file=file, flush=True)
        if explain:
            votes = Counter(verdict.votes).most_common()
            print(f"{'':9}votes: {', '.join(f'{name} {count}' for name, count in votes)}", file=file, flush=True)

    return show
