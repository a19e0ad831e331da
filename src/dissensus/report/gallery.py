"""Images that members differ most and least on, with thumbnails that are stored once however often they are shown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dissensus._core.errors import RunError
from dissensus.evaluation.outcomes import Example
from dissensus.evaluation.records import Judged
from dissensus.report.sources import JudgedRun

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+")
BUDGET = 1_500_000  # characters of all pictures together
MOST = 6  # images under a heading
HEADINGS = {"most": "members differ most", "least": "members differ least"}


@dataclass(frozen=True)
class Tile:
    """One image and what is said of it; `picture` is its number in the album."""

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
        """The picture's number; None of what is no picture."""
        if not PICTURE.fullmatch(picture):
            return None
        if picture not in self._places:
            self._places[picture] = len(self.pictures)
            self.pictures.append(picture)
        return self._places[picture]


def of_runs(runs: Sequence[JudgedRun], album: Album) -> dict[str, dict[str, list[Tile]]]:
    """Run name -> heading -> tiles; fewer under each heading where there are too many pictures for one page."""
    found: dict[str, dict[str, list[Tile]]] = {}
    for count in range(MOST, 0, -1):
        trial = Album(list(album.pictures), dict(album._places))
        for run in runs:
            try:
                found[run.name] = _of_run(run.judged, trial, count)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise RunError(f"{run.judged.folder} is damaged (examples: {error}); evaluate the run again") from error
        if count == 1 or sum(map(len, trial.pictures)) <= BUDGET:
            album.pictures, album._places = trial.pictures, trial._places
            break
    return {name: headings for name, headings in found.items() if headings}


def _of_run(judged: Judged, album: Album, count: int) -> dict[str, list[Tile]]:
    """The first few of each family, over all its sets."""
    found: dict[str, list[Tile]] = {}
    families = dict.fromkeys(entry["family"] or entry["name"] for entry in judged.sets)
    for family in families:
        entries = [entry for entry in judged.sets if (entry["family"] or entry["name"]) == family]
        for kind, words in HEADINGS.items():
            told = [(entry["name"], e) for entry in entries for e in entry["examples"].get(kind, [])]
            told.sort(key=lambda pair: pair[1]["pds"], reverse=kind == "most")
            if told:
                found[f"{family}: {words}"] = [_tile(name, e, judged.classes, album) for name, e in told[:count]]
    return found


def _tile(name: str, e: Mapping[str, object], classes: Sequence[str], album: Album) -> Tile:
    def said(number: object) -> str:
        return classes[number] if isinstance(number, int) and 0 <= number < len(classes) else str(number)

    members = [said(vote) for vote in e["votes"]] if isinstance(e["votes"], list) else []
    return Tile(
        album.add(str(e["picture"])),
        "none of these classes" if e["label"] is None else said(e["label"]),
        said(e["prediction"]),
        None if e["label"] is None else e["label"] == e["prediction"],
        tuple(f"{name}\u00a0\u00d7{count}" for name, count in Counter(members).most_common()),
        tuple(members),
        float(str(e["pds"])),
        f"{name}/{e['name']}",
    )


def of_study(examples: Mapping[str, Sequence[Example]], album: Album) -> dict[str, list[Tile]]:
    """Tiles of a study's examples."""
    return {
        heading: [Tile(album.add(e.picture), e.truth, e.answer, None, e.votes, (), e.score, e.place) for e in group]
        for heading, group in examples.items()
    }
