"""Byte flips: `python -m benchmarks.flips --count 300` damages files and counts what is noticed.

A small feature folder, a run with its calibration and evaluation, an adapted run, a run that was stopped, and an export
for the hub are made in a temporary folder. Then one byte at a time is changed, in every file in turn at random places,
and the folder is read again. Logs (metrics.jsonl) and the model card (README.md) hold no results and are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tabulate import tabulate
from torch import Tensor

from dissensus import backbones
from dissensus._core.errors import DissensusError, DissensusWarning
from dissensus.adaptation import adapt, runs
from dissensus.detection.detector import Detector
from dissensus.evaluation import saved
from dissensus.evaluation.suite import SuiteSet
from dissensus.export import export
from dissensus.features import FeatureSet, FeatureWriter
from dissensus.models.ensemble import Ensemble
from dissensus.training import adaptation, checkpoints, fit, new_ensemble, step
from dissensus.training.run import METRICS, Run

KINDS = ("features", "run", "adapted", "stopped", "export")
LEFT_OUT = (METRICS, "README.md")
STEPS = 7  # before the stopped run is stopped

Outcome = Literal["noticed", "the same", "changed", "crashed"]


class Flip(NamedTuple):
    """A changed byte and what became of it."""

    kind: str
    file: str
    offset: int
    outcome: Outcome
    message: str


class Subjects:
    """Small folders of every kind in a new folder; `results` reads one, and is the same while nothing changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        backbone = backbones.create("test_vit", "random", size=32)
        self.probe = self._features(root / "probe", backbone, 60, seed=2)
        train = self._features(root / "features", backbone, 120, seed=1)
        fit(new_ensemble(train, 3), train, epochs=4, batch_size=32, out=root / "run", progress=False)
        Detector.load(root / "run").calibrate(self.probe, 0.1).save(root / "run")
        run, sets = Run.open(root / "run"), [SuiteSet("id", "id", self.probe), SuiteSet("ood", "ood", train)]
        saved.evaluate_run(run, Ensemble.load(run.ensemble_folder), sets, suite="clouds", progress=False)
        adapted = adapt(Ensemble.load(run.ensemble_folder), train.subset(range(12)))
        runs.save(adapted, run, root / "adapted")
        with _stopped_after(STEPS):
            self._resume(root / "stopped")
        export(root / "run", "hub", root / "export")

    def _features(self, folder: Path, backbone: backbones.Backbone, rows: int, seed: int) -> FeatureSet:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(rows) % 3
        x = torch.randn(rows, *backbone.shape, generator=generator) + labels.view(-1, *[1] * len(backbone.shape))
        with FeatureWriter(
            folder,
            shape=backbone.shape,
            classes=("cat", "dog", "newt"),
            group_names=("land", "sea"),
            shard_rows=rows // 3,
            provenance={"backbone": backbone.describe(), "engine": "eager"},
        ) as writer:
            writer.add(x, labels, labels % 2, paths=[f"{i:03}.png" for i in range(rows)])
        return FeatureSet.open(folder)

    def _resume(self, folder: Path) -> Ensemble:
        train = FeatureSet.open(self.root / "features")
        options: dict[str, Any] = {"epochs": 3, "batch_size": 32, "scores": (), "progress": False}
        try:
            return fit(new_ensemble(train, 2), train, checkpoint_seconds=0, out=folder, **options)
        except _Stop:
            return new_ensemble(train, 2)

    def files(self, kind: str) -> list[Path]:
        """The files of a folder that hold results."""
        files = sorted(path for path in (self.root / kind).rglob("*") if path.is_file() and path.stat().st_size)
        return [path for path in files if path.name not in LEFT_OUT]

    def results(self, kind: str) -> str:
        """Return a digest of everything that reading a folder gives."""
        values = hashlib.sha256()
        for value in getattr(self, f"_{kind}_of")(self.root / kind):
            data = value.contiguous().view(-1).view(torch.uint8).numpy() if isinstance(value, Tensor) else repr(value)
            values.update(data.encode() if isinstance(data, str) else data.data)
        return values.hexdigest()

    def _features_of(self, folder: Path) -> Iterator[Any]:
        features = FeatureSet.open(folder)
        yield features.rows(slice(None))
        yield from (features.labels, features.groups, features.class_counts, features.paths(slice(None)))
        yield from (features.classes, features.group_names, features.provenance, features.fingerprint)

    def _run_of(self, folder: Path) -> Iterator[Any]:
        run = Run.open(folder)
        yield from (run.info, adaptation.read(run))
        yield from self._verdicts(Detector.load(folder))
        if saved.is_saved(folder):
            evaluation = saved.load(folder)
            yield from (evaluation.about, evaluation.frame.to_csv())
            for entry in evaluation.about.sets:
                predictions = evaluation.predictions(entry.name)
                yield from (predictions.labels, predictions.prediction, predictions.votes, predictions.confidence)
                yield from predictions.scores.values()

    _adapted_of = _run_of

    def _export_of(self, folder: Path) -> Iterator[Any]:
        detector = Detector.from_pretrained(folder)
        yield from self._verdicts(detector)
        yield from detector.backbone.trunk.state_dict().values()
        yield from (detector.backbone.transform, detector.trained_on)

    def _stopped_of(self, folder: Path) -> Iterator[Any]:
        copy = folder.with_name("resumed")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        yield from self._resume(copy).stacked().values()

    def _verdicts(self, detector: Detector) -> Iterator[Any]:
        verdicts = detector.predict(self.probe)
        yield from (detector.classes, detector.aggregate, detector.threshold, detector.score_name)
        yield from (verdicts.label, verdicts.confidence, verdicts.score)
        yield from (value for value in (verdicts.p_value, verdicts.out) if value is not None)
        for name in detector.ensemble.fitted:
            yield from detector.ensemble.fitted[name].state_dict().values()


