"""What was found when a run was judged, kept in its folder for reports: numbers, samples, and pictures of some.

RUN/judged/judged.json             suite, sets with roles and families, classes, examples
RUN/judged/results.csv             the frame of evaluate()
RUN/judged/set-00.safetensors      what the ensemble and its members say of every sample of a set
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dissensus._core.errors import RunError
from dissensus._core.files import make_folder, read_json, replacing, write_json
from dissensus.evaluation import tables
from dissensus.evaluation.predictions import Predictions
from dissensus.evaluation.suite import SuiteSet
from dissensus.images import BadImage

FORMAT = "dissensus-judged-1"
FOLDER = "judged"
EXAMPLES = 6  # most and least divergent images of a set
PIXELS = 96  # of a thumbnail


@dataclass(frozen=True)
class Judged:
    """A run as it was judged on a suite."""

    suite: str
    summary: str
    classes: tuple[str, ...]
    sets: tuple[dict[str, Any], ...]  # name, role, family, count, and examples: most and least divergent
    frame: pd.DataFrame
    folder: Path

    def samples(self, name: str) -> Predictions:
        """What was said of every sample of the set of that name."""
        number = next(i for i, s in enumerate(self.sets) if s["name"] == name)
        try:
            found = load_file(self.folder / f"set-{number:02d}.safetensors")
        except (OSError, SafetensorError) as error:
            raise RunError(f"{self.folder} is damaged ({error}); evaluate the run again") from error
        scores = {key.removeprefix("score."): value for key, value in found.items() if key.startswith("score.")}
        return Predictions(found.get("labels"), found["prediction"], found["confidence"], found["votes"], scores)


def keep(
    run: Path,
    suite: str,
    summary: str,
    classes: Sequence[str],
    sets: Sequence[SuiteSet],
    frame: pd.DataFrame,
    samples: Mapping[str, Predictions],
) -> None:
    """Write what was found into the run folder, in place of what was found before."""
    folder = run / FOLDER
    make_folder(folder)
    (folder / "judged.json").unlink(missing_ok=True)  # written last: what is half replaced is not there
    about = []
    for number, s in enumerate(sets):
        found = samples[s.name]
        tensors = {f"score.{name}": values.float().contiguous() for name, values in found.scores.items()}
        tensors |= {"prediction": found.prediction, "confidence": found.confidence.float(), "votes": found.votes}
        if found.labels is not None:
            tensors["labels"] = found.labels.contiguous()
        with replacing(folder / f"set-{number:02d}.safetensors") as path:
            save_file(tensors, path)
        shown = _examples(s, found) if s.images is not None else {}
        entry = {"name": s.name, "role": s.role, "family": s.family, "count": len(s.features), "examples": shown}
        about.append(entry)
    tables.write(frame, folder / "results.csv")
    write_json(
        folder / "judged.json",
        {
            "format": FORMAT,
            "suite": suite,
            "summary": summary,
            "classes": list(classes),
            "sets": about,
        },
    )


def read(run: Path) -> Judged:
    """What `keep` wrote, refused with the remedy where there is nothing."""
    found = read_json(run / FOLDER / "judged.json")
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RunError(f"{run} has not been judged yet: dissensus evaluate {run} --suite SUITE")
    return Judged(
        found["suite"],
        found["summary"],
        tuple(found["classes"]),
        tuple(found["sets"]),
        tables.read(run / FOLDER / "results.csv"),
        run / FOLDER,
    )


def _examples(s: SuiteSet, samples: Predictions) -> dict[str, list[dict[str, Any]]]:
    order = samples.scores["pds"].argsort(stable=True)
    picked = {"most": order.flip(0)[:EXAMPLES], "least": order[:EXAMPLES]}
    return {heading: [example(s, samples, int(row)) for row in rows] for heading, rows in picked.items()}


def example(s: SuiteSet, samples: Predictions, row: int) -> dict[str, Any]:
    """One image with what is said of it: classes by number, votes by member."""
    assert s.images is not None
    try:
        picture = thumbnail(s.images.image(row))
    except BadImage:  # it was there when features were made
        picture = ""
    return {
        "picture": picture,
        "name": s.images.names[row],
        "row": row,
        "label": None if samples.labels is None else int(samples.labels[row]),
        "prediction": int(samples.prediction[row]),
        "confidence": round(float(samples.confidence[row]), 4),
        "votes": [int(vote) for vote in samples.votes[:, row]],
        "pds": round(float(samples.scores["pds"][row]), 4),
    }


def thumbnail(image: Image.Image, pixels: int = PIXELS) -> str:
    """A small picture as a data: address; a tiny one is enlarged without blurring its pixels."""
    scale = pixels / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    tiny = scale > 2
    file = io.BytesIO()
    image.resize(size, Image.Resampling.NEAREST if tiny else Image.Resampling.BICUBIC).save(
        file, "PNG" if tiny else "JPEG", quality=85
    )
    return f"data:image/{'png' if tiny else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"


def votes_in_words(votes: Sequence[int], classes: Sequence[str]) -> list[str]:
    """Members' votes, the most frequent class first: 3 x dog, 2 x cat."""
    counts = torch.bincount(torch.as_tensor(votes), minlength=len(classes))
    return [f"{int(counts[i])} x {classes[int(i)]}" for i in counts.argsort(descending=True) if counts[i] > 0]
