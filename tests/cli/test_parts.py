"""predict in parts and on Ray: the same bytes as one process; a killed command continues."""

from __future__ import annotations

import shutil

import pytest

from dissensus.cli import parts
from dissensus.detection import members
from tests.cli.test_predict import home  # noqa: F401 - a fixture
from tests.commands import refuse, run

SMALL = ["--batch-size", 4, "--workers", 0]


@pytest.fixture(autouse=True)
def short_shards(monkeypatch):
    monkeypatch.setattr(parts, "BATCHES", 2)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("source", ["fresh", "fresh-features"])
def test_parts_are_the_bytes_of_the_whole(home, source, suffix, tmp_path, capsys, monkeypatch):  # noqa: F811
    for module in (parts, members):
        monkeypatch.setattr(module, "batch_size", lambda ensemble, shape: 5)
    asked = ["predict", home / "run", home / source, *SMALL, "--explain"]
    assert run(capsys, *asked, "--out", tmp_path / f"whole.{suffix}", "--part", "1/1")[0] == 0
    names = []
    for number in (1, 2, 3):
        names.append(tmp_path / f"{number}.{suffix}")
        code, _, err = run(capsys, *asked, "--out", names[-1], "--part", f"{number}/3")
        assert code == 0, err
        assert not (tmp_path / f"{number}.{suffix}.parts").exists()
    code, _, err = run(capsys, "merge", *reversed(names), "--out", tmp_path / f"all.{suffix}")
    assert code == 0, err
    assert "60 verdicts of 3 parts" in err
    whole = (tmp_path / f"whole.{suffix}").read_bytes()
    assert (tmp_path / f"all.{suffix}").read_bytes() == whole
    assert run(capsys, *asked, "--out", tmp_path / f"one.{suffix}")[0] == 0
    assert (tmp_path / f"one.{suffix}").read_bytes() == whole


def test_a_command_continues_with_what_is_missing(home, tmp_path, capsys, monkeypatch):  # noqa: F811
    asked = ["predict", home / "run", home / "fresh", *SMALL, "--out", tmp_path / "v.jsonl", "--part", "1/1"]
    done, work = [], parts.run_task

    def failing(task, number):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(number)
        return work(task, number)

    monkeypatch.setattr(parts, "run_task", failing)
    assert run(capsys, *asked)[0] == 130
    folder = tmp_path / "v.jsonl.parts"
    kept = {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*")}
    assert len(kept) == 3
    assert not (tmp_path / "v.jsonl").exists()
    line = refuse(capsys, *asked, "--false-alarms", "20%")
    assert "holds another prediction (detector is " in line
    monkeypatch.setattr(parts, "run_task", work)
    seen = []
    monkeypatch.setattr(parts, "run_task", lambda task, number: seen.append(number) or work(task, number))
    assert run(capsys, *asked)[0] == 0
    assert seen == [3, 4, 5, 6, 7]
    assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 60
    assert not folder.exists()


def test_what_cannot_be_joined(home, tmp_path, capsys):  # noqa: F811
    asked = ["predict", home / "run", home / "fresh", *SMALL]
    names = [tmp_path / f"{number}.csv" for number in (1, 2)]
    for number, name in enumerate(names, 1):
        assert run(capsys, *asked, "--out", name, "--part", f"{number}/2")[0] == 0
    out = tmp_path / "all.csv"
    assert "2/2 missing" in refuse(capsys, "merge", names[0], "--out", out)
    assert "given twice" in refuse(capsys, "merge", names[0], names[0], "--out", out)
    assert "same ending" in refuse(capsys, "merge", *names, "--out", tmp_path / "all.jsonl")
    assert "there is no file" in refuse(capsys, "merge", names[0], tmp_path / "3.csv", "--out", out)
    assert run(capsys, *asked, "--out", tmp_path / "o.csv", "--part", "2/2", "--false-alarms", "20%")[0] == 0
    line = refuse(capsys, "merge", names[0], tmp_path / "o.csv", "--out", out)
    assert "parts must be of one command" in line
    shutil.copy(names[1], tmp_path / "kept.csv")
    names[1].write_bytes(names[1].read_bytes().replace(b"red", b"bed"))
    assert "is altered: predict it again" in refuse(capsys, "merge", *names, "--out", out)
    assert not out.exists()


def test_what_cannot_be_divided(home, tmp_path, capsys):  # noqa: F811
    out = ["--out", tmp_path / "v.csv"]
    asked = ["predict", home / "run", home / "fresh"]
    assert "add --out" in refuse(capsys, *asked, "--part", "1/2")
    assert "use fewer parts" in refuse(capsys, *asked, *SMALL, *out, "--part", "1/99")
    assert "got -: give one" in refuse(capsys, "predict", home / "run", "-", *out, "--part", "1/2")
    assert "got 2: give one" in refuse(capsys, *asked, home / "train", *out, "--part", "1/2")
    assert not (tmp_path / "v.csv").exists()
