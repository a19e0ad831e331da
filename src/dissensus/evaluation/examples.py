"""Examples: the images of a set that members differ on most and least, with a small picture of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dissensus._core.documents import Part
from dissensus.evaluation.predictions import Predictions
from dissensus.evaluation.suite import SuiteSet
from dissensus.images import BadImage, thumbnail

COUNT = 6  # images with the highest PDS, and as many with the lowest


class Example(Part):
    """An image and its predictions.

    Attributes:
        picture: a small copy as a data: address; "" if the image cannot be read any more.
        place: SET/NAME of the image.
        truth: its class; None if that is none of the ensemble's, or not known.
        answer: the class that the ensemble predicts.
        votes: the class that each member predicts.
        pds: its prediction diversity score.
    """

    picture: str
    place: str
    truth: str | None
    answer: str
    votes: tuple[str, ...]
    pds: float

    @property
    def tally(self) -> list[tuple[str, int]]:
        """Classes with their number of votes, the most frequent first."""
        return Counter(self.votes).most_common()

    @property
    def line(self) -> str:
        """The example in words."""
        votes = ", ".join(f"{count} x {name}" for name, count in self.tally)
        return f"{self.place}: {self.truth or 'none of these classes'}; ensemble {self.answer}; members {votes}"


def find_examples(s: SuiteSet, predictions: Predictions, classes: Sequence[str]) -> dict[str, tuple[Example, ...]]:
    """The images that members differ on "most" and "least", by PDS; {} if the set's images are not known."""
    if s.images is None:
        return {}
    order = predictions.scores["pds"].argsort(stable=True)
    chosen = {"most": order.flip(0)[:COUNT], "least": order[:COUNT]}
    return {
        heading: tuple(_example(s, predictions, classes, int(row)) for row in rows) for heading, rows in chosen.items()
    }


def _example(s: SuiteSet, predictions: Predictions, classes: Sequence[str], row: int) -> Example:
    assert s.images is not None
    try:
        picture = thumbnail(s.images.image(row))
    except BadImage:  # it was readable when features were extracted
        picture = ""
    name = s.images.names[row].encode("utf-8", "backslashreplace").decode()  # JSON holds Unicode only
    return Example(
        picture=picture,
        place=f"{s.name}/{name}",
        truth=None if predictions.labels is None else classes[int(predictions.labels[row])],
        answer=classes[int(predictions.prediction[row])],
        votes=tuple(classes[vote] for vote in predictions.votes[:, row].tolist()),
        pds=round(float(predictions.scores["pds"][row]), 4),
    )
