"""An extraction killed at any moment and started again, or shared by two processes, ends with the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dissensus.features import FeatureSet
from tests.forks import FATAL, until
from tests.images.samples import noise, write

BACKBONE = ["--backbone", "test_vit", "--weights", "random", "--size", "32"]
# Every batch takes a while, and is noted.
SLOW = """
import os, time
from dissensus.backbones import engines
original = engines.create
def create(*args):
    run = original(*args)
    def slow(pixels):
        time.sleep({seconds})
        with open({log!r}, "a") as file:
            file.write(str(len(pixels)) + " ")
        return run(pixels)
    return slow
engines.create = create
"""
BREAK = """
import os
from dissensus.backbones import engines
original = engines.create
def create(*args):
    run, seen = original(*args), []
    def breaking(pixels):
        seen.append(None)
        if len(seen) == 3 and os.environ.get("RANK", "1") == "1":
            {what}
        return run(pixels)
    return breaking
engines.create = create
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """60 images of two classes, one of them bad."""
    names = [f"{'cat' if i % 2 else 'dog'}/{i:02}.png" for i in range(60)]
    images = {name: noise((40, 40), seed=i) if i != 31 else b"no" for i, name in enumerate(names)}
    return write(tmp_path_factory.mktemp("tree"), images)


def asked(tree, out, *more):
    return ["extract", tree, "--out", out, *BACKBONE, "--shard-images", 4, "--max-bad", "5%", "--augment", 2, *more]


@pytest.fixture(scope="module")
def whole(forks, tree, tmp_path_factory):
    """The files of an extraction that was left alone."""
    out = tmp_path_factory.mktemp("whole") / "f"
    command = forks.run(*asked(tree, out, "--workers", 0))
    assert command.code == 0, command.err
    return contents(out)


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def done(folder):
    """Shards with a receipt, by the moments their files were written."""
    return {path.stem: written(folder, path.stem) for path in folder.glob("shard-*.json")}


def written(folder, name):
    number = name.removeprefix("shard-")
    files = (folder / "img_emb" / f"img_emb_{number}.npy", folder / "metadata" / f"metadata_{number}.parquet")
    return tuple(path.stat().st_mtime_ns for path in files)


def messages(*commands):
    """The lines that commands wrote to stderr, without Lightning's."""
    lines = [line for command in commands for line in command.err.splitlines()]
    assert not any("Traceback" in line for line in lines), "\n".join(lines)
    return [line for line in lines if line.startswith("dissensus: ")]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ten_kills_at_random_moments_change_nothing(workers, forks, tree, whole, tmp_path):
    out, log, chance, kept = tmp_path / "f", tmp_path / "log", random.Random(workers), {}
    slow = SLOW.format(seconds=0.05, log=str(log))
    for attempt in range(10):
        command = forks.start(*asked(tree, out, "--workers", workers), first=slow)
        # from before the first shard to the twentieth of 30; the sleep spreads kills over reading, running and writing
        until(lambda: command.ended() or len(done(out)) >= 2 * attempt)  # noqa: B023
        time.sleep(chance.random() * 0.1)
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL, command.err  # at once: a lock held by its workers would refuse
        assert kept.items() <= done(out).items()
        kept = done(out)
    assert 18 <= len(kept) < 30
    command = forks.run(*asked(tree, out, "--workers", workers), first=slow)
    assert command.code == 0, command.err
    assert contents(out) == whole
    assert {name: written(out, name) for name in kept} == kept
    assert sum(map(int, log.read_text().split())) < 2 * 59 + 11 * 4 * 3  # at most the shards in flight again


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "calls"), [("os", "replace", range(1, 10)), ("Path", "unlink", range(9, 16))]
)
def test_a_kill_at_any_write_changes_nothing(where, name, calls, forks, tmp_path):
    """A plan, two shards with receipts, the list of bad images, the index; then what is no longer needed is removed.

    The first nine files to be removed do not exist: temporary files, of which the ninth is that of the index.
    """
    tree = write(tmp_path / "tree", {f"{i}.png": noise(seed=i) if i else b"no" for i in range(6)})
    few = [*asked(tree, tmp_path / "whole", "--workers", 0), "--shard-images", 3, "--augment", 0, "--max-bad", "20%"]
    assert forks.run(*few).code == 0
    whole = contents(tmp_path / "whole")
    for number, after in [*((number, False) for number in calls), (calls[-1], True)]:
        out = tmp_path / f"{number}-{after}"
        killed = forks.run(*few, "--out", out, first=FATAL.format(where=where, name=name, number=number, after=after))
        assert killed.code == -signal.SIGKILL, killed.err
        again = forks.run(*few, "--out", out)
        assert again.code == 0, again.err
        assert contents(out) == whole


