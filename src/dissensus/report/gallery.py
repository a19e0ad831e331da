"""Images that members differ most and least on, with thumbnails that are stored once however often they are shown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dissensus.evaluation.outcomes import Example
from dissensus.evaluation.saved import EvaluationDocument
from dissensus.evaluation.saved import Example as Saved
from dissensus.report.sources import EvaluatedRun

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+")
BUDGET = 1_500_000  # characters of all pictures together
MOST = 6  # images under a heading
HEADINGS = {"most": "members differ most", "least": "members differ least"}


@dataclass(frozen=True)
class Tile:
    """One image and its predictions; `picture` is its number in the album."""

    picture: int | None
    truth: str
    answer: str
    right: bool | None
    votes: tuple[str, ...]
    members: tuple[str, ...]
    score: float
    place: str


@dataclass
class Album:
    """Pictures by number, each once."""

    pictures: list[str] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def add(self, picture: str) -> int | None:
        """The picture's number; None if it is not a picture."""
        if not PICTURE.fullmatch(picture):
            return None
        if picture not in self._places:
            self._places[picture] = len(self.pictures)
            self.pictures.append(picture)
        return self._places[picture]


def of_runs(runs: Sequence[EvaluatedRun], album: Album) -> dict[str, dict[str, list[Tile]]]:
    """Run name -> heading -> tiles; fewer under each heading where there are too many pictures for one page."""
    tiles: dict[str, dict[str, list[Tile]]] = {}
    for count in range(MOST, 0, -1):
        trial = Album(list(album.pictures), dict(album._places))
        tiles = {run.name: _of_run(run.evaluation.about, trial, count) for run in runs}
        if count == 1 or sum(map(len, trial.pictures)) <= BUDGET:
            album.pictures, album._places = trial.pictures, trial._places
            break
    return {name: headings for name, headings in tiles.items() if headings}


def _of_run(about: EvaluationDocument, album: Album, count: int) -> dict[str, list[Tile]]:
    """The first few of each family, over all its sets."""
    tiles: dict[str, list[Tile]] = {}
    for family in dict.fromkeys(s.family for s in about.sets):
        for kind, words in HEADINGS.items():
            examples = [(s.name, e) for s in about.sets if s.family == family for e in s.examples.get(kind, ())]
            examples.sort(key=lambda pair: pair[1].pds, reverse=kind == "most")
            if examples:
                tiles[f"{family}: {words}"] = [_tile(name, e, about.classes, album) for name, e in examples[:count]]
    return tiles


def _tile(name: str, e: Saved, classes: Sequence[str], album: Album) -> Tile:
    def word(number: int) -> str:
        return classes[number] if 0 <= number < len(classes) else str(number)

    members = [word(vote) for vote in e.votes]
    return Tile(
        album.add(e.picture),
        "none of these classes" if e.label is None else word(e.label),
        word(e.prediction),
        None if e.label is None else e.label == e.prediction,
        tuple(f"{name}\u00a0\u00d7{count}" for name, count in Counter(members).most_common()),
        tuple(members),
        e.pds,
        f"{name}/{e.name}",
    )


def of_study(examples: Mapping[str, Sequence[Example]], album: Album) -> dict[str, list[Tile]]:
    """Tiles of a study's examples."""
    return {
        heading: [Tile(album.add(e.picture), e.truth, e.answer, None, e.votes, (), e.score, e.place) for e in group]
        for heading, group in examples.items()
    }
