"""Verdicts in parts: `predict` on a Ray cluster or in a job array, and the merging of parts.

    verdicts.csv.parts/plan.json           what is predicted; another prediction is refused
    verdicts.csv.parts/part-00003.csv      the verdicts of one shard of the images, written atomically
    verdicts.csv                           all of them, in order
    verdicts.csv.part.json                 with --part: which part it is, and of what

Each shard is one task. Its bytes do not depend on the process. A killed command continues with the missing shards.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import Field
from tqdm import tqdm

from dissensus._core import cluster, documents
from dissensus._core.documents import Document, Sha256
from dissensus._core.errors import DataError, DissensusError
from dissensus._core.files import make_folder, replacing
from dissensus._core.outputs import writing
from dissensus._core.places import files_in, is_remote, place, storage_errors
from dissensus.cli import rows
from dissensus.evaluation.predictions import batch_size
from dissensus.features import FeatureSet
from dissensus.features._extract import steps_of
from dissensus.features._merge import check_parts
from dissensus.images import ImageSet, ImageStream, Names

if TYPE_CHECKING:
    from dissensus.detection.detector import Detector
    from dissensus.detection.verdicts import Verdict

PLAN = "plan.json"
BATCHES = 64  # per shard of a set

Source = ImageSet | ImageStream | FeatureSet | Names
Natural = Annotated[int, Field(ge=0)]


class Asked(Document):
    """plan.json: what the verdicts depend on."""

    remedy = "remove the folder, or choose another --out"

    format: Literal["dissensus-verdicts-2"] = "dissensus-verdicts-2"
    detector: str  # digest of members, scores, calibration and trunk
    source: str  # fingerprint
    rows: str  # how they are written
    batch_size: int
    engine: str
    part: tuple[int, int] | None


class VerdictPart(Document):
    """NAME.part.json: which part a file of verdicts is."""

    remedy = "predict this part again"

    format: Literal["dissensus-verdict-part-2"] = "dissensus-verdict-part-2"
    asked: Asked
    rows: Natural
    verdicts: Sha256


class Task(NamedTuple):
    """What a process needs to predict any shard."""

    run: str
    source: Source
    folder: str
    file_format: str
    explain: bool
    false_alarms: float | None
    batch_size: int
    engine: str | None
    device: str
    workers: int | None
    shard_rows: int  # of a set
    digest: str  # of the detector

    @classmethod
    def of(cls, detector: Detector, source: Source, **fields: Any) -> Task:
        """Return the task with shards of whole batches, so that dividing the work changes no batch."""
        size, digest = fields["batch_size"], _digest(detector)
        if isinstance(source, FeatureSet):
            size = batch_size(detector.ensemble, source.shape)
        _DETECTORS.clear()
        _DETECTORS[digest] = detector
        return cls(source=source, shard_rows=BATCHES * size, digest=digest, **fields)


def predict(
    task: Task, detector: Detector, out: Path, part: tuple[int, int] | None, on: str, progress: bool
) -> Counter[str]:
    """Predict all shards, or those of a part, and join them into one file; return how often each verdict occurs."""
    numbers = steps_of(_steps(task), part)
    asked = Asked(
        detector=task.digest,
        source=_fingerprint(task.source),
        rows=f"{task.file_format}{', explained' * task.explain}",
        batch_size=task.batch_size,
        engine=detector.members.engine,
        part=part,
    )
    folder, counts = place(task.folder), Counter[str]()
    if _sidecar(out).is_file() and (before := documents.read(VerdictPart, _sidecar(out)).asked.part) != part:
        raise DissensusError(f"every part has its own file; {out} holds part {before}: choose another --out")
    with storage_errors(folder), writing(folder):
        make_folder(folder)
        _claim(folder, asked)
        there = files_in(folder)
        missing = [number for number in numbers if _name(task, number) not in there]
        gpus = 1 if task.device.startswith("cuda") else 0
        if on == "ray":
            results = cluster.on_ray(run_task, task, missing, gpus=gpus)
        else:
            results = ((number, run_task(task, number)) for number in missing)
        done, hidden = len(numbers) - len(missing), None if progress else True
        with (
            contextlib.closing(results),
            tqdm(total=len(numbers), initial=done, desc="predict", unit="shard", leave=False, disable=hidden) as bar,
        ):
            for _ in results:
                bar.update()
        with replacing(out) as temporary, open(temporary, "wb") as file:
            digest = hashlib.sha256()
            for position, number in enumerate(numbers):
                data = (folder / _name(task, number)).read_bytes()
                counts.update(_counted(data, task.file_format))
                if position and task.file_format == "csv":
                    data = data[data.index(b"\n") + 1 :]
                digest.update(data)
                file.write(data)
            if counts.total() == counts["error"]:
                raise DissensusError(
                    f"at least one image must be readable; none of {counts.total():,} is: check the paths"
                )
        if part is not None:
            written = VerdictPart(asked=asked, rows=counts.total(), verdicts=digest.hexdigest())
            documents.write(_sidecar(out), written)
        _remove(folder)
    return counts


def run_task(task: Task, number: int) -> int:
    """Predict one shard, in any process, and write its file; return the number of its verdicts."""
    detector, count = _detector(task), 0
    mode: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    with replacing(place(task.folder) / _name(task, number)) as path, path.open("w", **mode) as file:
        write = rows.writer(task.file_format, file, detector, task.explain)
        for verdict in _verdicts(detector, task, number):
            write(verdict)
            count += 1
    return count


def is_verdicts(path: str) -> bool:
    """Whether a path names a file of verdicts."""
    return path.lower().endswith((".csv", ".jsonl"))


def join(paths: list[str], out: str) -> int:
    """Join files that `predict --part` wrote into one, in order; return the number of verdicts.

    Raises:
        DissensusError: If a part is missing, given twice, altered, or of another prediction.
    """
    if not is_verdicts(out) or any(place(path).suffix != place(out).suffix for path in paths):
        raise DataError(f"verdicts are joined into a file of the same format; got {out}: give --out the same ending")
    if place(out) in map(place, paths):
        raise DataError(f"parts are kept; --out {out} is one of them: choose another")
    parts = {path: documents.read(VerdictPart, _sidecar(place(path))) for path in paths}
    for path in parts:
        if not place(path).is_file():
            raise DataError(f"a part must be complete; there is no file {path}: predict it again")
    if len(parts) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise DataError(f"every part is given once; {twice} is given twice: leave one out")
    facts = {path: part.asked.model_dump(exclude={"part", "format"}) for path, part in parts.items()}
    order = check_parts({path: part.asked.part for path, part in parts.items()}, facts)
    with writing(out), replacing(place(out)) as temporary, open(temporary, "wb") as file:
        for position, path in enumerate(order):
            data = place(path).read_bytes()
            if hashlib.sha256(data).hexdigest() != parts[path].verdicts:
                raise DataError(f"a part must be as written; {path} is altered: predict it again")
            file.write(data[data.index(b"\n") + 1 :] if position and path.lower().endswith(".csv") else data)
    return sum(part.rows for part in parts.values())


def _steps(task: Task) -> int:
    if isinstance(task.source, ImageStream):
        return len(task.source)
    return -(-len(task.source) // task.shard_rows)


def _verdicts(detector: Detector, task: Task, number: int) -> Iterator[Verdict]:
    """Yield the verdicts of one shard."""
    source, workers = task.source, task.workers
    if isinstance(source, ImageStream):
        yield from detector.stream(source, batch_size=task.batch_size, workers=workers, shards=[number])
        return
    start = number * task.shard_rows
    within = slice(start, start + task.shard_rows)
    shard = source[within] if isinstance(source, Names) else source.subset(within)
    for row, verdict in enumerate(detector.stream(shard, batch_size=task.batch_size, workers=workers), start):
        yield dataclasses.replace(verdict, name=str(row)) if isinstance(source, FeatureSet) else verdict


def _fingerprint(source: Source) -> str:
    if not isinstance(source, Names):
        return source.fingerprint
    digest = hashlib.sha256()
    for name in source:
        digest.update(name.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


_DETECTORS: dict[str, Detector] = {}  # of this process, by their digests


def _detector(task: Task) -> Detector:
    from dissensus.detection.detector import Detector

    if task.digest not in _DETECTORS:
        detector = Detector.load(task.run, engine=task.engine, device=task.device)
        if task.false_alarms is not None and detector.threshold is not None:
            detector.threshold = detector.threshold.at(task.false_alarms)
        if _digest(detector) != task.digest:
            raise DissensusError(
                f"{task.run} must be the same for all tasks; this one sees another: copy the run again"
            )
        _DETECTORS.clear()
        _DETECTORS[task.digest] = detector
    return _DETECTORS[task.digest]


def _digest(detector: Detector) -> str:
    rule = detector.threshold
    facts = [detector.identity.model_dump(), detector.score_name, detector.aggregate]
    digest = hashlib.sha256(json.dumps([*facts, None if rule is None else rule.false_alarms]).encode())
    for values in () if rule is None else (*rule.calibrated.values, *rule.references):
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


def _claim(folder: Path, asked: Asked) -> None:
    """Begin or continue in a folder of parts; raise if its parts are of another prediction."""
    if not (folder / PLAN).is_file():
        if names := sorted(files_in(folder)):
            raise DissensusError(f"{folder} must be new; it holds {names[0]!r}: remove it, or choose another --out")
        documents.write(folder / PLAN, asked)
        return
    there = documents.read(Asked, folder / PLAN)
    for name, value in asked.model_dump().items():
        before = getattr(there, name)
        if before != value:
            raise DissensusError(
                f"{folder} holds another prediction ({name} is {str(before)[:12]} there, {str(value)[:12]} here): "
                "remove it, or choose another --out"
            )


def _name(task: Task, number: int) -> str:
    return f"part-{number:05d}.{task.file_format}"


def _sidecar(out: Path) -> Path:
    return out.with_name(f"{out.name}.part.json")


def _counted(data: bytes, file_format: str) -> Iterator[str]:
    """Yield the verdict of each row, "error" for one that has an error."""
    text = io.StringIO(data.decode("utf-8", "surrogateescape"), newline="")
    records = csv.DictReader(text) if file_format == "csv" else map(json.loads, text)
    for record in records:
        yield "error" if record["error"] else record["verdict"] or ""


def _remove(folder: Path) -> None:
    """Remove the parts and then the plan, so that the plan still describes files that a kill leaves behind."""
    for name in sorted(files_in(folder), key=lambda name: name == PLAN):
        (folder / name).unlink(missing_ok=True)
    if not is_remote(folder):
        folder.rmdir()
