"""Logbook: the progress of training as a progress bar, lines of metrics.jsonl and those of a logger."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from dissensus._core.errors import DissensusError
from dissensus.functional.checks import widest
from dissensus.training import loggers
from dissensus.training.options import Settings, TrainOptions
from dissensus.training.run import Run
from dissensus.training.step import STATISTICS

QUARTERS = 4
# Training has not converged if the last quarter has more than this share of the whole fall of the cross-entropy (1/3 if
# it falls steadily), and this fall is more than 2%, or the training accuracy rises by more than a point.
STEEP, FALL, RISE = 0.15, 0.02, 0.01


class Logbook:
    """Adds up STATISTICS step by step; writes their means every few steps and every epoch.

    Its sums are part of the checkpoint, so a resumed run writes the lines that an unbroken one would.
    """

    def __init__(
        self, settings: Settings, options: TrainOptions, per_epoch: int, device: torch.device, run: Run | None
    ) -> None:
        self.settings, self.options, self.per_epoch, self.run = settings, options, per_epoch, run
        self.steps = per_epoch * settings.epochs
        # sums of STATISTICS and the number of steps, since the last line and since the epoch began
        self.sums = torch.zeros(2, len(STATISTICS) + 1, dtype=widest(device), device=device)
        self.seconds = torch.zeros(2, dtype=torch.float64)
        # the same sums for each quarter of the training, see `notes`
        self.quarters = torch.zeros(QUARTERS, len(STATISTICS) + 1, dtype=widest(device), device=device)
        self.bar: tqdm[Any] | None = None
        self.logger: loggers.Log | None = None
        self.finished = False

    def state(self) -> dict[str, Tensor]:
        """The part of the logbook that a checkpoint saves."""
        return {"log.sums": self.sums, "log.seconds": self.seconds, "log.quarters": self.quarters}

    def open(self, start: int, *, progress: bool) -> None:
        """Start after `start` steps: rewind the file, open the progress bar and the logger."""
        self.clock = self.shown = time.monotonic()
        self.bar = tqdm(
            total=self.steps, initial=start, desc=self.settings.method, unit="step", dynamic_ncols=True,
            disable=None if progress else True, leave=False,
        )  # fmt: skip
        if self.run is None:
            return
        self.run.rewind(start)
        if self.options.logger is not None:
            self.logger = loggers.start(self.options.logger, self.run.folder, self.run.settings, start)

    def add(self, done: int, statistics: Tensor) -> None:
        """Add the statistics (5,) of step number `done`."""
        self.sums[:, :-1] += statistics
        self.sums[:, -1] += 1
        quarter = self.quarters[min(QUARTERS - 1, int(QUARTERS * self.settings.travelled((done - 0.5) / self.steps)))]
        quarter[:-1] += statistics
        quarter[-1] += 1
        now = time.monotonic()
        self.seconds += now - self.clock
        self.clock = now
        at_epoch = done % self.per_epoch == 0
        at_line = at_epoch or done % self.per_epoch % self.options.log_every == 0
        if self.bar is not None:
            self.bar.update()
            if not self.bar.disable and (now - self.shown > 0.2 or done == self.steps):
                means = self._means(0)
                self.bar.set_postfix({name: f"{value:.3g}" for name, value in means.items()}, refresh=False)
                self.shown = now
        if at_line:
            self._write("step", done, 0)
        if at_epoch:
            self._write("epoch", done, 1)

    def held_out(self, done: int, value: float | None) -> None:
        """Write the cross-entropy on the held-out samples, where there is one."""
        if value is not None and self.run is not None:
            self.run.log({"kind": "held-out", **self._place(done), "cross_entropy": value, "seconds": 0.0})
            if self.logger is not None:
                self.logger.metrics({"held-out/cross_entropy": value}, done)

    def check(self, done: int) -> None:
        """Raise if the loss is not finite, before the weights are saved."""
        loss = float(self.sums[:, 0].sum())
        if not math.isfinite(loss):
            s = self.settings
            raise DissensusError(
                f"the loss is not finite by step {done}: lower lr ({s.lr:g}) or diversity ({s.diversity:g}), "
                f"or limit the gradient with clip (now {s.clip})"
            )

    def _means(self, row: int) -> dict[str, float]:
        return dict(zip(STATISTICS, (self.sums[row, :-1] / self.sums[row, -1]).tolist(), strict=True))

    def _write(self, kind: str, done: int, row: int) -> None:
        self.check(done)
        means = self._means(row)
        if self.run is not None:
            self.run.log({"kind": kind, **self._place(done), **means, "seconds": round(float(self.seconds[row]), 4)})
        if self.logger is not None:
            self.logger.metrics({f"{kind}/{name}": value for name, value in means.items()}, done)
        self.sums[row] = 0
        self.seconds[row] = 0

    def notes(self) -> list[str]:
        """Return a line if training ended while it still improved.

        Quarters are of the learning rate that is spent, not of the steps: a schedule that ends at zero is flat in the
        end whether or not training has converged.
        """
        s, remedy = self.settings, f"train longer: {self.options.longer(self.per_epoch)}"
        if self.steps < QUARTERS:
            return [f"{s.method} made {self.steps} steps, too few to learn from: {remedy}"]
        means = self.quarters[:, :-1] / self.quarters[:, -1:]
        losses, accuracies = (means[:, STATISTICS.index(name)].tolist() for name in ("cross_entropy", "accuracy"))
        fall, rise = losses[-2] - losses[-1], accuracies[-1] - accuracies[-2]
        if fall <= STEEP * (losses[0] - losses[-1]) or not (fall > FALL * losses[-2] or rise > RISE):
            return []
        return [
            f"{s.method} stopped while it still improved: from the third to the last quarter of training the members' "
            f"cross-entropy went from {losses[-2]:.3g} to {losses[-1]:.3g}, their training accuracy from "
            f"{accuracies[-2]:.1%} to {accuracies[-1]:.1%}: {remedy}, or raise lr (now {s.lr:.2g})"
        ]

    def _place(self, done: int) -> dict[str, float]:
        lr = self.settings.lr * self.settings.factor(done, self.steps)
        return {"step": done, "epoch": done / self.per_epoch, "lr": lr}

    def close(self) -> None:
        """Close the bar and the logger."""
        if self.bar is not None:
            self.bar.close()
        if self.logger is not None:
            self.logger.close(finished=self.finished)
