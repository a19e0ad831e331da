"""What the JSON API returns, as in its OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class Probability(BaseModel):
    """One of the most probable classes."""

    class_name: str = Field(alias="class")
    probability: float


class Part(BaseModel):
    """One of the scores that are combined."""

    score: str = Field(description="its name")
    p_value: float = Field(description="how unusual this score alone is among held-out images")


class Result(BaseModel):
    """One file. If it cannot be read, error says why and the rest is null."""

    path: str = Field(description="the file's name as sent")
    label: int | None = Field(description="predicted class, as a number")
    class_name: str | None = Field(alias="class", description="predicted class, by name")
    confidence: float | None = Field(description="probability of that class")
    score: float | None = Field(description="higher = more out of distribution")
    p_value: float | None = Field(
        description="how unusual the score is among held-out images; null if the run is not calibrated"
    )
    verdict: Literal["out", "nothing unusual"] | None = Field(description="null if the run is not calibrated")
    error: str | None
    votes: list[str] = Field(description="each member's class")
    parts: list[Part] = Field(description="the scores that are combined; empty if there is only one")
    threshold: float | None = Field(description="the score above which the verdict is out")
    top: list[Probability] = Field(description="the most probable classes")


class Answer(BaseModel):
    """What a prediction returns."""

    run: str = Field(description="name of the run folder")
    score: str = Field(description="the score; several are joined by +")
    calibrated: bool
    false_alarms: float | None = Field(description="the rate of these verdicts")
    results: list[Result] = Field(description="one for each file, in order")


class Asked(BaseModel):
    """An image to label."""

    row: int = Field(description="its place among the files, from 0")
    path: str = Field(description="the file's name as sent")
    reason: str = Field(description="how the members vote")


class Unused(BaseModel):
    """A file that is not a candidate."""

    path: str
    error: str


class Questions(BaseModel):
    """What to label."""

    run: str = Field(description="name of the run folder")
    questions: list[Asked] = Field(description="most informative first")
    errors: list[Unused] = Field(description="files that cannot be read, and copies of others")


class Error(BaseModel):
    """What is wrong with a request."""

    error: str


class Health(BaseModel):
    """What holds for the server."""

    status: Literal["ok"]
    version: str
    run: str = Field(description="name of the run folder")
    score: str = Field(description="the score; several are joined by +")
    calibrated: bool
    false_alarms: float | None = Field(description="the calibrated rate")


class Ready(BaseModel):
    """Whether to send requests here."""

    status: Literal["ready"]


Responses = dict[int | str, dict[str, Any]]


def _errors(**reasons: str) -> Responses:
    return {int(status[1:]): {"model": Error, "description": reason} for status, reason in reasons.items()}


EVERYWHERE = _errors(_400="a Host header that is not allowed", _401="no token, or a wrong one")
READY: Responses = {200: {"model": Ready}, **EVERYWHERE, **_errors(_503="stopping, or too many requests are waiting")}
HEALTH: Responses = {200: {"model": Health}, **EVERYWHERE, **_errors(_503="predictions have stopped: start again")}
PREDICT: Responses = {
    200: {"model": Answer, "description": "at least one file was read"},
    **EVERYWHERE,
    **_errors(
        _400="a rate that the calibration does not support, a Host header that is not allowed, or a request that "
        "cannot be parsed",
        _403="sent by a page of another server",
        _413="too large: in bytes or pixels",
        _422="no file, or none that is a readable image; a parameter out of range",
        _503="too many requests are waiting, or this one took too long",
    ),
}
ASK: Responses = PREDICT | {200: {"model": Questions, "description": "what to label"}}
