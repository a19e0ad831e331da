"""Checkpoints: the last two states of a training run, so that a damaged file costs minutes and not the run.

checkpoint.safetensors   the newest: weights, moments, counters and the number of steps
previous.safetensors     the one before

Each file holds the digest of its tensors. A damaged newest one is reported, and training goes on from the one before.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dissensus._core import tensors
from dissensus._core.errors import DissensusWarning, RunError

NEWEST, PREVIOUS = "checkpoint.safetensors", "previous.safetensors"
STEP = "step"  # the tensor that counts the steps
REMEDY = f"remove {NEWEST} and {PREVIOUS} to start again"


class Checkpoints:
    """The checkpoints in a run folder."""

    def __init__(self, folder: Path) -> None:
        self._newest, self._previous = folder / NEWEST, folder / PREVIOUS
        self._keep = True  # whether the newest one is whole, so that the next one does not replace it

    def save(self, state: Mapping[str, Tensor], step: int) -> None:
        """Write the state after `step` steps as the newest checkpoint; the newest so far becomes the previous one."""
        keep = self._previous if self._keep else None
        tensors.write(self._newest, {**state, STEP: torch.tensor(step)}, keep=keep)
        self._keep = True

    def load(self, state: Mapping[str, Tensor], *, warn: bool = True) -> int:
        """Copy the newest checkpoint into `state` in place; return the number of its steps, 0 if there is none.

        Raises:
            RunError: If there are checkpoints, and none can be used.

        Warns:
            DissensusWarning: If the newest one is damaged, so that the one before is used; not if `warn` is False.
        """
        problem = None
        for path in (self._newest, self._previous):
            if not path.is_file():
                continue
            try:
                step = _restore(path, state)
            except RunError as error:
                problem = problem or error
                continue
            if problem is not None:
                self._keep = False
                if warn:
                    message = f"{self._newest} is damaged; training goes on from {path.name}, after step {step}"
                    warnings.warn(message, DissensusWarning, stacklevel=2)
            return step
        if problem is not None:
            raise problem
        return 0

    def remove(self) -> None:
        """Remove the checkpoints."""
        for path in (self._newest, self._previous):
            path.unlink(missing_ok=True)


def _restore(path: Path, state: Mapping[str, Tensor]) -> int:
    """Copy a checkpoint into `state` in place, all of it or nothing; return the number of its steps."""
    saved = tensors.read(path, remedy=REMEDY)
    expected = {**{name: value.shape for name, value in state.items()}, STEP: torch.Size()}
    if {name: value.shape for name, value in saved.items()} != expected:
        raise RunError(f"{path} must be a checkpoint of this run; it has other tensors: {REMEDY}")
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(saved[name])
    return int(saved[STEP])
