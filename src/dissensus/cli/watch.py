"""dissensus watch: is what comes in still what a run was calibrated on?"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from dissensus._core import terminal
from dissensus._core.errors import DissensusError
from dissensus._core.places import place
from dissensus._core.terminal import printable
from dissensus.cli.command import Share, command, hold

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector
    from dissensus.detection.monitor import Monitor
    from dissensus.detection.verdicts import Verdict

ALARM = 3  # the exit code of --exit-on-alarm


@command("watch", "find /camera -name '*.jpg' | dissensus watch runs/mine - --state runs/mine/watch.json")
def watch(
    run: str,
    paths: list[str] | None = None,
    *,
    verdicts: str | None = None,
    alarm_rate: Share | None = None,
    every: int = 1000,
    discoveries: Share = Share(0.1),
    state: str | None = None,
    plot: str | None = None,
    exit_on_alarm: bool = False,
    format: Literal["auto", "text", "jsonl"] = "auto",
    batch_size: int = 64,
    workers: int | None = None,
    engine: str | None = None,
    accelerator: str = "auto",
) -> None:
    """Watch a stream of images or verdicts: is what comes in still what the run was calibrated on?

    An alarm has one false-alarm rate for the whole stream, however long. Prints a line at the start, a status
    every --every samples, the alarm with its reason, and a summary.

    Args:
        run: a calibrated run folder: dissensus calibrate.
        paths: what to watch, as for predict: images, folders, a list, features, or - for a list of paths on stdin.
        verdicts: JSON lines of dissensus predict instead of paths, a file or - for stdin; with --explain there, batches
            are tested for disagreement and an alarm names the score.
        alarm_rate: probability that a stream like the calibration samples ever raises the alarm; by default 1%.
        every: samples between two lines of status; they are also tested as a batch.
        discoveries: false-discovery rate at which the OOD samples of a batch are counted.
        state: a file to continue from and to save to, at every status and at the end. RUN/watch.json is shown by
            dissensus report.
        plot: an .svg file for a chart of the evidence and of the share of samples called out.
        exit_on_alarm: stop at the alarm with exit code 3.
        format: auto is text on a terminal and JSON lines elsewhere.
        batch_size: images per batch; each worker prefetches two batches.
        workers: processes that read images; by default one per core, at most 8; 0 for paths that arrive slowly.
        engine: how the trunk runs, see predict.
        accelerator: auto, cpu, cuda, mps, ...: see Lightning Fabric.
    """
    from dissensus._core.outputs import writing
    from dissensus.cli import inputs, rows, verdict_lines
    from dissensus.detection.detector import Detector
    from dissensus.functional.conformal import check_rate

    _check(paths, verdicts, every, batch_size, workers, state, plot)
    check_rate(discoveries)
    rows.check_paths(paths or [])
    for file in (state, plot):
        if file is not None:
            hold(writing(file))
    device = inputs.launch(accelerator=accelerator).device
    detector = Detector.load(run, engine=engine, device=device)
    if detector.threshold is None:
        raise DissensusError(
            f"watch needs a calibrated run; {run} is not: dissensus calibrate {shlex.quote(run)} --id SAMPLES"
        )
    monitor = _monitor(detector, state, alarm_rate)
    if verdicts is not None:
        source = verdict_lines.read(verdicts, detector.classes, detector.threshold)
    else:
        source = rows.verdicts(detector, paths or [], batch_size, workers)
    text = format == "text" or (format == "auto" and sys.stdout is not None and sys.stdout.isatty())
    stream = _Stream(monitor, discoveries, state, plot, _printer(text))
    rang = stream.run(source, run, every, exit_on_alarm)
    if rang and exit_on_alarm:
        raise SystemExit(ALARM)


def _check(
    paths: list[str] | None, verdicts: str | None, every: int, batch_size: int, workers: int | None, state: str | None,
    plot: str | None,
) -> None:  # fmt: skip
    if bool(paths) == (verdicts is not None):
        got = "both" if paths else "neither"
        raise DissensusError(
            f"watch needs either paths or --verdicts; got {got}: give one, such as - for paths on stdin"
        )
    if every < 1 or batch_size < 1 or (workers is not None and workers < 0):
        raise DissensusError(
            f"--every and --batch-size must be at least 1 and --workers at least 0; got {every}, {batch_size} and "
            f"{workers}: try 1000, 64 and 2"
        )
    if plot is not None and place(plot).suffix.lower() != ".svg":
        raise DissensusError(f"--plot must name an .svg file; got {plot!r}")
    for flag, file in (("--state", state), ("--plot", plot)):
        if file is not None and place(file).is_dir():
            raise DissensusError(f"{flag} must name a file; {file} is a folder: name a file in it")


def _monitor(detector: Detector, state: str | None, rate: float | None) -> Monitor:
    from dissensus.detection.monitor import RATE, Monitor

    if state is not None and place(state).exists():
        return Monitor.load(state, detector, rate)
    return Monitor(detector, RATE if rate is None else rate)


class _Stream:
    """Feeds verdicts to a monitor and prints events."""

    def __init__(
        self, monitor: Monitor, discoveries: float, state: str | None, plot: str | None, show: Callable[..., None]
    ) -> None:
        self.monitor, self.discoveries, self.state, self.plot, self.show = monitor, discoveries, state, plot, show
        self.batch: list[Verdict] = []
        self.counting = self.stopping = False

    def run(self, source: Iterator[Verdict], run: str, every: int, stop: bool) -> bool:
        """Read the stream to its end, or to an alarm if that stops it; return whether there is an alarm."""
        monitor, before = self.monitor, self.monitor.samples + self.monitor.errors
        again = f", continued after {monitor.samples:,} samples" if monitor.samples else ""
        self.show("start", f"watching {run}{again}: {monitor.promise}", run=run, rate=monitor.rate)
        if monitor.alarm is not None:
            self._alarm()
        with self._between_samples():
            try:
                for verdict in source if monitor.alarm is None or not stop else ():
                    with self._whole():
                        self.batch.append(verdict)
                        if monitor.add(verdict):
                            self._alarm()
                        if len(self.batch) == every:
                            self._status()
                    if stop and monitor.alarm is not None:
                        break
            except KeyboardInterrupt:
                self.counting = True  # until the state is saved
                self._end("stopped")
                raise
            if monitor.samples + monitor.errors == before and not (stop and monitor.alarm):
                raise DissensusError(
                    "a stream must have a sample; this one ended before the first: check what feeds it"
                )
            with self._whole():
                self._end("end")
        return monitor.alarm is not None

    @contextmanager
    def _between_samples(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, but not while a sample is counted."""

        def note(number: int, frame: object) -> None:
            self.stopping = True
            if not self.counting:
                raise KeyboardInterrupt

        if threading.current_thread() is not threading.main_thread():  # handlers are the main thread's
            yield
            return
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        self.counting = True
        yield
        self.counting = False
        if self.stopping:
            raise KeyboardInterrupt

    def _alarm(self) -> None:
        alarm = self.monitor.alarm
        assert alarm is not None
        self.show("alarm", str(alarm), **alarm.model_dump())

    def _status(self) -> None:
        from dissensus.detection.batch_test import batch_test

        metrics, batch = self.monitor.metrics(), batch_test(self.batch, self.monitor.threshold, self.discoveries)
        errors = sum(verdict.error is not None for verdict in self.batch)
        self.batch = []
        powers = {name: round(metrics[f"log10_wealth_{name}"], 1) + 0.0 for name in self.monitor.tests}  # no -0.0
        wealth = ", ".join(f"{name} 10^{power:.1f}" for name, power in powers.items())
        alarm = "ALARM" if self.monitor.alarm else "no alarm"
        lost = f", {errors:,} could not be read" if errors else ""
        text = f"sample {self.monitor.samples:,}: {alarm}, wealth {wealth} of 10^{metrics['log10_wealth_limit']:.1f}"
        self.show("status", f"{text}; last {batch}{lost}", **metrics, batch=vars(batch))
        self._save()

    def _end(self, word: str) -> None:
        if self.batch:
            self._status()
        monitor = self.monitor
        lost = f", {monitor.errors:,} could not be read" if monitor.errors else ""
        counts = f"{monitor.samples:,} samples, {monitor.out:,} called out{lost}"
        self.show("end", f"{word}: {counts}; {monitor.alarm or 'no alarm'}", word=word, **monitor.metrics())
        self._save()

    def _save(self) -> None:
        from dissensus.report import watching

        if self.state is not None:
            self.monitor.save(self.state)
        if self.plot is not None and self.monitor.history:
            watching.write(place(self.plot), watching.charts_of(self.monitor))


def _printer(text: bool) -> Callable[..., None]:
    """Return a function that prints an event: its text, or its values as a line of JSON."""
    if sys.stdout is None:
        raise DissensusError("events go to stdout; it is closed: open it")

    def show(event: str, words: str, **values: Any) -> None:
        terminal.show(printable(words) if text else json.dumps({"event": event, "text": words, **values}))

    return show
