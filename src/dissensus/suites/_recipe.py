"""Recipes: which sets a suite of images holds and where they are, before any image is read.

As YAML (see docs/suites.md):

    name: leaves
    summary: Leaves of the garden; autumn leaves are a shift, stones are out of distribution.
    size: 128
    sets:
      train:  {role: train, images: leaves/spring, part: [0, 0.8]}
      spring: {role: id, images: leaves/spring, part: [0.8, 1]}
      autumn: {role: shift, images: leaves/autumn}
      noise:  {role: shift, images: leaves/spring, part: [0.8, 1], corruption: all, severities: [1, 5]}
      stones: {role: ood, images: [stones, stones.tar], shrink: 64}

Paths are relative to the root that is given when the suite is loaded; of several paths the first that exists counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, Strict, StringConstraints, model_validator

from dissensus._core.documents import Part
from dissensus.images import corruptions

UNLABELLED = ("ood", "disagreement", "pool")  # roles whose labels are ignored


def _listed(value: Any) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values:
        raise ValueError("should not be empty")
    return values


def _corruption_names(value: Any) -> Any:
    return corruptions.CORRUPTIONS if value in ("all", ["all"]) else value


def _span(value: Any) -> tuple[float, float]:
    numbers = isinstance(value, list | tuple) and all(type(each) in (int, float) for each in value)
    if not numbers or len(value) != 2 or not 0 <= value[0] < value[1] <= 1:
        raise ValueError("should be [from, to] with 0 <= from < to <= 1")
    return float(value[0]), float(value[1])


def _columns(value: Any) -> dict[str, str]:
    plain = str | int | float
    if not isinstance(value, dict) or not value or not all(isinstance(each, plain) for each in value.values()):
        raise ValueError("should map columns to values")
    return {str(column): str(each) for column, each in value.items()}


def _named(sets: Any) -> Any:
    """Give every set its name, which is its key."""
    if not isinstance(sets, dict) or not sets:
        raise ValueError("should map names to sets")
    for name, values in sets.items():
        if not isinstance(values, dict) or "name" in values:
            raise ValueError(f"set {str(name)!r} should be a mapping with `role` and `images`, named by its key")
    return {str(name): {**values, "name": str(name)} for name, values in sets.items()}


Text = Annotated[str, StringConstraints(pattern=r"\S")]
Texts = Annotated[tuple[Text, ...], Strict(False), BeforeValidator(_listed)]
Count = Annotated[int, Field(ge=1)]


class SetRecipe(Part):
    """One set, or several that differ in corruption and severity.

    `{corruption}` and `{severity}` in `images` are filled in; without them, corruptions are applied to the images when
    these are read.
    """

    name: Text  # its key in the recipe
    role: Text  # one of `_rules.ROLES`
    images: Texts = ()  # where it may be
    of: Text | None = None  # instead: the name of a set whose features it shares, in another role
    part: Annotated[tuple[float, float], PlainValidator(_span)] | None = None  # shares of each class in random order
    base: Text | None = None  # folder that paths in a list or table start from
    image_column: Text | None = None
    label_column: Text | None = None
    group_columns: Texts = ()
    only: Annotated[dict[str, str], PlainValidator(_columns)] = Field({})  # rows of a table to keep, column -> value
    shrink: Count | None = None  # pixels of the shorter side, so that sharpness alone does not give the set away
    corruption: Annotated[Texts, BeforeValidator(_corruption_names)] = ()
    severities: Annotated[tuple[Count, ...], Strict(False), BeforeValidator(_listed)] = ()
    family: str = ""  # column of the tables that several sets share
    subset: Text | None = None  # classes it may have: present, any, imagenet-a, imagenet-r, or a file of class names
    inside: bool = False  # of a shift set: counts as in distribution in the full spectrum
    get: str = ""  # how to get it

    @model_validator(mode="before")
    @classmethod
    def _default_severities(cls, values: Any) -> Any:
        return {"severities": [1, 5], **values} if "corruption" in values else values

    @property
    def stored(self) -> bool:
        """Whether corrupted images are on disk, in one folder each, instead of being computed."""
        return any("{corruption}" in place or "{severity}" in place for place in self.images)

    def variants(self) -> Iterator[SetRecipe]:
        """Yield the set itself, or one set per corruption and severity, with names and paths filled in.

        `corruption` is kept if the images are still to be corrupted.
        """
        if not self.corruption:
            yield self
        for severity in self.severities:
            for corruption in self.corruption:
                yield self.model_copy(
                    update={
                        "name": f"{self.name}-{corruption}-{severity}",
                        "images": tuple(_fill(place, corruption, severity) for place in self.images),
                        "family": _fill(self.family or f"{self.name}-{{severity}}", corruption, severity),
                        "corruption": () if self.stored else (corruption,),
                        "severities": () if self.stored else (severity,),
                    }
                )


class Recipe(Part):
    """A suite of images before any image is read."""

    name: Text
    summary: Text
    title: str = ""  # what reports call the data; "": the name
    sets: Annotated[dict[str, SetRecipe], BeforeValidator(_named)]
    get: str = ""  # how to get what is missing
    backbone: Text = "lite0"
    size: Count | None = None  # pixels per side; None: the backbone's own, as for `crop`
    crop: Annotated[float, Field(gt=0, le=1)] | None = None
    layers: Literal[1, 2] = 1
    training: dict[str, Any] = Field({})  # options of `fit` that suit the suite
    note: str = ""  # printed when the suite is loaded

    def of_role(self, role: str) -> list[SetRecipe]:
        """Return the sets of a role."""
        return [s for s in self.sets.values() if s.role == role]


def _fill(text: str, corruption: str, severity: int) -> str:
    return text.replace("{corruption}", corruption).replace("{severity}", str(severity))
