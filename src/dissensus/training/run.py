"""The run folder: settings, progress and result of one training run, and all that a killed run needs to continue.

run.json                 settings, data, versions, status
metrics.jsonl            a line every few steps and every epoch
checkpoint.safetensors   weights, moments and counters of a run that is not finished
previous.safetensors     the checkpoint before, in case that one is damaged
ensemble/                the result
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import torch
from lightning_fabric import Fabric
from pydantic import ConfigDict, Field, JsonValue, ValidationError, field_validator
from torch import Tensor

from dissensus import __version__
from dissensus._core import documents
from dissensus._core.documents import Document, Part
from dissensus._core.errors import RunError, some
from dissensus._core.files import cannot_write, is_temporary, make_folder, replacing
from dissensus._core.outputs import writing
from dissensus._core.places import is_remote, place
from dissensus.backbones import BackboneDescription
from dissensus.backbones.joined import JoinedDescription
from dissensus.models import joined
from dissensus.models.saved import MemberTailInfo
from dissensus.training.checkpoints import Checkpoints
from dissensus.training.options import Settings

INFO = "run.json"
METRICS = "metrics.jsonl"
AUTO = "auto"  # the method of runs that `tune` made
TUNING = ("tuning", "tuning.csv", "tuning.json")  # what `tune` keeps beside its run
ADAPTATION = "adaptation.json"  # of runs that `adapt` made
FOLDERS = ("ensemble", "evaluation")  # of a run


class Data(Part):
    """What the result of a run depends on besides its settings, by fingerprint."""

    train: str
    samples: int  # of the training set, without those of weight zero
    images: str | None  # that the training features were extracted from
    classes: tuple[str, ...]
    disagreement: str | None
    sample_weight: str | None
    backbone: BackboneDescription | JoinedDescription | None
    tail: MemberTailInfo | None
    start: str  # the initial weights


class RunInfo(Document):
    """run.json."""

    remedy = "give the folder that dissensus train wrote"

    format: Literal["dissensus-run-3"] = "dissensus-run-3"
    status: Literal["running", "finished"]
    settings: dict[str, JsonValue]  # the fields of `Settings`
    data: Data
    versions: dict[str, str]
    notes: tuple[str, ...]  # what the user should know about the training

    @field_validator("settings")
    @classmethod
    def _check_settings(cls, values: dict[str, Any]) -> dict[str, Any]:
        names = [field.name for field in fields(Settings)]
        if missing := [name for name in names if name not in values]:
            raise ValueError(f"{missing[0]} is missing")
        if unknown := [name for name in values if name not in names]:
            raise ValueError(f"{unknown[0]} is not a setting")
        return asdict(Settings(**values))


class Line(Part):
    """A line of metrics.jsonl: means since the last line of its kind, by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    kind: Literal["step", "epoch", "held-out"]
    step: int
    epoch: float
    lr: float
    seconds: float


@contextmanager
def writing_run(
    folder: str | os.PathLike[str], fabric: Fabric | None = None, *, remedy: str = "wait for it, or choose another"
) -> Iterator[None]:
    """Hold a run folder while something is written to it, with `writing`; of several processes, the first holds it.

    Raises:
        RunError: In all processes, if another command is writing it.
    """
    with ExitStack() as held:
        refusal = ""
        if fabric is None or fabric.is_global_zero:
            try:
                held.enter_context(writing(folder, *FOLDERS, remedy=remedy))
            except RunError as error:
                refusal = str(error)
        if reason := refusal if fabric is None else str(fabric.broadcast(refusal)):
            raise RunError(reason)
        yield


