"""A page with the questions: pictures, votes and the classes to choose from, as one file without a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dissensus import __version__
from dissensus.adaptation._ask import Questions
from dissensus.features import FeatureSet
from dissensus.images import BadImage, ImageSet, thumbnail

PIXELS = 224  # of a picture's longer side
MARK = '<meta name="generator" content="dissensus ask">'  # by which a page of ours may be replaced


class Tile(NamedTuple):
    """A question on the page."""

    sample: str
    picture: str  # a data: URL; "" if there is none
    reason: str
    tally: Sequence[tuple[str, int]]  # classes that members predict, and by how many


def render(questions: Questions, pool: FeatureSet | ImageSet, table: str, command: str) -> str:
    """Return the page as HTML.

    Args:
        questions: What to ask.
        pool: Where the samples are from.
        table: The name of the file to fill in.
        command: The command that uses it.
    """
    tiles = [
        Tile(sample_name(pool, row), _picture(pool, row), reason, Counter(votes).most_common())
        for row, reason, votes in zip(questions.rows.tolist(), questions.reasons, questions.named_votes, strict=True)
    ]
    environment = Environment(
        loader=PackageLoader("dissensus.adaptation"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("sheet.html").render(
        mark=Markup(MARK), tiles=tiles, classes=questions.classes, table=table, command=command, version=__version__
    )


def sample_name(pool: FeatureSet | ImageSet, row: int) -> str:
    """What a person calls a sample."""
    return pool.names[row] if isinstance(pool, ImageSet) else f"row {row}"


def _picture(pool: FeatureSet | ImageSet, row: int) -> str:
    if not isinstance(pool, ImageSet):
        return ""
    try:
        return thumbnail(pool.image(row), PIXELS)
    except BadImage:  # removed since it was encoded
        return ""
