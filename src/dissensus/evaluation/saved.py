"""Saved evaluations: what was measured of a run, in its folder, for reports and studies.

RUN/evaluation/evaluation.json       suite, classes, sets with roles and families, examples, digests of the other files
RUN/evaluation/results.csv           the frame of evaluate()
RUN/evaluation/set-00.safetensors    the predictions for a set
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pandas as pd
from pydantic import Field, field_validator

from dissensus._core import digests, documents, tensors
from dissensus._core.documents import Document, Part, Sha256
from dissensus._core.errors import RunError
from dissensus._core.files import make_folder
from dissensus.evaluation import results, score_files
from dissensus.evaluation._evaluate import Protocol, computed_scores, measure, predict_sets
from dissensus.evaluation.examples import Example, find_examples
from dissensus.evaluation.predictions import Predictions
from dissensus.evaluation.soups import pretrained_tail
from dissensus.evaluation.suite import Role, SuiteSet
from dissensus.features import FeatureSet
from dissensus.models.ensemble import Ensemble
from dissensus.training import loggers
from dissensus.training.run import Run, writing_run

FOLDER, DOCUMENT, RESULTS = "evaluation", "evaluation.json", "results.csv"
AGAIN = "evaluate the run again"


class SavedSet(Part):
    """A set that was evaluated on; `examples` are those that members differ on "most" and "least".

    `predictions` is the digest of those that were saved, if they were.
    """

    name: str
    role: Role
    family: str
    count: Annotated[int, Field(ge=1, le=2**40)]
    examples: dict[str, tuple[Example, ...]]
    predictions: Sha256 | None


class EvaluationDocument(Document):
    """evaluation.json. `inputs` identifies what the values depend on besides the run, where the writer said so."""

    remedy: ClassVar[str] = AGAIN

    format: Literal["dissensus-evaluation-2"] = "dissensus-evaluation-2"
    suite: str
    summary: str
    classes: tuple[str, ...]
    sets: tuple[SavedSet, ...]
    results: Sha256  # of results.csv
    inputs: str = ""
    title: str = ""  # what the page calls the data; "": the suite

    @field_validator("sets")
    @classmethod
    def _one_id_set(cls, sets: tuple[SavedSet, ...]) -> tuple[SavedSet, ...]:
        if [s.role for s in sets].count("id") != 1:
            raise ValueError("there must be exactly one id set")
        return sets


@dataclass(frozen=True)
class Evaluation:
    """A saved evaluation: its document, the frame of `evaluate`, and predictions on demand."""

    about: EvaluationDocument
    frame: pd.DataFrame
    folder: Path

    def predictions(self, name: str) -> Predictions:
        """The predictions for the set of that name.

        Raises:
            RunError: if they were not saved, or cannot be read.
        """
        number, saved = next((i, s) for i, s in enumerate(self.about.sets) if s.name == name)
        path = self.folder / f"set-{number:02d}.safetensors"
        values = tensors.read(path, remedy=AGAIN, digest=saved.predictions)
        scores = {key.removeprefix("score."): value for key, value in values.items() if key.startswith("score.")}
        try:
            return Predictions(
                values.get("labels"), values["prediction"], values["confidence"], values["votes"], scores
            )
        except KeyError as error:
            raise RunError(f"{path} is damaged (it has no {error}): {AGAIN}") from error


def evaluate_run(
    run: Run,
    ensemble: Ensemble,
    sets: Sequence[SuiteSet],
    *,
    suite: str,
    summary: str = "",
    held_out: FeatureSet | None = None,
    protocol: Protocol = "mask",
    keep: Literal["predictions", "values", "nothing"] = "predictions",
    inputs: str = "",
    scores: tuple[Path, str, str | None] | None = None,
    title: str = "",
    progress: bool = True,
) -> pd.DataFrame:
    """Evaluate a trained run, keep what was measured in its folder, and return the frame of `evaluate`.

    The aggregate `wise` is measured where the run's backbone has a tail for the same classes, and its weights are at
    hand.

    Args as for `evaluate`, and:
        suite, summary, title: name of the suite that the sets belong to, a line about it, and what to call the data if
            that has another name.
        keep: "predictions" for everything, "values" for the frame only, or "nothing".
        inputs: a digest of what the values depend on besides the run, to be compared with later.
        scores: a new folder for score files, their format, and which score, None being that of tables; see
            `score_files`; what is wrong with these is raised before predicting. None: they are not written.
    """
    if scores is not None:
        out, form, score = scores
        score_files.check(out, sets, form, score, computed_scores(ensemble, held_out))
    classes, backbone = run.settings["classes"], run.settings.get("backbone")
    predictions = predict_sets(
        ensemble, sets, classes=classes, backbone=backbone, held_out=held_out,
        pretrained=pretrained_tail(ensemble, backbone, classes), protocol=protocol, progress=progress,
    )  # fmt: skip
    frame = measure(sets, predictions, {"run": run.folder.name, **run.about})
    if keep != "nothing":
        shown = predictions if keep == "predictions" else {}
        with writing_run(run.folder):
            save(
                run.folder,
                frame,
                sets,
                shown,
                suite=suite,
                summary=summary,
                title=title,
                classes=classes,
                inputs=inputs,
            )
        loggers.add(run.folder, _headlines(frame))
    if scores is not None:  # last, so that what cannot be written there is not lost
        score_files.write(out, sets, predictions, score or results.Results(frame).headline, form)
    return frame


def _headlines(frame: pd.DataFrame) -> dict[str, float]:
    """The values that the summary of a run shows, by family and name; shares within 0..1."""
    table = results.Results(frame).summary()
    cells = zip(table.columns, table.rows[0].cells, strict=True)
    return {f"{c.name}/{c.group.removesuffix(' %')}": cell.mean for c, cell in cells if cell is not None}


def save(
    run: Path,
    frame: pd.DataFrame,
    sets: Sequence[SuiteSet],
    predictions: Mapping[str, Predictions],
    *,
    suite: str,
    classes: Sequence[str],
    summary: str = "",
    inputs: str = "",
    title: str = "",
) -> None:
    """Write an evaluation into a run folder, in place of a former one; `predictions` by name, of some sets or none."""
    folder = run / FOLDER
    make_folder(folder)
    (folder / DOCUMENT).unlink(missing_ok=True)  # written last: without it there is no evaluation
    saved = []
    for number, s in enumerate(sets):
        path, examples, digest = folder / f"set-{number:02d}.safetensors", {}, None
        path.unlink(missing_ok=True)
        if (samples := predictions.get(s.name)) is not None:
            values = {f"score.{name}": value.float() for name, value in samples.scores.items()}
            values |= {"prediction": samples.prediction, "confidence": samples.confidence.float()}
            values |= {"votes": samples.votes} | ({} if samples.labels is None else {"labels": samples.labels})
            digest = tensors.write(path, values)
            examples = find_examples(s, samples, classes)
        saved.append(
            SavedSet(
                name=s.name,
                role=s.role,
                family=s.family or s.name,
                count=len(s.features),
                examples=examples,
                predictions=digest,
            )
        )
    results.write(frame, folder / RESULTS)
    document = EvaluationDocument(
        suite=suite,
        summary=summary,
        classes=tuple(classes),
        sets=tuple(saved),
        results=digests.of_file(folder / RESULTS),
        inputs=inputs,
        title=title,
    )
    documents.write(folder / DOCUMENT, document)


def is_saved(run: Path, *, predictions: bool = False) -> bool:
    """Whether a run folder has an evaluation, and with `predictions`, one with predictions."""
    folder = run / FOLDER
    return (folder / DOCUMENT).is_file() and not (predictions and not any(folder.glob("set-*.safetensors")))


def load(run: Path) -> Evaluation:
    """The evaluation in a run folder.

    Raises:
        RunError: if there is none, or it is damaged.
    """
    if not is_saved(run):
        raise RunError(f"{run} has not been evaluated yet: dissensus evaluate {run} --suite SUITE")
    folder = run / FOLDER
    about = documents.read(EvaluationDocument, folder / DOCUMENT)
    digests.verify(folder / RESULTS, about.results, remedy=AGAIN, error=RunError)
    return Evaluation(about, results.read(folder / RESULTS), folder)
