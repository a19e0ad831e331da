"""Responses: predictions as JSON and as a table, with the JSON schema that documents them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dissensus.detection.verdicts import frame
from dissensus.serve.service import Inspection, Service

_number: dict[str, Any] = {"type": ["number", "null"]}
RESULT: dict[str, Any] = {
    "type": "object",
    "description": "One file. If it cannot be read, error says why and the rest is null.",
    "properties": {
        "path": {"type": "string", "description": "the file's name as sent"},
        "label": {"type": ["integer", "null"], "description": "predicted class, as a number"},
        "class": {"type": ["string", "null"], "description": "predicted class, by name"},
        "confidence": {**_number, "description": "probability of that class"},
        "score": {**_number, "description": "higher = more out of distribution"},
        "p_value": {
            **_number,
            "description": "how unusual the score is among held-out images; null if the run is not calibrated",
        },
        "verdict": {
            "type": ["string", "null"],
            "enum": ["in", "out", None],
            "description": "null if the run is not calibrated",
        },
        "error": {"type": ["string", "null"]},
        "votes": {"type": "array", "items": {"type": "string"}, "description": "each member's class"},
        "threshold": {**_number, "description": "the score above which the verdict is out"},
        "top": {
            "type": "array",
            "description": "the most probable classes",
            "items": {
                "type": "object",
                "properties": {"class": {"type": "string"}, "probability": {"type": "number"}},
                "required": ["class", "probability"],
            },
        },
    },
}
RESULT["required"] = list(RESULT["properties"])
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "run": {"type": "string", "description": "name of the run folder"},
        "score": {"type": "string", "description": "the score; several are joined by +"},
        "calibrated": {"type": "boolean"},
        "false_alarms": {**_number, "description": "the rate of these verdicts"},
        "results": {"type": "array", "items": RESULT, "description": "one for each file, in order"},
    },
    "required": ["run", "score", "calibrated", "false_alarms", "results"],
}
ERROR: dict[str, Any] = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def facts(service: Service, rate: float | None = None) -> dict[str, Any]:
    """Return what holds for every result at a false-alarm rate."""
    rule = service.detector_at(rate).threshold
    return {
        "run": service.name,
        "score": service.detector.score_name,
        "calibrated": rule is not None,
        "false_alarms": None if rule is None else rule.false_alarms,
    }


def result(service: Service, inspection: Inspection, rate: float | None = None) -> dict[str, Any]:
    """Return one file's result, as RESULT documents it."""
    verdict, limit = service.verdict(inspection, rate)
    classes = [] if verdict.error is not None else service.top_classes(inspection)
    top = [{"class": name, "probability": round(prob, 6)} for name, prob in classes]
    return verdict.as_dict(votes=True) | {"threshold": None if limit is None else float(f"{limit:.7g}"), "top": top}


def table(service: Service, inspections: Sequence[Inspection], rate: float | None = None) -> pd.DataFrame:
    """Return one row per file: the columns of `dissensus predict`, then the members' votes."""
    return frame([service.verdict(one, rate)[0] for one in inspections], len(service.detector.ensemble))
