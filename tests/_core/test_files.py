"""Files are complete or absent, whoever writes and whatever goes wrong."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from dissensus._core import files
from dissensus._core.errors import RunError
from dissensus._core.files import check_output, is_temporary, remove_temporaries, replacing
from dissensus._core.outputs import assembling


def test_a_file_is_replaced_when_the_block_ends_and_not_before(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert is_temporary(temporary.name)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            assert second != first
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    for name, target in (("link", "far/a.txt"), ("folder", "far/b")):
        (tmp_path / name).symlink_to(target)
    for _ in range(2):  # first the target is missing
        with replacing(tmp_path / "link") as temporary:
            assert temporary.parent == tmp_path / "far"
            temporary.write_text("new")
    with assembling(tmp_path / "folder") as folder:
        folder.mkdir()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder").is_symlink()
    assert (tmp_path / "far" / "a.txt").read_text() == "new"
    assert sorted(os.listdir(tmp_path / "far")) == ["a.txt", "b"]


def test_a_temporary_name_that_is_a_link_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "unique", lambda path: tmp_path / ".guessed.tmp")
    (tmp_path / ".guessed.tmp").symlink_to("victim")
    with pytest.raises(RunError, match=r"cannot write .*a.txt: File exists"), replacing(tmp_path / "a.txt"):
        pass
    assert os.listdir(tmp_path) == [".guessed.tmp"]  # which is not ours to remove


def test_only_a_regular_file_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for name, kind in (("pipe.csv", "device or pipe"), ("", "folder")):
        with pytest.raises(RunError, match=f"must be a file; .* is a {kind}: choose"), replacing(tmp_path / name):
            pass
    assert os.listdir(tmp_path) == ["pipe.csv"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_get_the_mode_that_the_umask_allows(tmp_path, umask):
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "a.safetensors") as temporary:
            save_file({"x": torch.zeros(2)}, temporary)
        with assembling(tmp_path / "folder") as folder:
            folder.mkdir()
            save_file({"x": torch.zeros(2)}, folder / "b.safetensors")
    finally:
        os.umask(before)
    for path in (tmp_path / "a.safetensors", tmp_path / "folder" / "b.safetensors"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_importing_does_not_touch_the_umask():
    code = "import os; os.umask = None; import dissensus._core.files"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_that_is_missing_is_one_line(tmp_path):
    rule = r"cannot write .*a.txt: there is no folder .*none, or no longer; start again"
    with pytest.raises(RunError, match=rule), replacing(tmp_path / "none" / "a.txt"):
        pass


@pytest.mark.parametrize("inside", ["file", "file/a/b"])
def test_an_output_is_not_a_file_nor_inside_one(inside, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"the output must be a folder; .*/file is a file: choose another --out"):
        check_output(tmp_path / inside)


def test_an_output_may_be_new_and_must_be_writable(tmp_path, monkeypatch):
    check_output(tmp_path)
    check_output(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    check_output("a/b")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RunError, match=r"a folder that you may write to; .* is not: choose another --out"):
        check_output(tmp_path / "a" / "b")


def test_an_assembled_folder_appears_whole(tmp_path):
    out = tmp_path / "made" / "out"
    with pytest.raises(RuntimeError), assembling(out) as folder:  # noqa: PT012
        folder.mkdir()
        (folder / "a").write_text("a")
        raise RuntimeError
    assert os.listdir(tmp_path) == []  # without the parent that was made for it
    with assembling(out) as folder:
        folder.mkdir()
        (folder / "a").write_text("a")
    assert os.listdir(tmp_path / "made") == ["out"]
    assert (out / "a").read_text() == "a"


def test_temporaries_of_killed_processes_are_removed(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from dissensus._core.files import replacing
with replacing(Path({str(tmp_path / "a.txt")!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    (name,) = os.listdir(tmp_path)
    assert is_temporary(name)
    for mine in ("mine.tmp", ".mine.tmp"):
        (tmp_path / mine).write_text("not ours")
    remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".mine.tmp", "mine.tmp"]
