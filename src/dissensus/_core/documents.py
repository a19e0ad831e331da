"""Documents: every JSON file on disk is a pydantic model with a format version, read and written here.

    class Card(Document):
        error = RunError
        remedy = "export it again"

        format: Literal["dissensus-card-1"] = "dissensus-card-1"
        classes: tuple[str, ...]

    write(path, Card(classes=("cat", "dog")))
    card = read(Card, path)

A missing, damaged, deeply nested or wrongly typed value is one line that names the file and the field.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticSerializationError

from dissensus._core.errors import DissensusError, RunError, short
from dissensus._core.files import replacing
from dissensus._core.places import storage_errors

MAX_BYTES = 2**28  # no document of ours comes near; a larger file is not one

_D = TypeVar("_D", bound="Document")


class Part(BaseModel):
    """A part of a document: immutable, strictly typed, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=False
    )


class Document(Part):
    """A JSON file. Subclasses declare `format: Literal["dissensus-NAME-VERSION"]` with that default.

    Attributes:
        error: The error class raised for a file that cannot be used.
        remedy: What the user can do about such a file.
    """

    error: ClassVar[type[DissensusError]] = RunError
    remedy: ClassVar[str] = "copy it again from where it was written, or remove it"


def write(path: Path, document: Document) -> None:
    """Write a document as indented JSON, atomically.

    Raises:
        DissensusError: Of class `document.error`, if it cannot be written, or holds text that is not Unicode.
    """
    try:
        text = document.model_dump_json(indent=2)
    except PydanticSerializationError as error:
        raise document.error(
            f"cannot write {path}: names must be Unicode; {error}: rename the file or class"
        ) from error
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read(model: type[_D], path: Path, *, remedy: str | None = None) -> _D:
    """Read and check a document.

    Args:
        model: The document class.
        path: The file.
        remedy: What the user can do if it is missing or damaged; by default `model.remedy`.

    Raises:
        DissensusError: Of class `model.error`, if the file is missing, unreadable, or not such a document.
    """
    remedy = remedy or model.remedy
    try:
        with storage_errors(path, model.error, missing=False):
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise model.error(f"{path} must be a small JSON file; it has {size:,} bytes: {remedy}")
            document = model.model_validate_json(path.read_bytes())
        if "format" not in document.model_fields_set:  # its default is for writing
            raise model.error(f"{path} is damaged or of another version, format: field required: {remedy}")
        return document
    except FileNotFoundError as error:
        raise model.error(f"there is no file {path}: {remedy}") from error
    except OSError as error:
        raise model.error(f"cannot read {path}: {error.strerror}; {remedy}") from error
    except ValidationError as error:
        raise model.error(f"{path} is damaged or of another version, {problem(error)}: {remedy}") from error


def problem(error: ValidationError) -> str:
    """Return the first problem of a validation error in a few words: the field, the rule, the value."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    rule = first["msg"].split("\n")[0].removeprefix("Value error, ")
    rule = rule[:1].lower() + rule[1:]
    value = "" if first["type"] in ("missing", "json_invalid") else f", got {short(first['input'])}"
    return f"{field}: {rule}{value}" if field else f"{rule}{value}"
