"""Whatever stands in a JSON file, reading it gives a document or one line that names file and field."""

from __future__ import annotations

import json
import os
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from dissensus._core import digests, documents
from dissensus._core.documents import Document, Part
from dissensus._core.errors import DataError, RunError


class Entry(Part):
    name: str
    rows: Annotated[int, Field(gt=0, le=2**40)]


class Sample(Document):
    remedy = "write it again"

    format: Literal["dissensus-sample-1"] = "dissensus-sample-1"
    share: float
    entries: tuple[Entry, ...]


GOOD = Sample(share=0.5, entries=(Entry(name="a", rows=3),))


def refused(path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(RunError) as caught:
        documents.read(Sample, path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert message.endswith(": write it again")
    assert len(message) < 300 + len(str(path))
    return message


def test_what_is_written_is_read(tmp_path):
    documents.write(tmp_path / "a.json", GOOD)
    assert documents.read(Sample, tmp_path / "a.json") == GOOD


def test_every_byte_of_a_file_is_watched(tmp_path):
    """A changed byte is one line, or the values are the same, as where a space becomes a line break."""
    path = tmp_path / "a.json"
    documents.write(path, GOOD)
    whole, noticed = path.read_bytes(), 0
    for at, bit in ((at, bit) for at in range(len(whole)) for bit in (1, 2, 4, 8, 16, 64, 128)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        message = ""
        try:
            assert documents.read(Sample, path) == GOOD
        except RunError as error:
            message = str(error)
        assert "\n" not in message
        noticed += bool(message)
    assert noticed > 6 * len(whole)


def test_a_changed_value_is_noticed_and_used_as_it_is_on_request(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    documents.write(path, GOOD)
    assert list(json.loads(path.read_text())) == ["format", "share", "entries", "sha256"]
    path.write_text(path.read_text().replace("0.5", "0.6"))
    with pytest.raises(
        RunError, match=r"a\.json is altered, its sha256 differs .*: write it again, or add --no-verify"
    ):
        documents.read(Sample, path)
    with digests.unverified():
        assert documents.read(Sample, path).share == 0.6
    monkeypatch.setenv("DISSENSUS_VERIFY", "0")
    with digests.unverified(False):
        assert documents.read(Sample, path).share == 0.6
    path.write_text(GOOD.model_dump_json())
    assert documents.read(Sample, path) == GOOD  # written by hand
    monkeypatch.delenv("DISSENSUS_VERIFY")
    with pytest.raises(RunError, match="sha256: field required"):
        documents.read(Sample, path)


def test_spaces_and_line_breaks_do_not_matter(tmp_path):
    path = tmp_path / "a.json"
    documents.write(path, GOOD)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1).replace("\n", "\r\n"))
    assert documents.read(Sample, path) == GOOD


def test_text_that_is_not_unicode_is_one_line(tmp_path):
    with pytest.raises(RunError, match="names must be Unicode") as caught:
        documents.write(tmp_path / "a.json", Sample(share=0.5, entries=(Entry(name="caf\udce9", rows=3),)))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": "dissensus-sample-9"}, "format: input should be 'dissensus-sample-1', got 'dissensus-sample-9'"),
        ({"share": None}, "share: input should be a valid number, got None"),
        ({"share": "0.5"}, "share: input should be a valid number, got '0.5'"),
        ({"entries": {}}, "entries: "),
        ({"entries": [{"name": "a"}]}, "entries.0.rows: field required"),
        ({"entries": [{"name": "a", "rows": -1}]}, "entries.0.rows: input should be greater than 0, got -1"),
        ({"entries": [{"name": "a", "rows": 10**30}]}, "entries.0.rows: input should be less than"),
        ({"entries": [{"name": "a\nb" * 999, "rows": 0}]}, "entries.0.rows"),
        ({"more": 1}, "more: extra inputs are not permitted, got 1"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, change, expected):
    assert expected in refused(tmp_path / "a.json", json.dumps(json.loads(GOOD.model_dump_json()) | change))


@pytest.mark.parametrize("field", ["format", "share", "entries"])
def test_a_missing_field_is_named(tmp_path, field):
    values = json.loads(GOOD.model_dump_json())
    del values[field]
    assert f"{field}: field required" in refused(tmp_path / "a.json", json.dumps(values))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", "[" * 100_000, '{"share":' * 5000, '{"share": NaN}', '{"share": 1e999}'],
    ids=["empty", "cut", "list", "null", "number", "deep list", "deep object", "nan", "infinite"],
)
def test_damaged_files_are_one_line(tmp_path, text):
    refused(tmp_path / "a.json", text)


def test_bytes_that_are_not_text_and_huge_files(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="damaged"):
        documents.read(Sample, path)
    monkeypatch.setattr(documents, "MAX_BYTES", 10)
    path.write_text(GOOD.model_dump_json())
    with pytest.raises(RunError, match=r"must be a small JSON file; it has more than \d+ bytes: write it again"):
        documents.read(Sample, path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_and_a_device_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with pytest.raises(RunError, match=rf"{name}\.json must be a JSON file; it is a pipe or a device"):
            documents.read(Sample, tmp_path / f"{name}.json")


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(RunError, match=r"there is no file .*none.json: try another"):
        documents.read(Sample, tmp_path / "none.json", remedy="try another")
    with pytest.raises(RunError, match=r"cannot read .*: Is a directory; write it again"):
        documents.read(Sample, tmp_path)


def test_the_error_class_is_the_documents_own(tmp_path):
    class Features(Sample):
        error = DataError

    with pytest.raises(DataError):
        documents.read(Features, tmp_path / "none.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["share", "entries", "rows"]), inner),
    max_leaves=8,
)


@given(json_values)
def test_any_json_is_a_document_or_one_line(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("any") / "a.json"
    path.write_text(json.dumps(value))
    with pytest.raises(RunError) as caught:
        documents.read(Sample, path)
    assert "\n" not in str(caught.value)
