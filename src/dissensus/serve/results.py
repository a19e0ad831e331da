"""Results as JSON and as a table, with the schema that documents them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from dissensus.serve.service import Seen, Service

_number: dict[str, Any] = {"type": ["number", "null"]}
RESULT: dict[str, Any] = {
    "type": "object",
    "description": "One file. Where it cannot be read, error says why and the rest is null.",
    "properties": {
        "path": {"type": "string", "description": "the file's name as it was sent"},
        "label": {"type": ["integer", "null"], "description": "number of the class"},
        "class": {"type": ["string", "null"], "description": "name of the class"},
        "confidence": {**_number, "description": "the ensemble's probability of that class"},
        "score": {**_number, "description": "higher = more out of distribution"},
        "p_value": {**_number, "description": "null where the run is not calibrated"},
        "verdict": {"type": ["string", "null"], "enum": ["in", "out", None], "description": "null if not calibrated"},
        "error": {"type": ["string", "null"]},
        "votes": {"type": "array", "items": {"type": "string"}, "description": "each member's class"},
        "threshold": {**_number, "description": "the score above which the verdict is out"},
        "top": {
            "type": "array",
            "description": "the ensemble's likeliest classes",
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
        "score": {"type": "string", "description": "which score, or scores"},
        "calibrated": {"type": "boolean"},
        "false_alarms": {**_number, "description": "the rate that verdicts were given at"},
        "results": {"type": "array", "items": RESULT, "description": "one for each file, in order"},
    },
    "required": ["run", "score", "calibrated", "false_alarms", "results"],
}
ERROR: dict[str, Any] = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def facts(service: Service, rate: float | None = None) -> dict[str, Any]:
    """What holds for every result."""
    rule = service.at(rate).threshold
    return {
        "run": service.name,
        "score": service.detector.score_name,
        "calibrated": rule is not None,
        "false_alarms": None if rule is None else rule.false_alarms,
    }


def result(service: Service, seen: Seen, rate: float | None = None) -> dict[str, Any]:
    """One file's result, as RESULT says."""
    verdict, limit = service.judge(seen, rate)
    chances = [] if verdict.error is not None else service.chances(seen)
    top = [{"class": name, "probability": round(prob, 6)} for name, prob in chances]
    return verdict.as_dict(votes=True) | {"threshold": None if limit is None else float(f"{limit:.7g}"), "top": top}


def table(service: Service, many: Sequence[Seen], rate: float | None = None) -> pd.DataFrame:
    """A row a file, for reading and as CSV: the columns of `dissensus predict`, then the members' votes."""
    verdicts = [service.judge(seen, rate)[0] for seen in many]
    count = len(service.detector.ensemble)
    votes = [(*v.votes, *[None] * (count - len(v.votes))) for v in verdicts]
    names = [f"member {number + 1}" for number in range(count)]
    return pd.DataFrame([v.as_dict() for v in verdicts]).join(pd.DataFrame(votes, columns=names))
