"""Verdicts read from the JSON lines of `dissensus predict`, checked against the run that watches them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from dissensus._core.errors import DataError, DissensusError, short
from dissensus._core.places import place, storage_errors
from dissensus.cli.command import say
from dissensus.detection.threshold import Threshold
from dissensus.detection.verdicts import Verdict

LONGEST = 2**22  # bytes of a line; one of a thousand members has a few kB
ROUNDED = 1e-6  # relative error of scores and p-values with seven digits


def read(where: str, classes: Sequence[str], threshold: Threshold) -> Iterator[Verdict]:
    """Yield the verdicts of a file of JSON lines, or of stdin if `where` is -.

    Raises:
        DataError: At a line that is not a verdict, or one of another run or calibration; it is named by its number.
    """
    if where == "-" and sys.stdin is None:
        raise DissensusError("- reads JSON lines from stdin; it is closed: pipe dissensus predict into it")
    with storage_errors(where):
        try:
            opened = nullcontext(sys.stdin.buffer) if where == "-" else place(where).open("rb")
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DissensusError(f"--verdicts must be a file of JSON lines; there is none at {where}") from error
    with opened as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
            if not line.strip():
                continue
            what = f"line {number} of {'stdin' if where == '-' else where}"
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n") and len(line) < LONGEST:  # the writer was stopped
                    say(f"{what} is cut off and left out")
                    return
                raise DataError(
                    f"{what} must be JSON, as of dissensus predict --format jsonl; got {short(line)}: remove it"
                ) from error
            verdict = _verdict(values, what)
            _check(verdict, classes, threshold, what)
            yield verdict


def _verdict(values: Any, what: str) -> Verdict:
    if not isinstance(values, dict) or "score" not in values or "error" not in values:
        raise DataError(
            f"{what} must be a verdict, as of dissensus predict --format jsonl; got {short(values)}: remove it"
        )
    if values["error"] is not None:
        return Verdict(str(values.get("path")), error=str(values["error"]))
    votes, parts = values.get("votes", []), values.get("parts", [])
    pairs: list[tuple[Any, Any]] = [
        (each.get("score"), each.get("p_value")) if isinstance(each, dict) else (None, None)
        for each in (parts if isinstance(parts, list) else [None])
    ]
    if not all(isinstance(name, str) and _is_share(p_value) for name, p_value in pairs):
        raise DataError(
            f"{what}: parts must be scores with p-values within [0, 1]; got {short(parts)}: predict it again"
        )
    if not isinstance(votes, list) or not all(isinstance(vote, str) for vote in votes):
        raise DataError(f"{what}: votes must be names of classes; got {short(votes)}: predict it again")
    label: Any = values.get("label")
    score: Any = values["score"]
    p_value: Any = values.get("p_value")
    if p_value is None:
        raise DataError(f"{what} has no p_value: calibrate the run and predict again")
    if not _is_share(p_value):
        raise DataError(f"{what}: p_value must be within [0, 1]; got {short(p_value)}: predict it again")
    if not _is_number(score) or math.isnan(score):
        raise DataError(f"{what}: score must be a number; got {short(score)}: predict it again")
    if type(label) is not int:
        raise DataError(f"{what}: label must be the number of a class; got {short(label)}: predict it again")
    return Verdict(
        str(values.get("path")), label=label, class_name=values.get("class"), score=float(score),
        p_value=float(p_value), votes=tuple(votes), parts=tuple((str(name), float(p)) for name, p in pairs),
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _check(verdict: Verdict, classes: Sequence[str], threshold: Threshold, what: str) -> None:
    """Raise if a verdict cannot be one of this run: its class has another name, or its p-value another score."""
    if verdict.error is not None:
        return
    assert verdict.label is not None
    assert verdict.score is not None
    assert verdict.p_value is not None
    named = classes[verdict.label] if 0 <= verdict.label < len(classes) else None
    if named is None or named != verdict.class_name:
        raise DataError(
            f"{what} is of another run: class {verdict.label} is {short(verdict.class_name)} there, "
            f"{short(named)} here: give verdicts of this run"
        )
    size = ROUNDED * abs(verdict.score)
    around = torch.tensor([verdict.score + size, verdict.score - size])
    low, high = threshold.calibrated.p_values(around, torch.tensor([verdict.label] * 2)).tolist()
    if not low * (1 - ROUNDED) <= verdict.p_value <= high * (1 + ROUNDED):
        raise DataError(
            f"{what} is of another run or calibration: its score {verdict.score:.4g} has p-value {verdict.p_value:.4g} "
            f"there, {high:.4g} here: give verdicts of this run"
        )
