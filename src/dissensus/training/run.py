"""The run folder: what was asked, how it went, where it stands. Everything a killed run needs to go on.

run.json                 settings, data, versions, status
metrics.jsonl            a line every few steps and every epoch
checkpoint.safetensors   weights, moments and counters of a run that is not finished
ensemble/                the result
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dissensus._core.errors import RunError
from dissensus._core.files import is_temporary, make_folder, read_json, remove_temporaries, replacing, write_json

FORMAT = "dissensus-run-1"


class Run:
    """A folder that belongs to one training run. Made by `claim` to write, by `open` to read."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder, self.info = folder, info

    @classmethod
    def claim(cls, folder: str | os.PathLike[str], settings: Mapping[str, Any], *, resume: bool) -> Run:
        """Take a new folder for these settings, or one that holds the same run already."""
        folder = Path(folder)
        info = {"format": FORMAT, "status": "running", "settings": json.loads(json.dumps(settings))}
        if folder.exists() and not folder.is_dir():
            raise RunError(f"the output must be a folder; {folder} is a file: choose another --out")
        if not folder.exists() or all(is_temporary(path.name) for path in folder.iterdir()):
            make_folder(folder)
            remove_temporaries(folder)
            write_json(folder / "run.json", info)
            return cls(folder, info)
        found = read_json(folder / "run.json")
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise RunError(f"{folder} holds files that are not of a run; choose another --out, or empty it yourself")
        differing = sorted(
            key
            for key in {*found["settings"], *info["settings"]}
            if found["settings"].get(key) != info["settings"].get(key)
        )
        if differing:
            shown = ", ".join(
                f"{key} is {_short(found['settings'].get(key))} there, {_short(info['settings'].get(key))} here"
                for key in differing[:3]
            )
            raise RunError(f"{folder} holds another run ({shown}); choose another --out, or remove it yourself")
        if not resume:
            raise RunError(f"{folder} holds this run already; resume it, choose another --out, or remove it yourself")
        remove_temporaries(folder)
        return cls(folder, found)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a run folder; a missing, foreign or unfinished one is refused with the reason."""
        folder = Path(folder)
        if not folder.is_dir():
            raise RunError(
                f"no run at {folder}: there is no such folder; train one with: dissensus train ... --out {folder}"
            )
        info = read_json(folder / "run.json")
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise RunError(f"{folder} is not a run: run.json is missing or foreign; give the folder that train wrote")
        if info["status"] != "finished":
            raise RunError(f"the run in {folder} is not finished; start the same training command again and it goes on")
        return cls(folder, info)

    @property
    def settings(self) -> dict[str, Any]:
        """What was asked for, as plain values."""
        return dict(self.info["settings"])

    @property
    def about(self) -> dict[str, Any]:
        """What tells this run's rows from others' in a table of results."""
        return {name: self.settings[name] for name in ("method", "active", "diversity", "seed")}

    @property
    def finished(self) -> bool:
        """Whether the trained ensemble is there."""
        return bool(self.info["status"] == "finished")

    @property
    def ensemble_folder(self) -> Path:
        """Where the trained ensemble is."""
        return self.folder / "ensemble"

    def finish(self) -> None:
        """Mark the run as finished, once its ensemble is saved, and drop the checkpoint."""
        self.info["status"] = "finished"
        write_json(self.folder / "run.json", self.info)
        (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)

    def save_checkpoint(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write the state after `step` steps, in place of the former one."""
        with replacing(self.folder / "checkpoint.safetensors") as path:
            save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, path, {"step": str(step)})

    def load_checkpoint(self, tensors: Mapping[str, Tensor]) -> int:
        """Copy the saved state into `tensors` in place; the number of steps it is after, 0 where there is none."""
        path = self.folder / "checkpoint.safetensors"
        if not path.is_file():
            return 0
        try:
            with safe_open(path, framework="pt") as file, torch.no_grad():
                for name, value in tensors.items():
                    value.copy_(file.get_tensor(name))
                return int(file.metadata()["step"])
        except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
            raise RunError(f"the checkpoint {path} cannot be read ({error}); remove it to start anew") from error

    def log(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        try:
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(
                f"cannot write {self.folder / 'metrics.jsonl'}: {error.strerror}; free some space"
            ) from error

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl; one cut short by a kill is left out."""
        path = self.folder / "metrics.jsonl"
        for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                continue

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`: those steps are about to be done again."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        with replacing(self.folder / "metrics.jsonl") as path:
            path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:21] + "..."
