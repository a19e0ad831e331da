"""Documents: every JSON file on disk is a pydantic model with a format version, read and written here.

    class Card(Document):
        error = RunError
        remedy = "export it again"

        format: Literal["dissensus-card-1"] = "dissensus-card-1"
        classes: tuple[str, ...]

    write(path, Card(classes=("cat", "dog")))
    card = read(Card, path)

A missing, damaged, deeply nested or wrongly typed value is one line that names the file and the field. The last field
of a file, `sha256`, is a digest of all others: a value that was changed is noticed even where it is a possible one.
Spaces and line breaks do not matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from dissensus._core import digests
from dissensus._core.errors import DissensusError, RunError, short
from dissensus._core.files import replacing
from dissensus._core.places import is_remote, storage_errors

MAX_BYTES = 2**28  # no document of ours comes near; a larger file is not one
SEAL = "sha256"  # the field with the digest of all others

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

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
        temporary.write_text(sealed(text) + "\n", encoding="utf-8")


def sealed(text: str) -> str:
    """Return a JSON object with the digest of its fields, in their order, as the last one."""
    digest = digests.of_bytes(json.dumps(json.loads(text)).encode())
    return f'{text.rstrip().removesuffix("}").rstrip()},\n  "{SEAL}": "{digest}"\n}}'


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
            if not is_remote(path) and path.exists() and not (path.is_file() or path.is_dir()):
                raise model.error(f"{path} must be a JSON file; it is a pipe or a device, which may not end: {remedy}")
            data = _read_bytes(path)
            if len(data) > MAX_BYTES:
                raise model.error(f"{path} must be a small JSON file; it has more than {MAX_BYTES:,} bytes: {remedy}")
        text, seal = _unsealed(data)
        document = model.model_validate_json(text)
        if "format" not in document.model_fields_set:  # its default is for writing
            raise model.error(f"{path} is damaged or of another version, format: field required: {remedy}")
        if digests.verifying() and seal is None:
            raise model.error(f"{path} is damaged or of another version, {SEAL}: field required: {remedy}")
        if digests.verifying() and seal != digests.of_bytes(text):
            raise model.error(
                f"{path} is altered, its {SEAL} differs from what was written: {remedy}, or add --no-verify to use it "
                "as it is"
            )
        return document
    except FileNotFoundError as error:
        raise model.error(f"there is no file {path}: {remedy}") from error
    except OSError as error:
        raise model.error(f"cannot read {path}: {error.strerror}; {remedy}") from error
    except ValidationError as error:
        raise model.error(f"{path} is damaged or of another version, {problem(error)}: {remedy}") from error


def _read_bytes(path: Path) -> bytes:
    """Return the contents of a file, or the first `MAX_BYTES` and one more."""
    data = bytearray()
    with path.open("rb") as file:
        while len(data) <= MAX_BYTES and (chunk := file.read(MAX_BYTES + 1 - len(data))):  # a stream gives less at once
            data += chunk
    return bytes(data)


def _unsealed(data: bytes) -> tuple[bytes, Any]:
    """Return a document without its digest, and the digest; what is not a JSON object is returned as it is."""
    try:
        values = json.loads(data)
        if not isinstance(values, dict):
            return data, None
        digest = values.pop(SEAL, None)
        return json.dumps(values).encode(), digest
    except (ValueError, RecursionError):
        return data, None


def problem(error: ValidationError) -> str:
    """Return the first problem of a validation error in a few words: the field, the rule, the value."""
    first = error.errors(include_url=False)[0]
    field = ".".join(map(str, first["loc"]))
    rule = first["msg"].split("\n")[0].removeprefix("Value error, ")
    rule = rule[:1].lower() + rule[1:]
    value = "" if first["type"] in ("missing", "json_invalid") else f", got {short(first['input'])}"
    return f"{field}: {rule}{value}" if field else f"{rule}{value}"
