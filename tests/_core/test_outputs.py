"""An output belongs to one writer; what killed ones left is removed by the next."""

from __future__ import annotations

import os
import threading

import pytest

from dissensus._core.errors import RunError
from dissensus._core.locks import locked
from dissensus._core.outputs import writing


def refused(path) -> str:
    """What another thread is told, as another process would be."""
    reasons = []

    def other():
        try:
            with writing(path):
                pass
        except RunError as error:
            reasons.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    return "".join(reasons)


def test_a_second_writer_is_refused_by_whatever_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.csv").symlink_to("a.csv")
    with writing(tmp_path / "a.csv"), writing("a.csv"):  # one thread may hold it again
        assert refused("a.csv") == "a.csv is being written by another command: wait for it, or choose another"
        assert "link.csv is being written" in refused("link.csv")
        assert refused("b.csv") == ""
    assert refused("a.csv") == ""
    assert os.listdir() == ["link.csv"]


def test_folders_made_for_nothing_are_removed(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "new" / "er" / "a.csv"):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_leftovers_of_this_output_alone_are_removed_and_only_under_the_lock(tmp_path):
    run, inside = tmp_path / "a", tmp_path / "a" / "ensemble"
    inside.mkdir(parents=True)
    (tmp_path / ".a.01234567.tmp").mkdir()
    (tmp_path / ".a.01234567.tmp" / "part").touch()
    for left in (tmp_path / ".a.89abcdef.tmp", run / ".run.json.01234567.tmp", inside / ".x.01234567.tmp"):
        left.touch()
    others = [tmp_path / ".a.b.01234567.tmp", tmp_path / ".b.01234567.tmp", tmp_path / ".a.mine.tmp"]
    for other in others:
        other.touch()
    with locked(tmp_path / ".a.lock"):
        assert "is being written" in refused(run)
        assert (tmp_path / ".a.89abcdef.tmp").exists()
    with writing(run, "ensemble", "evaluation"):
        pass
    assert sorted(tmp_path.iterdir()) == sorted([run, *others])
    assert [path.name for path in run.rglob("*")] == ["ensemble"]


def test_a_folder_that_is_a_volume_has_its_lock_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path)
    with writing(tmp_path):
        assert os.listdir(tmp_path) == [f".{tmp_path.name}.lock"]
    assert os.listdir(tmp_path) == []


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / ".a.csv.lock").symlink_to("victim")
    with pytest.raises(RunError, match=r"cannot write .*a.csv: Too many levels"), writing(tmp_path / "a.csv"):
        pass
    assert not (tmp_path / "victim").exists()