class Run:
    """A folder that belongs to one training run. `claim` opens it for writing, `open` for reading."""

    def __init__(self, folder: Path, info: RunInfo) -> None:
        self.folder, self.info = folder, info
        self._pending: list[str] = []  # lines of metrics.jsonl
        self.checkpoints = Checkpoints(folder)

    @classmethod
    def claim(cls, folder: str | os.PathLike[str], settings: Settings, data: Data, *, resume: bool) -> Run:
        """Claim a new folder for a run, or one that holds the same run already; call it within `writing_run`.

        Raises:
            RunError: if the folder holds anything else, or if it holds this run and `resume` is False.
        """
        folder = place(folder)
        wanted = cls(
            folder, RunInfo(status="running", settings=asdict(settings), data=data, versions=versions(), notes=())
        )
        if folder.exists() and not folder.is_dir():
            raise RunError(f"the output must be a folder; {folder} is a file: choose another --out")
        if not folder.exists() or all(is_temporary(path.name) or path.name in TUNING for path in folder.iterdir()):
            make_folder(folder)
            documents.write(folder / INFO, wanted.info)
            return wanted
        if not (folder / INFO).is_file():
            raise RunError(f"{folder} holds files that are not of a run; choose another --out, or empty it yourself")
        run = cls.join(folder)
        there, here = run.settings, wanted.settings
        differing = [name for name in here if there[name] != here[name]]
        if differing:
            shown = ", ".join(_difference(k, there[k], here[k]) for k in differing[:3])
            raise RunError(f"{folder} holds another run ({shown}); choose another --out, or remove it yourself")
        if not resume:
            raise RunError(f"{folder} holds this run already; resume it, choose another --out, or remove it yourself")
        return run

    @classmethod
    def join(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a run folder that this or another process has claimed, finished or not."""
        return cls(place(folder), documents.read(RunInfo, place(folder) / INFO))

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Read the folder of a finished run.

        Raises:
            RunError: if there is no finished run.
        """
        folder = place(folder)
        if not folder.is_dir():
            raise RunError(
                f"no run at {folder}: there is no such folder; train one with: dissensus train ... --out {folder}"
            )
        if not (folder / INFO).is_file():
            inside = sorted(path.parent.name for path in folder.glob(f"*/{INFO}"))
            remedy = f"give one of the runs in it: {some(inside, 10)}" if inside else RunInfo.remedy
            raise RunError(f"{folder} is not a run: it has no {INFO}; {remedy}")
        run = cls.join(folder)
        if not run.finished:
            raise RunError(f"the run in {folder} is not finished; start the same training command again and it goes on")
        return run

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of training and what the data were, as plain values by name."""
        return {**self.info.settings, **self.info.data.model_dump(mode="json")}

    @property
    def about(self) -> dict[str, Any]:
        """The settings that distinguish the rows of this run in a table of results.

        The method of `tune` is auto; that of a run of `adapt` ends in ", adapted".
        """
        about = {name: self.settings[name] for name in ("method", "active", "diversity", "seed")}
        method = AUTO if (self.folder / TUNING[-1]).is_file() else about["method"]
        return {**about, "method": f"{method}, adapted" if self.adapted else method}

    @property
    def adapted(self) -> bool:
        """Whether `adapt` made this run."""
        return (self.folder / ADAPTATION).is_file()

    @property
    def named(self) -> dict[str, Any]:
        """All settings, with the method as tables show it: what `name_runs` tells runs apart by."""
        return {**self.settings, "method": self.about["method"]}

    @property
    def finished(self) -> bool:
        """Whether the trained ensemble is there."""
        return self.info.status == "finished"

    @property
    def ensemble_folder(self) -> Path:
        """Where the trained ensemble is."""
        return self.folder / "ensemble"

    @property
    def parts(self) -> dict[str, Path]:
        """The folders of the runs that were joined, by the names of their backbones; none for a run on one backbone."""
        return {name: folder.parent for name, folder in joined.part_folders(self.ensemble_folder).items()}

    def check_single(self, what: str) -> None:
        """Raise if the run joins several backbones; `what` begins the message: "export writes one backbone"."""
        if self.parts:
            raise RunError(
                f"{what} at a time; {self.folder} joins {' and '.join(self.parts)}: give one of "
                f"{', '.join(map(str, self.parts.values()))}"
            )

    def finish(self, notes: Sequence[str] = ()) -> None:
        """Mark the run as finished, once its ensemble is saved, and drop the checkpoints."""
        self._write_pending()
        self.info = self.info.model_copy(update={"status": "finished", "notes": tuple(notes)})
        documents.write(self.folder / INFO, self.info)
        self.checkpoints.remove()

    def save_checkpoint(self, state: Mapping[str, Tensor], step: int) -> None:
        """Write the state after `step` steps as the newest checkpoint, and what was logged until then."""
        self._write_pending()
        self.checkpoints.save(state, step)

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl; at a URL, with the next checkpoint."""
        if is_remote(self.folder):
            self._pending.append(json.dumps(line) + "\n")
            return
        try:
            with open(self.folder / METRICS, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise cannot_write(self.folder / METRICS, error) from error

    def _write_pending(self) -> None:
        """Write the lines that wait: object stores replace files, they do not append to them."""
        if self._pending:
            path = self.folder / METRICS
            before = path.read_text(encoding="utf-8") if path.is_file() else ""
            with replacing(path) as temporary:
                temporary.write_text(before + "".join(self._pending), encoding="utf-8")
            self._pending.clear()

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl; a last one that a kill cut short is left out.

        Raises:
            RunError: for a damaged line.
        """
        path = self.folder / METRICS
        try:
            lines = path.read_bytes().splitlines() if path.is_file() else []
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}; check its rights") from error
        for number, text in enumerate(lines, start=1):
            try:
                values = Line.model_validate_json(text).model_dump()
                seconds = values.pop("seconds")
                yield {**values, "seconds": seconds}  # last, as it is written
            except ValidationError as error:
                if number < len(lines):
                    problem = documents.problem(error)
                    raise RunError(f"{path} is damaged in line {number}, {problem}: train again") from error

    def rewind(self, step: int) -> None:
        """Remove the lines after `step`: those steps are about to be repeated."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        with replacing(self.folder / METRICS) as path:
            path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def _difference(name: str, there: Any, here: Any) -> str:
    """How a setting differs, in few digits unless these are the same."""
    first, second = _short(there), _short(here)
    if first == second:
        first, second = str(there), str(here)
    return f"{name} is {first} there, {second} here"


def versions() -> dict[str, str]:
    """The versions that run.json records."""
    return {"dissensus": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    if re.fullmatch(r"[0-9a-f]{16,}", text):  # a fingerprint
        return text[:8]
    return text if len(text) <= 24 else text[:21] + "..."
