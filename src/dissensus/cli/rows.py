"""Rows: the verdicts of `dissensus predict`, written one by one as a table, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from dissensus._core.cells import to_cell
from dissensus._core.errors import DissensusError
from dissensus._core.places import is_url, place, storage_errors
from dissensus._core.terminal import printable, show

if TYPE_CHECKING:  # not in predict.py, where the parser evaluates annotations: --help must not load PyTorch
    from dissensus.detection.detector import Detector
    from dissensus.detection.verdicts import Verdict
    from dissensus.features import FeatureSet
    from dissensus.images import ImageSet, ImageStream, Names

COLUMNS = ("path", "label", "class", "confidence", "score", "p_value", "verdict", "error")
TEXTS = ("path", "class", "error")  # columns of names, which are written as `to_cell` has them
SCORE_WIDTH = 20  # of a heading; a longer expression is just "score"


def check_paths(paths: list[str]) -> None:
    """Raise for an image or folder of the command line that does not exist; one in a list or on stdin has a row."""
    from dissensus.detection.samples import is_listing
    from dissensus.features import is_features
    from dissensus.images import is_stream

    for path in paths:
        if path == "-" or is_stream(path) or is_features(path) or is_listing(path):
            continue
        with storage_errors(path):
            there = place(path).exists() if is_url(path) else os.path.lexists(path)
        if not there:
            raise DissensusError(f"there is no file or folder {path}: check the path")


def verdicts(detector: Detector, paths: list[str], batch_size: int, workers: int | None) -> Iterator[Verdict]:
    """Return the verdicts for everything that the paths of the command line name.

    Raises:
        DissensusError: If features, a list, a table, a tar or `-` is given together with other paths.
    """
    from dissensus.detection.samples import is_listing
    from dissensus.features import is_features

    for path in paths if len(paths) > 1 else ():
        if path == "-" or is_features(path) or is_listing(path):
            kind = "the list on stdin" if path == "-" else "features" if is_features(path) else "a list, table or tar"
            raise DissensusError(f"{kind} must be the only path; got {path} and {len(paths) - 1} others: give it alone")
    source = _lines() if paths == ["-"] else paths[0] if len(paths) == 1 else paths
    return detector.stream(source, batch_size=batch_size, workers=workers)


def source_of(paths: list[str]) -> ImageSet | ImageStream | FeatureSet | Names:
    """Return what one path names, in a form that can be divided: a folder as the paths in it.

    Raises:
        DissensusError: If there is more than one path, or it is a list on stdin.
    """
    from dissensus.detection.samples import is_listing
    from dissensus.features import JoinedFeatures, is_features
    from dissensus.features.joined import open_features
    from dissensus.images import ImageSet, ImageStream, Names, is_stream, walk

    if len(paths) > 1 or paths == ["-"]:
        raise DissensusError(
            f"--on ray and --part divide one folder, list, table, tar, pattern or feature folder; got "
            f"{'-' if paths == ['-'] else len(paths)}: give one"
        )
    if is_features(paths[0]):
        features = open_features(paths[0])
        if isinstance(features, JoinedFeatures):
            raise DissensusError(
                f"--on ray and --part divide features of one backbone, or images; {paths[0]} is features of "
                f"{len(features.parts)}: give the images, or leave out --on and --part"
            )
        return features
    if is_stream(paths[0]):
        return ImageStream.find(paths[0], unlabelled=True)
    if is_listing(paths[0]):
        return ImageSet.find(paths[0], unlabelled=True)
    names = Names.of(walk(paths))
    if not names:
        raise DissensusError(f"no image to predict; {paths[0]} names none: check the path")
    return names


def _lines() -> Iterator[str]:
    from dissensus.images import lines_of

    if sys.stdin is None:
        raise DissensusError("- reads paths from stdin; it is closed: pipe a list into it")
    for line in lines_of(sys.stdin, "stdin"):
        if name := line.rstrip("\r\n"):
            yield name


def writer(file_format: str, file: TextIO, detector: Detector, explain: bool) -> Callable[[Verdict], None]:
    """Return a function that writes one verdict to a file; `explain` adds members' votes and scores' p-values."""
    if file_format == "jsonl":
        return lambda verdict: print(json.dumps(verdict.as_dict(explain=explain)), file=file, flush=True)
    return (_csv if file_format == "csv" else _table)(file, detector, explain)


def _csv(file: TextIO, detector: Detector, explain: bool) -> Callable[[Verdict], None]:
    line = io.StringIO()
    rows = csv.writer(line, lineterminator="\n")
    raw = not file.isatty()  # a terminal would obey control characters

    def put(cells: list[Any]) -> None:
        rows.writerow(cells)
        text = line.getvalue()
        file.write(text if raw else printable(text, keep="\t\n"))
        file.flush()
        line.seek(line.truncate(0))

    def write(verdict: Verdict) -> None:
        values = verdict.as_dict()
        for column in TEXTS:
            values[column] = to_cell(values[column] or "")
        parts = ";".join(f"{name}={p_value:.7g}" for name, p_value in verdict.parts)
        more = [to_cell(";".join(verdict.votes)), to_cell(parts)] * explain
        put([*(values[column] for column in COLUMNS), *more])

    put([*COLUMNS, *["votes", "parts"] * explain])
    return write


def _table(file: TextIO, detector: Detector, explain: bool) -> Callable[[Verdict], None]:
    from dissensus.detection.verdicts import NOTHING_UNUSUAL

    calibrated = detector.threshold is not None
    class_width = max(5, min(24, max(map(len, detector.classes))))
    score = detector.score_name if len(detector.score_name) <= SCORE_WIDTH else "score"
    score_width = max(6, len(score))
    verdict_width = len(NOTHING_UNUSUAL)
    headings = ["verdict".ljust(verdict_width), "p-value"] * calibrated
    headings += [score.rjust(score_width), "sure", "class".ljust(class_width), "path"]
    line = "  ".join(headings)
    show(f"{line}\n{'-' * len(line)}", file=file)

    def write(verdict: Verdict) -> None:
        if verdict.error:
            show(printable(f"error: {verdict.error}: {verdict.name}"), file=file)
            return
        cells = [verdict.verdict.ljust(verdict_width), f"{verdict.p_value:7.4f}"] if calibrated else []
        cells += [f"{verdict.score:.3f}".rjust(score_width), f"{verdict.confidence:4.0%}"]
        cells += [printable(verdict.class_name or "")[:class_width].ljust(class_width), printable(verdict.name)]
        show("  ".join(cells), file=file)
        if explain:
            votes = Counter(verdict.votes).most_common()
            names = ", ".join(f"{name} {count}" for name, count in votes)
            show(printable(f"{'':9}votes: {names}"), file=file)
        if explain and verdict.parts:
            parts = ", ".join(f"{name} {p_value:.4f}" for name, p_value in verdict.parts)
            show(f"{'':9}p-values: {parts}", file=file)

    return write
