"""Kill commands at random moments, run them again to the end, and compare every byte with an undisturbed run.

    python -m benchmarks.kills --count 100

Half of the kills (SIGKILL) come after a random time, half at a random call that changes a file: before or after a file
is moved, flushed or removed. A command is killed up to three times before it may finish. Then its outputs must have the
bytes of the undisturbed run, apart from the seconds that training and tuning record, and nothing may be beside them.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.torch import load_file, save
from tabulate import tabulate

from tests.forks import FATAL, Forks
from tests.trees import TINY_FLAGS, classes

CALLS = ("replace", "fsync", "unlink")  # of the module os
QUIET = ("--no-progress",)


class Case(NamedTuple):
    """A command: its arguments within a folder, and what of `inputs` is copied there first."""

    argv: tuple[str, ...]
    copied: tuple[str, ...] = ()


# {0} has the inputs of all cases, {1} the outputs of one.
CASES = {
    "train": Case(("train", "{0}/features", "--out", "{1}/run", "--members", "3", "--member-epochs", "40",
                   "--batch-size", "8", "--checkpoint-seconds", "0.01", "--log-every", "3", *QUIET)),
    "extract": Case(("extract", "{0}/images", "--out", "{1}/features", "--shard-images", "4", *TINY_FLAGS)),
    "tune": Case(("tune", "{0}/features", "--out", "{1}/run", "--members", "2", "--held-out", "{0}/features", *QUIET)),
    "calibrate": Case(("calibrate", "{1}/run", "--id", "{0}/features", "--false-alarms", "10%", *QUIET), ("run",)),
    "predict": Case(("predict", "{0}/run", "{0}/images", "--out", "{1}/verdicts.csv", "--workers", "0", *QUIET)),
    "export": Case(("export", "{0}/run", "--to", "hub", "--out", "{1}/hub")),
    "adapt": Case(("adapt", "{0}/run", "--labelled", "{0}/features", "--out", "{1}/there", *QUIET)),
}  # fmt: skip


class Kill(NamedTuple):
    """When a process is killed: at a call of a function of `os`, before or after it; or after some seconds."""

    call: str = ""
    number: int = 0
    after: bool = False
    seconds: float = 0.0


class Killing:
    """A folder of inputs, and commands that are killed on them."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self.forks, self.folder, self.inputs = forks, folder, folder / "inputs"
        self.whole = dict[str, dict[str, bytes]]()
        self.seconds = dict[str, float]()

    def prepare(self) -> None:
        """Make images, features, and a calibrated run."""
        classes(self.inputs / "images", ("cat", "dog"), count=30)
        self._done("extract", "{0}/images", "--out", "{0}/features", *TINY_FLAGS)
        self._done("train", "{0}/features", "--out", "{0}/run", "--members", "3", "--member-epochs", "3", *QUIET)
        self._done("calibrate", "{0}/run", "--id", "{0}/features", "--false-alarms", "5%", *QUIET)

    def _done(self, *argv: str) -> None:
        command = self.forks.run(*(each.format(self.inputs) for each in argv))
        if command.code != 0:
            raise RuntimeError(command.err)

    def _begin(self, name: str, place: str) -> tuple[list[str], Path]:
        case, out = CASES[name], self.folder / f"{name}-{place}"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        for copied in case.copied:
            shutil.copytree(self.inputs / copied, out / copied)
        return [each.format(self.inputs, out) for each in case.argv], out

    def undisturbed(self, name: str) -> dict[str, bytes]:
        """Return what a command leaves if nothing disturbs it."""
        if name not in self.whole:
            argv, out = self._begin(name, "killed")  # the same folder: some outputs name it
            start = time.monotonic()
            self._done(*argv)
            self.seconds[name], self.whole[name] = time.monotonic() - start, contents(out)
        return self.whole[name]

    def check(self, name: str, kills: Sequence[Kill]) -> tuple[int, str]:
        """Kill a command at these moments, one after the other; return how often it was hit, and what differs then."""
        expected = self.undisturbed(name)
        argv, out = self._begin(name, "killed")
        hit = 0
        for kill in kills:
            first = ""
            if kill.call:
                first = "import os\n" + FATAL.format(where="os", name=kill.call, number=kill.number, after=kill.after)
            command = self.forks.start(*argv, first=first)
            if not kill.call:
                time.sleep(kill.seconds)
                os.kill(command.pid, signal.SIGKILL)  # a process that has ended is not reaped yet
            hit += command.wait(300) == -signal.SIGKILL
            if command.code == 0:
                break  # it had ended: the next command would find it finished
        left = contents(out)
        # Killed after its last step, a command that writes a new folder refuses to write it again.
        if command.code != 0 and left != expected:
            again = self.forks.start(*argv)
            if again.wait(300) != 0:
                return hit, f"the command again: {again.err.strip()}"
            left = contents(out)
        wrong = sorted(key for key in {**expected, **left} if expected.get(key) != left.get(key))
        return hit, f"after {kills}: {', '.join(wrong)}" if wrong else ""


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder, hidden ones too, without the seconds that they record."""
    return {
        path.relative_to(folder).as_posix(): _timeless(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def _timeless(path: Path) -> bytes:
    data = path.read_bytes()
    if path.parent.name == "trials" and path.suffix == ".safetensors":
        return save({name: value for name, value in load_file(path).items() if name != "seconds"})
    if path.name == "tuning.csv":
        rows = list(csv.DictReader(io.StringIO(data.decode())))
        return json.dumps([{**row, "seconds": ""} for row in rows]).encode()
    if path.name == "metrics.jsonl":
        return re.sub(rb'"seconds": [^,}]*', b"", data)
    if path.name == "tuning.json":
        return re.sub(rb'"(seconds|sha256)": [^,}]*', b"", data)
    return data


def random_kills(chance: random.Random, seconds: float, count: int) -> list[Kill]:
    """Return moments within a command that takes so many seconds."""
    kills = [Kill(seconds=chance.random() * seconds) for _ in range(count)]
    for i in range(count):
        if chance.random() < 0.5:
            kills[i] = Kill(call=chance.choice(CALLS), number=chance.randint(1, 12), after=chance.random() < 0.5)
    return kills


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if an output differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100, metavar="N", help="kills in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides the moments (default: 0)")
    options = parser.parse_args(argv)
    if options.count < 1:
        parser.error(f"--count must be at least 1; got {options.count}")
    chance, share, rows = random.Random(options.seed), -(-options.count // len(CASES)), []
    with tempfile.TemporaryDirectory(prefix="dissensus-kills-") as folder:
        os.environ["DISSENSUS_CACHE"] = f"{folder}/cache"
        forks = Forks(Path(folder))
        try:
            killing = Killing(forks, Path(folder))
            killing.prepare()
            for name in CASES:
                killing.undisturbed(name)
                hits, reruns, problems = 0, 0, list[str]()
                while hits < share:
                    hit, problem = killing.check(
                        name, random_kills(chance, killing.seconds[name], min(chance.randint(1, 3), share - hits))
                    )
                    hits, reruns = hits + hit, reruns + 1
                    problems += [problem] * bool(problem)
                rows.append((name, hits, reruns, reruns - len(problems), np.round(killing.seconds[name], 1)))
                for problem in problems:
                    print(f"{name}: {problem}", file=sys.stderr)
        finally:
            forks.close()
    heads = ("command", "kills", "finished again", "bit-identical", "seconds undisturbed")
    print(tabulate(rows, heads, tablefmt="github"))
    same = sum(row[3] for row in rows)
    print(f"\n{sum(row[1] for row in rows)} kills; {same} of {sum(row[2] for row in rows)} finished bit-identical")
    return 0 if same == sum(row[2] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
