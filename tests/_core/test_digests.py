"""Digests and durations: the examples in their docstrings, what a digest depends on, and when a file is read again."""

from __future__ import annotations

import doctest
import os
import time

import pytest

from dissensus._core import digests, durations
from dissensus._core.digests import digest
from dissensus._core.errors import DataError, RunError


def test_a_digest_changes_with_every_fact_and_is_the_same_everywhere():
    facts = {"seed": 0, "sets": [["id", None], ["ood", "C-1"]]}
    assert digest(facts) == "775e2f7b1df1ab1f76433c2bd112486bac5429e9f8d5a88a7aa1f997491817f0"
    others = [{**facts, "seed": 1}, {**facts, "sets": facts["sets"][::-1]}, {**facts, "lr": 0.1}]
    assert len({digest(each) for each in (facts, *others)}) == 4


def test_the_examples_are_right():
    assert doctest.testmod(digests) == doctest.TestResults(failed=0, attempted=1)
    assert doctest.testmod(durations) == doctest.TestResults(failed=0, attempted=1)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file that was written a minute ago, its digest, and how often a file is hashed."""
    path, hashed, original = tmp_path / "x", [], digests.of_file
    path.write_bytes(b"some bytes")
    age(path)

    def of_file(path):
        hashed.append(path)
        return original(path)

    monkeypatch.setattr(digests, "of_file", of_file)
    return path, original(path), hashed


def age(path, seconds=60.0):
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_file_is_verified_once_until_it_changes(file):
    path, sha256, hashed = file
    for _ in range(3):
        digests.verify(path, sha256, remedy="copy it")
    assert len(hashed) == 1
    age(path, 30)
    digests.verify(path, sha256, remedy="copy it")
    assert len(hashed) == 2  # only its date has changed
    with pytest.raises(DataError, match=r"a file must be as written; .*x is altered, its sha256 differs: copy it\Z"):
        digests.verify(path, sha256[::-1], remedy="copy it")
    path.write_bytes(b"more bytes")
    with pytest.raises(RunError, match="altered"):
        digests.verify(path, sha256, remedy="copy it", error=RunError)
    path.unlink()
    with pytest.raises(DataError, match=r"x is missing: copy it\Z"):
        digests.verify(path, sha256, remedy="copy it")


def test_a_file_that_was_just_written_is_verified_again(file):
    """Within the resolution of its date it may change without a trace."""
    path, sha256, hashed = file
    path.touch()
    for _ in range(2):
        digests.verify(path, sha256, remedy="copy it")
    assert len(hashed) == 2


def test_nothing_is_verified_on_request(file):
    path, _, hashed = file
    with digests.unverified():
        digests.verify(path, "0" * 64, remedy="copy it")
        assert os.environ["DISSENSUS_VERIFY"] == "0"  # for processes that are started here
    assert hashed == []
    assert "DISSENSUS_VERIFY" not in os.environ
    with digests.unverified(False), pytest.raises(DataError):
        digests.verify(path, "0" * 64, remedy="copy it")