@pytest.mark.parametrize("view", ["jigsaw", "speckle"])
def test_a_kill_changes_no_view(view, forks, tree, tmp_path):
    argv = [*asked(tree, tmp_path / "whole", "--workers", 0), "--view", view]
    assert forks.run(*argv).code == 0
    whole, out = contents(tmp_path / "whole"), tmp_path / "f"
    slow = SLOW.format(seconds=0.05, log=str(tmp_path / "log"))
    for shards in (3, 11):
        command = forks.start(*argv, "--out", out, first=slow)
        until(lambda: len(done(out)) >= shards)  # noqa: B023
        os.kill(command.pid, signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL, command.err
    kept = done(out)
    assert 11 <= len(kept) < 30
    again = forks.run(*argv, "--out", out, "--workers", 1)
    assert again.code == 0, again.err
    assert contents(out) == whole
    assert {name: written(out, name) for name in kept} == kept
    assert FeatureSet.open(out).provenance["view"] == view


def test_a_folder_in_work_is_refused_and_a_dead_ones_is_not(forks, tree, tmp_path):
    out = tmp_path / "f"
    # batches of 92 kB fill the pipe from the workers, which wait for a reader when their parent is killed
    argv = [*asked(tree, out, "--workers", 2), "--shard-images", 30]
    working = forks.start(*argv, first=SLOW.format(seconds=2, log=str(tmp_path / "log")))
    until(lambda: done(out))
    for _ in range(2):  # the first one to be refused must not take the lock away
        refused = forks.run(*argv)
        assert refused.code == 2
        assert messages(refused) == [
            f"dissensus: error: {out} is being written by another command: wait for it, or choose another"
        ]
    os.kill(working.pid, signal.SIGKILL)
    assert working.wait() == -signal.SIGKILL
    again = forks.run(*argv)  # at once, while the dead one's workers still live
    assert again.code == 0, again.err
    FeatureSet.open(out, verify=True)
    until(lambda: not members(working.pid), 10)  # which soon end, too


def members(group):
    """The processes of a process group that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            found += [stat.parent.name] * (int(of) == group and state != "Z")
    return found


def test_no_other_command_gets_the_folder_while_a_process_of_a_killed_one_writes(forks, tree, whole, tmp_path):
    out = tmp_path / "f"
    slow = SLOW.format(seconds=0.3, log=str(tmp_path / "log"))
    first, other = forks.pair(*asked(tree, out, "--workers", 0), first=slow)
    until(lambda: len(done(out)) > 1)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    refused = forks.run(*asked(tree, out, "--workers", 0))
    assert not other.ended()
    assert refused.code == 2
    assert messages(refused) == [
        f"dissensus: error: {out} is being written by another command: wait for it, or choose another"
    ]
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    again = forks.run(*asked(tree, out, "--workers", 0))
    assert again.code == 0, again.err
    assert contents(out) == whole


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_is_one_line_and_the_same_command_goes_on(processes, forks, tree, whole, tmp_path):
    out = tmp_path / "f"
    slow = SLOW.format(seconds=0.03, log=str(tmp_path / "log"))
    start = forks.pair if processes == 2 else lambda *argv, first: [forks.start(*argv, first=first)]
    commands = start(*asked(tree, out, "--workers", 2), first=slow)
    until(lambda: len(done(out)) > 2)
    for command in commands:
        os.killpg(command.pid, signal.SIGINT)
    assert commands[0].wait() == 130, commands[0].err
    assert [command.wait() for command in commands[1:]] == [0] * (processes - 1)
    assert messages(*commands) == ["dissensus: stopped; the same command goes on from here"]
    kept = done(out)
    assert 2 < len(kept) < 30
    names = set(contents(out))
    assert {Path(name).suffix for name in names} - {".lock"} <= {".json", ".npy", ".parquet"}
    assert not any(Path(name).name.startswith(".") for name in names)
    again = forks.run(*asked(tree, out, "--workers", 0))
    assert again.code == 0, again.err
    assert contents(out) == whole
    assert {name: written(out, name) for name in kept} == kept


def test_two_processes_share_the_work_and_give_the_same_bytes(forks, tree, whole, tmp_path):
    log = tmp_path / "log"
    slow = SLOW.format(seconds=0.02, log=str(log)).replace(f"{str(log)!r}", f"{str(log)!r} + os.environ['RANK']")
    commands = forks.pair(*asked(tree, tmp_path / "f", "--workers", 1), first=slow)
    assert [command.wait() for command in commands] == [0, 0], [command.err for command in commands]
    assert contents(tmp_path / "f") == whole
    shares = [sum(map(int, (tmp_path / f"log{rank}").read_text().split())) for rank in (0, 1)]
    assert sum(shares) == 2 * 59  # each image once a pass
    assert min(shares) > 20
    assert commands[0].out == f"{tmp_path / 'f'}\n"
    assert commands[1].out == ""


ERRORS = {
    "mistake": ("from dissensus import DissensusError; raise DissensusError('a rule; a value: a remedy')", "a rule; a"),
    "disk": ("raise OSError(28, 'No space left on device')", "cannot write .*f: No space left on device; free some"),
    "values": ("return run(pixels) * 1e9", "float16 holds values up to 65504; the features of .* use --dtype float32"),
}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_one_of_two_processes_ends_both(error, forks, tree, whole, tmp_path):
    what, match = ERRORS[error]
    commands = forks.pair(*asked(tree, tmp_path / "f", "--workers", 0), first=BREAK.format(what=what))
    assert [command.wait(30) for command in commands] == [2, 0], [command.err for command in commands]
    (line,) = messages(*commands)
    assert re.search(f"dissensus: error: {match}", line), line
    kept = done(tmp_path / "f")
    assert kept
    again = forks.pair(*asked(tree, tmp_path / "f", "--workers", 0))
    assert [command.wait() for command in again] == [0, 0], [command.err for command in again]
    assert contents(tmp_path / "f") == whole


def test_a_refusal_is_reported_by_one_of_two_processes(forks, tree, tmp_path):
    write(tmp_path / "f", {"mine.txt": b"mine"})
    commands = forks.pair(*asked(tree, tmp_path / "f"))
    assert [command.wait(30) for command in commands] == [2, 0], [command.err for command in commands]
    assert len(messages(*commands)) == 1
    assert contents(tmp_path / "f") == {"mine.txt": b"mine"}


def test_two_processes_allow_no_more_bad_images_than_one(forks, tmp_path):
    names = [f"{i:02}.png" for i in range(60)]
    tree = write(tmp_path / "tree", {name: noise(seed=i) if i % 10 else b"no" for i, name in enumerate(names)})
    argv = ["extract", tree, "--out", tmp_path / "f", *BACKBONE, "--shard-images", 10, "--max-bad", "5%"]
    commands = forks.pair(*argv, "--workers", 0)
    assert [command.wait(30) for command in commands] == [2, 0], [command.err for command in commands]
    (line,) = messages(*commands)
    assert "at most 3 of 60 images may be unreadable" in line
    again = forks.pair(*argv[:-1], "10%", "--workers", 0)
    assert [command.wait(30) for command in again] == [0, 0], [command.err for command in again]
    assert (tmp_path / "f" / "bad.tsv").read_text().count("\n") == 6


@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_two_processes_killed(rank, forks, tree, whole, tmp_path):
    out = tmp_path / "f"
    slow = SLOW.format(seconds=0.03, log=str(tmp_path / "log"))
    commands = forks.pair(*asked(tree, out, "--workers", 0), first=slow)
    until(lambda: len(done(out)) > 2)
    os.kill(commands[rank].pid, signal.SIGKILL)
    assert commands[1 - rank].wait(30) == 2, commands[1 - rank].err
    which = "one was killed" if rank else "process 1 of 2 has ended"
    killed = f"all processes of a command must live until its end; {which}: run the same command again"
    assert messages(*commands) == [f"dissensus: error: {killed}"]
    again = forks.run(*asked(tree, out, "--workers", 0))
    assert again.code == 0, again.err
    assert contents(out) == whole


def test_a_file_larger_than_allowed_is_one_line(forks, tree, whole, tmp_path):
    """As on a full disk, but by the system: files of more than 3,000 bytes cannot be written."""
    first = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))"
    )
    argv = ["extract", tree, "--out", tmp_path / "f", *BACKBONE, "--max-bad", "5%", "--shard-images", 50]
    command = forks.run(*argv, first=first)
    assert command.code == 2
    (line,) = messages(command)
    assert "cannot write" in line
    assert "File too large" in line
    assert forks.run(*argv).code == 0
    assert len(FeatureSet.open(tmp_path / "f")) == 59


@pytest.mark.slow
def test_ctrl_c_on_a_command_with_two_devices(forks, tree, whole, tmp_path):
    """Fabric's own way of starting the second process, with real processes to their very end."""
    argv = [*map(str, asked(tree, tmp_path / "f", "--workers", 1)), "--devices", "2", "--accelerator", "cpu"]
    with subprocess.Popen(
        [sys.executable, "-m", "dissensus", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    ) as started:  # fmt: skip
        until(lambda: done(tmp_path / "f"), 90)
        os.killpg(started.pid, signal.SIGINT)
        _, err = started.communicate(timeout=60)
    assert started.returncode == 130, err
    assert "Traceback" not in err
    assert err.count("dissensus: ") == 1
    finished = forks.run(*asked(tree, tmp_path / "f", "--workers", 0))
    assert finished.code == 0, finished.err
    assert contents(tmp_path / "f") == whole