class _Stop(Exception):  # noqa: N818
    """Ends a training as a kill does."""


@contextmanager
def _stopped_after(steps: int) -> Iterator[None]:
    original: Callable[..., Tensor] = step.Stepper.__call__
    seen: list[None] = []

    def counted(stepper: step.Stepper, *arguments: Any) -> Tensor:
        if len(seen) == steps:
            raise _Stop
        seen.append(None)
        return original(stepper, *arguments)

    step.Stepper.__call__ = counted  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        step.Stepper.__call__ = original  # type: ignore[method-assign]


def flips(subjects: Subjects, kind: str, count: int, seed: int = 0) -> Iterator[Flip]:
    """Change `count` bytes of a folder, one at a time, in every file in turn; yield what became of each."""
    chance, files, expected = random.Random(f"{kind} {seed}"), subjects.files(kind), subjects.results(kind)
    for number in range(count):
        path = files[number % len(files)]
        whole = path.read_bytes()
        offset, bits = chance.randrange(len(whole)), chance.randrange(1, 256)
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ bits]) + whole[offset + 1 :])
        try:
            outcome, message = _outcome(subjects, kind, expected)
        finally:
            path.write_bytes(whole)
        yield Flip(kind, path.relative_to(subjects.root).as_posix(), offset, outcome, message)


def _outcome(subjects: Subjects, kind: str, expected: str) -> tuple[Outcome, str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            results = subjects.results(kind)
        except DissensusError as error:
            return ("noticed", str(error)) if "\n" not in str(error) else ("crashed", str(error))
        except Exception:
            return "crashed", traceback.format_exc()
    damaged = [str(each.message) for each in caught if checkpoints.NEWEST in str(each.message)]
    if results != expected:
        return "changed", "; ".join(damaged)
    return ("noticed", damaged[0]) if damaged else ("the same", "")


def main(argv: Sequence[str] | None = None) -> int:
    """Print how many flips of each folder were noticed; return 1 if one changed a result or crashed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flips")
    parser.add_argument("--count", type=int, default=300, help="flips in all (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="decides where (default: 0)")
    options = parser.parse_args(argv)
    outcomes = Counter[tuple[str, str]]()
    columns: tuple[Outcome, ...] = ("noticed", "the same", "changed", "crashed")
    with tempfile.TemporaryDirectory(prefix="dissensus-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DissensusWarning)  # of short trainings
        subjects = Subjects(Path(folder))
        for place, kind in enumerate(KINDS):
            count = options.count // len(KINDS) + (place < options.count % len(KINDS))
            for flip in flips(subjects, kind, count, options.seed):
                outcomes[kind, flip.outcome] += 1
                if flip.outcome in ("changed", "crashed"):
                    print(f"{flip.outcome}: byte {flip.offset} of {flip.file}\n{flip.message}", file=sys.stderr)
        files = {kind: len(subjects.files(kind)) for kind in KINDS}
    counts = {kind: [files[kind], *(outcomes[kind, column] for column in columns)] for kind in KINDS}
    counts["all"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    print(tabulate([[kind, *row] for kind, row in counts.items()], ["folder", "files", *columns], "pipe"))
    return int(any(counts["all"][-2:]))


if __name__ == "__main__":
    sys.exit(main())
