"""Places keep the storage options of a UPath."""

from __future__ import annotations

from pathlib import Path

import fsspec
from upath import UPath

from dissensus._core.places import filesystem, place


def test_storage_options_are_kept():
    given = UPath("s3://bucket/runs", anon=True)
    assert place(given) is given
    fs, inside = filesystem(place(given) / "mine")
    assert (fs.anon, inside) == (True, "bucket/runs/mine")
    assert fs is fsspec.filesystem("s3", anon=True), "that of this process"
    assert not filesystem("s3://bucket/runs")[0].anon


def test_local_paths_are_paths():
    for given in ("/a/b", "file:///a/b", UPath("/a/b"), UPath("file:///a/b")):
        assert place(given) == Path("/a/b")
        assert isinstance(place(given), Path)
