"""Hostile files through `extract`, `predict` and the server's upload: each has a row or a reason, and none does harm.

    python -m benchmarks.hostile --count 1000

The files are those of tests/hostile.py, beside twenty whole images whose features must not change by a bit. A file that
takes longer than 20 s ends the process with a traceback of where it hangs.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import stat
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dissensus import Detector, Ensemble, FeatureSet, ImageSet, backbones, extract, fit
from dissensus._core.errors import DissensusError, DissensusWarning
from dissensus._core.terminal import printable
from dissensus.cli import main as command
from dissensus.images import BadImage
from dissensus.models import tails
from tests import hostile

SECONDS = 20  # for one file
STAGE_SECONDS = 1800  # for all files
WHOLE = 20
UPLOAD_BYTES = 2**24  # larger files are not sent


class Outcome(NamedTuple):
    """What became of the files in one stage."""

    stage: str
    files: int
    rows: int
    reasons: Counter[str]  # why the others have none, in their first words
    seconds: float
    slowest: float | None  # of one file, where they are timed one by one

    def __str__(self) -> str:
        most = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common(4))
        slowest = "" if self.slowest is None else f", the slowest {self.slowest:.2f} s"
        return (
            f"{self.stage:8} {self.files:,} files: {self.rows:,} rows, {self.reasons.total():,} reasons ({most}, ...); "
            f"{self.seconds:.0f} s{slowest}"
        )


def attack(home: Path, count: int, seed: int = 0, workers: int = 2) -> Iterator[Outcome]:
    """Send `count` hostile files through everything; yield what became of them.

    Raises:
        AssertionError: If a file has neither row nor reason, or has harmed another.
    """
    folder, clean = home / "files", home / "clean"
    folder.mkdir()
    names = hostile.write(folder, count, seed)
    for i, name in enumerate(_write_whole(clean)):
        os.link(clean / name, folder / name)
        names.insert(i, name)
    backbone = backbones.create("test_vit", "random", size=32)
    options: dict[str, Any] = {"workers": workers, "batch_size": 1, "progress": False}  # alone, so that bits are equal
    expected = extract(ImageSet.find(clean), backbone, home / "expected", **options)
    images = ImageSet.find(folder, unlabelled=True)
    assert set(images.names) == set(names), "a file is not listed"

    outcome = read = _read(images)
    yield outcome
    with _alarm(STAGE_SECONDS):
        start = time.monotonic()
        features = extract(images, backbone, home / "features", max_bad=1.0, **options)
        lines = (home / "features" / "bad.tsv").read_text(encoding="utf-8").splitlines()
        bad = dict(line.split("\t") for line in lines)
        rows = _paths(features)
        assert len(rows) + len(bad) == len(names), "a file has neither row nor reason, or both"
        assert {*rows, *bad} == {printable(name) for name in names}
        at = [rows.index(path) for path in _paths(expected)]
        assert np.array_equal(np.asarray(features.rows(at)), np.asarray(expected.rows(slice(None)))), "features changed"
        yield Outcome("extract", len(names), len(rows), _first_words(bad.values()), time.monotonic() - start, None)
    assert len(rows) == read.rows

    _train(expected, home / "run")
    with _alarm(STAGE_SECONDS):
        start = time.monotonic()
        out = home / "verdicts.jsonl"
        with contextlib.redirect_stderr(io.StringIO()):
            code = command(["predict", str(home / "run"), str(folder), "--out", str(out), "--workers", str(workers)])
        assert code == 0, "predict failed"
        verdicts = {v["path"]: v for v in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
        assert set(verdicts) == {str(folder / name) for name in names}
        errors = {Path(path).name: verdict["error"] for path, verdict in verdicts.items() if verdict["error"]}
        assert {printable(name): reason for name, reason in errors.items()} == bad, "predict and extract differ"
        reasons = _first_words(errors.values())
        yield Outcome("predict", len(names), len(verdicts) - len(errors), reasons, time.monotonic() - start, None)
    yield _upload(home / "run", folder, names)


def _read(images: ImageSet) -> Outcome:
    """Decode every file alone, against the clock."""

    def one(i: int) -> str:
        try:
            image, _ = images.load(i)
        except BadImage as error:
            return str(error)
        assert image.mode == "RGB"
        return ""

    return _one_by_one("read", range(len(images)), one)


def _upload(run: Path, folder: Path, names: Sequence[str]) -> Outcome:
    """POST every file that can be read to the API."""
    from starlette.testclient import TestClient

    from dissensus.serve import api
    from dissensus.serve.access import Access
    from dissensus.serve.service import Service
    from dissensus.serve.settings import Limits

    service = Service(Detector.load(run), "run", limits=Limits(max_upload_mb=UPLOAD_BYTES / 1e6))
    client = TestClient(api.create(service, Access(["testserver"])), raise_server_exceptions=True)

    def one(name: str) -> str:
        sent = name.encode(errors="replace").decode()
        answer = client.post("/api/predict", files={"files": (sent, (folder / name).read_bytes())})
        assert answer.status_code in (200, 400, 413, 422), f"{name!r}: {answer.status_code} {answer.text}"
        return str(answer.json().get("error", "")).rpartition(": ")[2]

    return _one_by_one("upload", [name for name in names if _can_be_sent(folder / name)], one)


def _one_by_one(stage: str, items: Sequence[Any], reason_of: Callable[[Any], str]) -> Outcome:
    reasons, seconds = list[str](), list[float]()
    for item in items:
        with _alarm(SECONDS):
            start = time.monotonic()
            reasons.append(reason_of(item))
            seconds.append(time.monotonic() - start)
    bad = [reason for reason in reasons if reason]
    return Outcome(stage, len(items), len(items) - len(bad), _first_words(bad), sum(seconds), max(seconds))


def _can_be_sent(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= UPLOAD_BYTES


def _first_words(reasons: Any) -> Counter[str]:
    return Counter(" ".join(reason.partition(":")[0].split()[:3]) for reason in reasons)


def _paths(features: FeatureSet) -> list[str]:
    paths = features.paths(range(len(features)))
    assert paths is not None
    return [path.rpartition("/")[2] for path in paths]


def _write_whole(folder: Path) -> list[str]:
    """Write whole images of two colours, which a run can be trained and calibrated on."""
    folder.mkdir()
    names = [f"whole-{i:02}.png" for i in range(WHOLE)]
    for i, name in enumerate(names):
        pixels = np.random.default_rng(i).integers(0, 90, (40, 40, 3), np.uint8)
        pixels[..., i % 2] += 150
        Image.fromarray(pixels).save(folder / name)
    return names


def _train(features: FeatureSet, run: Path) -> None:
    labelled = features.labelled(["even" if i % 2 == 0 else "odd" for i in range(len(features))])
    ensemble = Ensemble(tails.create("linear", features.width, 2), members=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DissensusWarning)  # a run of a second, calibrated on what it has seen
        fit(ensemble, labelled, "deep-ensemble", epochs=2, lr=1e-2, batch_size=16, out=run, progress=False)
        Detector.load(run).calibrate(labelled, 0.2).save(run)


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """End the process with a traceback if the block takes longer, also inside a decoder."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 on misuse."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, metavar="N", help="hostile files (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which ones (default: 0)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that read (default: 2)")
    options = parser.parse_args(argv)
    try:
        if options.count < 1 or options.seed < 0 or options.workers < 0:
            raise DissensusError("--count must be at least 1, --seed and --workers at least 0")
        with tempfile.TemporaryDirectory(prefix="dissensus-hostile-") as home:
            for outcome in attack(Path(home), options.count, options.seed, options.workers):
                print(outcome, flush=True)
    except DissensusError as error:
        print(f"benchmarks: error: {error}", file=sys.stderr)
        return 2
    print(f"no crash, no hang, a row or a reason for every file; the {WHOLE} whole images have the same features")
    return 0


if __name__ == "__main__":
    sys.exit(main())
