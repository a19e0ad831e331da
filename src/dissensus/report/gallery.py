"""Images that members differ most and least on, with thumbnails that are stored once however often they are shown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dissensus.evaluation.examples import Example
from dissensus.evaluation.saved import EvaluationDocument
from dissensus.report.sources import EvaluatedRun

PICTURE = re.compile(r"data:image/(png|jpeg|webp);base64,[A-Za-z0-9+/=]+")
BUDGET = 1_500_000  # characters of all pictures together
MOST = 6  # images under a heading
HEADINGS = {"most": "members differ most", "least": "members differ least"}


@dataclass(frozen=True)
class Tile:
    """An example on the page; `picture` is the number of its picture in the album."""

    picture: int | None
    example: Example


class Album(dict[str, int]):
    """Pictures with their numbers, each once."""

    def tiles(self, examples: Sequence[Example]) -> list[Tile]:
        """Return tiles of examples, with their pictures added; what is not a picture has no number."""
        return [
            Tile(self.setdefault(e.picture, len(self)) if PICTURE.fullmatch(e.picture) else None, e) for e in examples
        ]


def of_runs(runs: Sequence[EvaluatedRun], album: Album) -> dict[str, dict[str, list[Tile]]]:
    """Run name -> heading -> tiles; fewer under each heading where there are too many pictures for one page."""
    tiles: dict[str, dict[str, list[Tile]]] = {}
    for count in range(MOST, 0, -1):
        trial = Album(album)
        tiles = {run.name: _of_run(run.evaluation.about, trial, count) for run in runs}
        if count == 1 or sum(map(len, trial)) <= BUDGET:
            album.update(trial)
            break
    return {name: headings for name, headings in tiles.items() if headings}


def _of_run(about: EvaluationDocument, album: Album, count: int) -> dict[str, list[Tile]]:
    """The first few of each family, over all its sets."""
    tiles: dict[str, list[Tile]] = {}
    for family in dict.fromkeys(s.family for s in about.sets):
        for kind, words in HEADINGS.items():
            examples = [e for s in about.sets if s.family == family for e in s.examples.get(kind, ())]
            examples.sort(key=lambda e: e.pds, reverse=kind == "most")
            if examples:
                tiles[f"{family}: {words}"] = album.tiles(examples[:count])
    return tiles
