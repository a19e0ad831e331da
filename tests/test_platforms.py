"""What other systems do differently, imitated here: Windows' encodings, pipes, drives, sockets and open files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import pathlib
import select
import socket
import sys
import uuid

import numpy as np
import pytest

from dissensus._core import outputs, places
from dissensus._core.errors import RunError
from dissensus._core.places import as_text
from dissensus.cli import READER_GONE, main
from dissensus.features import FeatureSet, _storage
from dissensus.models import joined
from dissensus.training import METHODS
from tests.features.samples import on_disk


def test_characters_that_the_terminal_lacks_are_escaped(monkeypatch):
    """Windows writes to a file or a pipe in a code page."""
    monkeypatch.setitem(METHODS, "single", dataclasses.replace(METHODS["single"], summary="ein Glück → 好"))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert main(["list", "methods"]) == 0
    sys.stdout.flush()
    assert "ein Glück \\u2192 \\u597d" in written.getvalue().decode("cp1252")


class Gone(io.StringIO):
    """A pipe whose reader has ended, on Windows: writing raises EINVAL."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def flush(self) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    def fileno(self) -> int:
        return self.number


def test_output_that_nobody_reads_is_dropped_without_poll(monkeypatch, tmp_path):
    number = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    monkeypatch.delattr(select, "poll", raising=False)
    monkeypatch.setattr(sys, "stdout", Gone(number))
    monkeypatch.setattr(sys, "__stdout__", sys.stdout)
    try:
        assert main(["list", "methods"]) == READER_GONE
        os.write(number, b"the rest")
    finally:
        os.close(number)
    assert (tmp_path / "out").read_bytes() == b"", "it goes to the null device"


@pytest.mark.parametrize(
    ("url", "windows", "posix"),
    [
        ("file:///C:/photos/a.png", "C:/photos/a.png", "/C:/photos/a.png"),
        ("file:///srv/photos", "/srv/photos", "/srv/photos"),
        ("/C:/photos", "/C:/photos", "/C:/photos"),
    ],
)
def test_a_file_url_with_a_drive_is_a_path(url, windows, posix, monkeypatch):
    for is_windows, path in ((True, windows), (False, posix)):
        monkeypatch.setattr(places, "WINDOWS", is_windows)
        assert as_text(url) == path


class Drive(type(pathlib.Path())):
    """A path on another drive."""

    anchor = "D:\\"

    def resolve(self, strict: bool = False) -> Drive:
        return self


def test_a_part_on_another_drive_has_its_whole_path(tmp_path):
    assert joined._name(Drive("/runs/lite0"), tmp_path) == "/runs/lite0"
    assert joined._name(tmp_path / "lite0", tmp_path / "all") == "../lite0"


def test_an_empty_folder_is_replaced_where_the_system_does_not(tmp_path, monkeypatch):
    replace = os.replace

    def windows(source, target):
        if os.path.isdir(target):
            raise PermissionError(errno.EACCES, "Access is denied", str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", windows)
    (tmp_path / "run").mkdir()
    with outputs.assembling(tmp_path / "run") as folder:
        folder.mkdir()
        (folder / "a").write_text("a", encoding="utf-8")
    with pytest.raises(RunError, match="cannot write"), outputs.assembling(tmp_path / "run") as folder:
        folder.mkdir()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a"]


def test_copies_of_shards_are_closed_where_an_open_file_cannot_be_removed(monkeypatch):
    original, copies = _storage.local_copy, []

    @contextlib.contextmanager
    def windows(path):
        with original(path) as copy:
            yield copy
            copies.append(copy)
            for number in range(256):
                with contextlib.suppress(OSError):  # of a number that is not open
                    assert not os.path.samestat(os.fstat(number), copy.stat()), "it is open"

    monkeypatch.setattr(_storage, "REMOVES_OPEN_FILES", False)
    monkeypatch.setattr(_storage, "local_copy", windows)
    url = f"memory://{uuid.uuid4().hex}/features"
    x, _ = on_disk(url)
    features = FeatureSet.open(url)
    np.testing.assert_array_equal(features.rows([0, 3, 49, 1]), x[[0, 3, 49, 1]])
    np.testing.assert_array_equal(features.rows(slice(None)), x)
    assert len(copies) == 8


def test_two_servers_do_not_share_an_address(monkeypatch):
    """SO_REUSEADDR would let them on Windows, which has an option of its own."""
    pytest.importorskip("gradio")
    from dissensus.serve import server

    options = []

    class Recorded(socket.socket):
        def setsockopt(self, level, option, value):
            options.append((level, option, value))

        def bind(self, address):
            options.append("bound")
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Recorded)
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    server.bind("127.0.0.1", 0).close()
    monkeypatch.delattr(socket, "SO_EXCLUSIVEADDRUSE")
    server.bind("127.0.0.1", 0).close()
    assert options == [
        (socket.SOL_SOCKET, -5, 1), "bound", (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), "bound",
    ]  # fmt: skip
