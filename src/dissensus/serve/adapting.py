"""Adapting on the page: a pool of images, which of them to label, what the labels choose, and the run that results."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dissensus._core import documents
from dissensus._core.errors import DataError, DissensusError
from dissensus.adaptation import Adapted, adapt, ask, runs
from dissensus.adaptation.ways import last_layer
from dissensus.features import FeatureSet
from dissensus.functional.neighbours import KNN
from dissensus.models.joined import JoinedEnsemble
from dissensus.serve.service import Inspection, Service, Upload
from dissensus.serve.settings import MANY
from dissensus.training.run import ADAPTATION, Run

COUNT = 8  # images to label, by default
MOST = 48  # and at most
PIXELS = 160  # longer side of a picture


@dataclass(frozen=True)
class Pool:
    """Unlabelled images after one forward pass, each once.

    Attributes:
        names: (n,) of the files.
        places: (n,) among the uploads.
        keys: (n,) what identifies each image, whatever its name and place.
        features: (n, D).
        pictures: (n,) small copies, as data URLs.
        problems: (name, why) of each file that is left out.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    keys: tuple[str, ...]
    features: Tensor
    pictures: tuple[str, ...]
    problems: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Question:
    """An image to label."""

    key: str
    row: int  # among the uploads
    name: str
    picture: str
    reason: str
    votes: tuple[int, ...]  # classes that members predict, most frequent first


def why_not(service: Service) -> str:
    """Return why a run cannot be adapted here, in one line; empty if it can."""
    detector = service.detector
    ensemble, shape = detector.ensemble, detector.members.backbone.shape
    if isinstance(ensemble, JoinedEnsemble):
        return f"Adapting takes one backbone; this run joins {' and '.join(ensemble.names)}: serve one of its parts."
    if len(ensemble) < 2:
        return "Labels choose among members; this run has one: train several."
    if len(shape) != 1:
        return f"Adapting here needs features that are vectors; this run's are {tuple(shape)}: use dissensus.adapt."
    if not isinstance(ensemble.fitted.get("knn"), KNN):
        return "Adapting compares with training features; this run keeps none (the score knn does): train it with knn."
    try:
        last_layer(ensemble.tail)
    except DissensusError as error:
        return f"{error}."
    return ""


def read(service: Service, uploads: Sequence[Upload]) -> Pool:
    """Run the trunk on uploaded images, and return them as `pool`.

    Raises:
        DataError: If there are too many files, or none is a readable image.
    """
    check_count(uploads)
    return pool(service.inspect_all(uploads, picture=PIXELS, observed=False))


def check_count(uploads: Sequence[Upload]) -> None:
    """Raise if there are too many files."""
    if len(uploads) > MANY:
        raise DataError(f"at most {MANY} images at once; got {len(uploads):,}: choose a random part of them")


def pool(inspections: Sequence[Inspection]) -> Pool:
    """Return images after a pass, without files that cannot be read and copies of others.

    Raises:
        DataError: If none is a readable image.
    """
    images: dict[str, tuple[str, int, Tensor, str]] = {}
    problems: list[tuple[str, str]] = []
    for place, inspection in enumerate(inspections):
        name = inspection.name
        if inspection.outputs is None:
            problems.append((name, inspection.error or "cannot be read"))
            continue
        features = inspection.outputs.features.float()
        key = hashlib.sha256(features.contiguous().numpy().tobytes()).hexdigest()[:16]
        if key in images:
            problems.append((name, f"the same image as {images[key][0]}"))
        else:
            images[key] = (name, place, features, inspection.picture)
    if not images:
        first = f": {problems[0][0]}: {problems[0][1]}" if problems else ""
        raise DataError(f"none of the {len(inspections)} files is a readable image{first}")
    names, places, rows, pictures = zip(*images.values(), strict=True)
    return Pool(names, places, tuple(images), torch.cat(rows), pictures, tuple(problems))


def questions(
    service: Service, pool: Pool, count: int = COUNT, *, labelled: Sequence[Question] = ()
) -> tuple[Question, ...]:
    """Choose images of a pool to label, most informative first.

    Args:
        service: The run.
        pool: Images of the new place.
        count: How many, at most `MOST`.
        labelled: Questions that are answered: they stay, as long as their image is in the pool, and count.

    Raises:
        DissensusError: If the count is out of range, or the run cannot be adapted.
    """
    if not 1 <= count <= MOST:
        raise DissensusError(f"count must be within 1..{MOST}; got {count}: try {COUNT}")
    kept = tuple(question for question in labelled if question.key in pool.keys)
    others = [row for row, key in enumerate(pool.keys) if key not in {question.key for question in kept}]
    if not others or count <= len(kept):
        return kept
    detector = service.detector
    with service.lock:
        asked = ask(
            detector.ensemble,
            FeatureSet.from_arrays(pool.features[others]),
            count - len(kept),
            classes=tuple(detector.classes),
        )
    found = zip(asked.rows.tolist(), asked.reasons, asked.votes.tolist(), strict=True)
    return kept + tuple(_question(pool, others[row], reason, votes) for row, reason, votes in found)


def _question(pool: Pool, row: int, reason: str, votes: list[int]) -> Question:
    ranked = tuple(label for label, _ in Counter(votes).most_common())
    return Question(pool.keys[row], pool.places[row], pool.names[row], pool.pictures[row], reason, ranked)


def adapted(service: Service, pool: Pool, labels: Mapping[str, int]) -> Adapted:
    """Adapt the run to labels, classes by key.

    Raises:
        DissensusError: If no image of the pool has a label, or a label is not a class.
    """
    rows = [row for row, key in enumerate(pool.keys) if key in labels]
    classes = service.detector.classes
    values = [labels[pool.keys[row]] for row in rows]
    if not rows:
        raise DataError("adapting needs labels; none is given: choose the class of an image")
    if wrong := [value for value in values if not 0 <= value < len(classes)]:
        raise DataError(f"labels must be within 0..{len(classes) - 1}; got {wrong[0]}: choose a class of the run")
    labelled = FeatureSet.from_arrays(pool.features[rows], torch.tensor(values), classes=classes)
    with service.lock:
        return adapt(service.detector.ensemble, labelled, classes=classes, run=service.name)


def save(service: Service, result: Adapted, folder: Path) -> None:
    """Write an adapted run; where the service does not know the run's folder, ensemble and adaptation.json alone."""
    if service.run is not None:
        runs.save(result, Run.open(service.run), folder)
        return
    result.ensemble.save(folder / "ensemble")
    documents.write(folder / ADAPTATION, result.document)


def archive(service: Service, result: Adapted, folder: Path) -> Path:
    """Write an adapted run into `folder` as one .zip file; nothing else stays there."""
    name = f"{service.name}-adapted"
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        save(service, result, Path(temporary) / name)
        inside = sorted(path for path in Path(temporary).rglob("*") if path.is_file())
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as file:  # weights do not compress
            for path in inside:
                file.write(path, path.relative_to(temporary))
    return folder / f"{name}.zip"
